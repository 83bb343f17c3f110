"""Whether the disk of this node accepts writes.

    a write fails             offline: every append is rejected without a try
    in a cluster              the controller moves the leaderships of this node away
    a probe is written        online again: this node follows, and may lead again

One incident is one log line when it begins and one when it ends. The probe is as large as the write that failed, at
least 64 KiB. A disk that fails again soon after a probe is probed less often, at least twice per minute.

Used on the broker's loop. ``failed`` may be called from any thread.
"""

from __future__ import annotations

import enum
import json
import os
import time
from typing import TYPE_CHECKING

import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = structlog.get_logger(__name__)
_LEAST_PROBE = 64 * 1024
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_WELL_S = 60.0


class Fsync(enum.Enum):
    """When appended bytes are forced to the disk, and so what a power cut leaves of them."""

    NEVER = "never"
    """What the system has written by then."""
    INTERVAL = "interval"
    """All but about the last second."""
    ALWAYS = "always"
    """Everything."""


class Disk:
    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        self.is_failing = False
        self._cause = ""
        """The error of the write that failed. It need not be the disk's: there can be too many open files."""
        self._path = folder / ".probe"
        self._now = now
        self._bytes = _LEAST_PROBE
        self._wait_s = _FIRST_WAIT_S
        self._probe_at = 0.0
        self._well_since = now()

    def failed(self, error: OSError, size: int = 0) -> None:
        """Note that a write of ``size`` bytes failed."""
        if self.is_failing:
            return
        self.is_failing = True
        now = self._now()
        soon = now - self._well_since < _WELL_S
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S) if soon else _FIRST_WAIT_S
        self._probe_at = now + self._wait_s
        self._bytes = max(size, _LEAST_PROBE)
        self._cause = str(error)
        _log.error("a write failed", folder=str(self._path.parent), error=str(error))

    def check(self) -> None:
        """Reject a write while the disk fails. Raises KAFKA_STORAGE_ERROR."""
        if self.is_failing:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"an earlier write failed: {self._cause}")

    def probe(self) -> None:
        """Find out whether the disk accepts writes again, if a probe is due."""
        now = self._now()
        if not self.is_failing or now < self._probe_at:
            return
        self._probe_at = now + self._wait_s
        try:
            with self._path.open("wb") as file:
                file.write(bytes(self._bytes))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return
        finally:
            self._path.unlink(missing_ok=True)
        self.is_failing, self._well_since = False, now
        _log.info("writes succeed again", folder=str(self._path.parent))


def sync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, content: object, *, durably: bool) -> None:
    """Write JSON aside and rename it, so that a crash leaves the old file or the new one."""
    aside = path.with_suffix(".tmp")
    with aside.open("w") as file:
        json.dump(content, file)
        if durably:
            file.flush()
            os.fsync(file.fileno())
    aside.replace(path)
    if durably:
        sync_path(path.parent)
