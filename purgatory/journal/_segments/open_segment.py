"""The segment that a writer appends frames to. One thread uses it.

A frame is in the file whole, or it is cut off again. If cutting fails as well, the segment is closed with its torn
tail, and the next frame begins another segment. Readers and the sealer stop at a torn frame.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from purgatory.journal._segments import sync_folder
from purgatory.journal.records.folder import open_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import RawIOBase
    from pathlib import Path

    from purgatory.journal._options import Options


class OpenSegment:
    """The open segment of a folder, if there is one. The first frame creates it.

    Args:
        folder: the journal's.
        options: of the journal.
        closed: called with the path of each segment that was closed with rows in it.
        failed: called with the error of a sync that failed after the rows had been written.
    """

    def __init__(
        self,
        folder: Path,
        options: Options,
        closed: Callable[[Path], object],
        failed: Callable[[OSError], object],
    ) -> None:
        self._folder = folder
        self._options = options
        self._closed = closed
        self._failed = failed
        self._unsynced: list[Path] = []
        self._file: RawIOBase | None = None
        self._path = folder
        self._is_listed = False  # whether the file's name is on the disk
        self._size = 0
        self._opened_at = 0.0

    @property
    def is_aged(self) -> bool:
        """Whether it has been open for longer than a segment should be."""
        return self._file is not None and time.monotonic() - self._opened_at > self._options.segment_seconds

    @property
    def is_full(self) -> bool:
        """Whether it is as large as a segment should be."""
        return self._size >= self._options.segment_bytes

    @property
    def exists(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def append(self, frame: bytes, first: int) -> None:
        """Write a frame, whose first row has this number.

        Raises:
            OSError: the frame was not written, and nothing of it is left in the segment.
        """
        if self._file is None:
            self._path = self._folder / open_name(first)
            self._file = self._options.open_file(self._path)
            self._is_listed = False
            self._size = 0
            self._opened_at = time.monotonic()
        try:
            done = 0
            while done < len(frame):
                done += self._file.write(frame[done:] if done else frame) or 0
            if self._options.sync == "always":
                self._force(self._file)
        except OSError:
            self._cut(self._file)
            raise
        self._size += len(frame)

    def sync(self) -> bool:
        """Force what was written to the disk. Return False if some of it is not there yet.

        After a failed sync the next one may succeed, though the kernel has dropped the pages. So the segment is closed,
        and its rows count as on the disk once the sealer has replaced it: a sealed segment is a new file, and synced.
        """
        with contextlib.suppress(OSError):
            self._unsynced = [path for path in self._unsynced if path.exists()]
        # One at a time: a disk that syncs nothing must not get a segment of each flush.
        if not self._unsynced and self._file is not None and not self._sync(self._file):
            self.close()
        return not self._unsynced

    def _sync(self, file: RawIOBase) -> bool:
        try:
            self._force(file)
        except OSError as error:
            self._failed(error)
            if self._size and self._path not in self._unsynced:
                self._unsynced.append(self._path)
            return False
        return True

    def _force(self, file: RawIOBase) -> None:
        """Force the rows to the disk, and the file's name too, without which nobody would find them."""
        os.fsync(file.fileno())
        if not self._is_listed:
            sync_folder(self._folder)
            self._is_listed = True

    def _cut(self, file: RawIOBase) -> None:
        """Cut off a half-written frame. If that fails too, close the segment with its torn tail."""
        try:
            file.truncate(self._size)
            file.seek(self._size)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file, if one is open."""
        file, self._file = self._file, None
        if file is None:
            return
        if self._options.sync != "never":
            self._sync(file)
        with contextlib.suppress(OSError):
            file.close()
        if self._size:  # otherwise none of its rows was acknowledged, and the next frame writes the same file again
            self._closed(self._path)
