"""One process a data folder: two that append to the same logs overwrite what the other has acknowledged.

The lock is the system's, on a file `.lock` in the folder. It goes when the process does, however it ends, so a node
that was killed is started again without anybody tidying up. The file stays, with the number of its last holder, for
the message to whoever is refused.
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
        super().__init__(f"the data folder {folder} is in use by process {holder}: stop it, or name another --data")
        self.folder = folder
        self.holder = holder


class FolderLock:
    """Holds a folder, which is made if it isn't there.

    Raises:
        FolderInUse: if another process holds it, or this one already does.
        OSError: if the folder can't be had.
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
        with contextlib.suppress(OSError):  # only a message needs it: a full disk is no reason to stop
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    def release(self) -> None:
        """Let the next process in."""
        with contextlib.suppress(OSError):
            self._file.close()
