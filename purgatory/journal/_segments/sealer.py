"""Seals full segments and deletes old ones, on one thread, so that the writer never waits for it.

A segment that cannot be sealed stays open and readable. It is tried again every ten seconds, and with each segment that
is full. Counters are changed by the sealer's thread alone. Any thread may read them.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from purgatory._core.log import Log
from purgatory.journal._segments import leave_end, seal
from purgatory.journal._segments.retention import retain
from purgatory.journal.records.folder import segment_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from purgatory.journal._options import Options

_log = Log("purgatory.journal")

_RETAIN_EVERY_S: Final = 60.0  # segments age also while none is sealed
_SEAL_AGAIN_S: Final = 10.0


class Sealer:
    """The sealer of one folder.

    Args:
        folder: the journal's.
        options: of the journal.
        name: of the thread.
        unsealed: open segments of an earlier writer that could not be sealed.

    Attributes:
        unsealed: segments that could not be sealed. After the start, only the sealer's thread changes it.
    """

    def __init__(self, folder: Path, options: Options, name: str, unsealed: list[Path]) -> None:
        self.unsealed = unsealed
        self.sealed = self.errors = self.deleted = self.deleted_bytes = 0
        self._folder = folder
        self._options = options
        self._retaining = options.retain_bytes is not None or options.retain_seconds is not None
        self._retain_at = self._seal_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Run something on the sealer's thread. After ``shutdown`` nothing runs, and the next start seals the rest."""
        with contextlib.suppress(RuntimeError):
            return self._thread.submit(work, *arguments)
        return None

    def shutdown(self) -> None:
        """Wait until all submitted work is done."""
        self._thread.shutdown(wait=True)

    def tend(self, *, closing: bool, sealing: bool) -> None:
        """Retry segments and delete old ones if it is time. ``sealing``: a segment is about to be sealed anyway."""
        now = time.monotonic()
        if self.unsealed and not sealing and (closing or now >= self._seal_at):
            self._seal_at = now + _SEAL_AGAIN_S
            self.submit(self.seal)
        if self._retaining and (closing or now >= self._retain_at):
            self._retain_at = now + min(_RETAIN_EVERY_S, self._options.retain_seconds or _RETAIN_EVERY_S)
            self.submit(self._retain)

    def seal(self, *paths: Path) -> None:
        """Seal these segments, and those that could not be sealed before. Runs on the sealer's thread."""
        before, self.unsealed = self.unsealed, []
        sealed = None
        for path in (*before, *paths):
            try:
                sealed = seal(path, parquet=self._options.parquet)
            except Exception as error:  # the open segment stays readable, and is tried again  # noqa: BLE001
                if self._folder.is_dir() and not path.exists():  # somebody else sealed or removed it
                    continue
                self.unsealed.append(path)
                if path in paths:
                    _log.error("journal.seal_failed", segment=path.name, error=repr(error))
                self.errors += 1
                continue
            self.sealed += 1
        if sealed is not None and not self.unsealed and (segment := segment_of(sealed)) and segment.last is not None:
            self.leave_end(segment.last + 1)
        if self._retaining:
            self._retain()

    def leave_end(self, following: int, dropped: int = 0) -> None:
        """Write the folder's end. On a full disk the earlier end stays, which is still true."""
        with contextlib.suppress(OSError):
            leave_end(self._folder, following, dropped)

    def _retain(self) -> None:
        """Delete segments that are too old or beyond the size."""
        options = self._options
        try:
            gone = retain(self._folder, most_bytes=options.retain_bytes, most_seconds=options.retain_seconds)
        except OSError as error:
            _log.warning("journal.retention_failed", folder=str(self._folder), error=str(error))
            self.errors += 1
            return
        self.deleted += gone.segments
        self.deleted_bytes += gone.bytes
