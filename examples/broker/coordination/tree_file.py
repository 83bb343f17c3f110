"""The file of the embedded store: who may read it, and what happens when it is deleted while nodes run.

The processes that have a deleted file open still share it, but none that starts later can. Each says so once, and saves
the tree beside the file when it closes (`.rescued`). Stop all nodes, give that the file's name, and start them.
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


def create(path: Path) -> None:
    """Create a file readable by this user only, as it holds the cluster's secret; those of SQLite beside it follow.

    A file that is there is not opened: to close it again would drop all locks that this process has on it.
    """
    with contextlib.suppress(OSError):  # SQLite says it better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class TreeFile:
    """A file that is open in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = path.stat().st_ino
        self._rescued = path.with_name(f"{path.name}.rescued")
        self.is_deleted = False

    def check(self) -> None:
        """Say once when the file was deleted, or another one is in its place."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                return
        if not self.is_deleted:
            self.is_deleted = True
            _log.error("the coordination file was deleted: stop all nodes", rescued=str(self._rescued))

    def rescue(self, db: sqlite3.Connection) -> None:
        """Save the tree beside the file."""
        create(self._rescued)
        try:
            with contextlib.closing(sqlite3.connect(self._rescued)) as copy:
                db.backup(copy)
        except sqlite3.Error as error:
            _log.error("the tree can't be saved", path=str(self._rescued), error=str(error))
