"""The file of the embedded store: its permissions, and what happens if it is deleted while nodes run.

Processes that have a deleted file open still share it, but none that starts later can. Each process logs that once, and
saves the tree beside the file when it closes (``.rescued``). To recover, stop all nodes, rename that file, and start
them.

SQLite needs some space to open the file. So there is a *reserve* beside it (``.reserve``), which a start on a full disk
deletes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)
_RESERVE_BYTES = 1024 * 1024


def create(path: Path) -> None:
    """Create a file that only this user can read, because it has the cluster's secret. SQLite's other files follow it.

    An existing file is not opened: closing it again would release all locks that this process has on it.
    """
    with contextlib.suppress(OSError):  # SQLite's own error is more precise
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def release_reserve(path: Path) -> bool:
    """Delete the reserve. Returns False if there is none."""
    try:
        _reserve(path).unlink()
    except FileNotFoundError:
        return False
    _log.warning("the reserve is used to open the coordination file", path=str(path))
    return True


def keep_reserve(path: Path) -> None:
    """Write the reserve, unless it is there or the disk is full."""
    reserve = _reserve(path)
    if not reserve.exists():
        create(reserve)
        try:
            reserve.write_bytes(bytes(_RESERVE_BYTES))
        except OSError:
            reserve.unlink(missing_ok=True)


def _reserve(path: Path) -> Path:
    return path.with_name(f"{path.name}.reserve")


class TreeFile:
    """A file that is open in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = path.stat().st_ino
        self._rescued = path.with_name(f"{path.name}.rescued")
        self.is_deleted = False

    def check(self) -> None:
        """Log once that the file was deleted or replaced."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                return
        if not self.is_deleted:
            self.is_deleted = True
            _log.error("the coordination file was deleted: stop all nodes", rescued=str(self._rescued))

    def rescue(self, db: sqlite3.Connection) -> None:
        create(self._rescued)
        try:
            with contextlib.closing(sqlite3.connect(self._rescued)) as copy:
                db.backup(copy)
        except sqlite3.Error as error:
            _log.error("the tree is not saved", path=str(self._rescued), error=str(error))
