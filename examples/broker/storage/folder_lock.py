"""One process per data folder. Two processes that append to the same logs would overwrite acknowledged records.

The lock is the system's, on a file `.lock` in the folder. It ends with the process, so a node that was killed can start
again. The file stays, with the process id of its last holder, for the error message.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class FolderInUse(OSError):
    """Another process has the data folder."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"the data folder {folder} is in use by process {holder}: stop it, or pass another --data")
        self.folder = folder
        self.holder = holder


class FolderLock:
    """Locks a folder, which is created if it does not exist.

    Raises:
        FolderInUse: if a process holds the lock, this one included.
        OSError: if the folder is not usable.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / ".lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise FolderInUse(folder, holder) from None
        except OSError:
            self._file.close()
            raise
        with contextlib.suppress(OSError):  # only the error message needs it, so a full disk does not matter
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
