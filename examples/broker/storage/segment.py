"""One file of a log, and the index of its batches.

The index is in memory only: three 64-bit numbers per batch (offset, position, newest timestamp). It is rebuilt when the
file is opened, which reads every batch anyway to check it. An index file would save that reading, but it could disagree
with the log after a crash.

Writes go to the operating system without a buffer, so appended batches survive a kill of the process.

Used by its log, on the log's thread.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left, bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.records import Batch, newest_timestamp_at, parse
from examples.broker.storage.disk import sync_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT_FILES = "[0-9]" * 20 + ".log"
"""A pattern of the segments' names. Other files in a log's folder are ignored."""
_WORTH_TWO_PIECES = 16 * 1024
"""From this size on it is cheaper to let the system join a batch than to copy it."""


class Segment:
    """The batches from one offset on, in a file named after that offset. The folder of the first one may be new."""

    def __init__(self, folder: Path, base_offset: int, *, global_start: int = 0, is_first: bool = True) -> None:
        self.path = folder / f"{base_offset:020d}.log"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.global_start = global_start
        """The bytes of the log before this segment, so that distances across segments are subtractions."""
        self.newest_timestamp = -1
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self._is_first = is_first
        self._is_named = False
        """Whether the file's name is on the disk."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def recover(self) -> tuple[list[Batch], str | None]:
        """Read the file, index its batches, and cut off everything after the last valid one.

        Returns the batches and, if something was cut off, the reason.
        """
        length = os.fstat(self._fd).st_size
        found: list[Batch] = []
        reason = None
        try:
            for batch in self._scan(length):
                if batch.base_offset != self.next_offset:
                    reason = f"the next batch must begin at {self.next_offset}, got {batch.base_offset}"
                    break
                self._index(batch.base_offset, batch)
                found.append(batch)
        except BrokerError as error:
            reason = str(error)
        if self.size < length:
            os.ftruncate(self._fd, self.size)
        return found, reason

    def _scan(self, length: int) -> Iterator[Batch]:
        """Read and check the batches in the file's first ``length`` bytes."""
        if not length:
            return
        with mmap.mmap(self._fd, length, access=mmap.ACCESS_READ) as content:
            position = 0
            while position < length:
                batch = parse(content, position)  # type: ignore[arg-type]  # slices of a map are bytes
                yield batch
                position += batch.size

    def append(self, data: bytes, batch: Batch, offset: int, head: bytes = b"") -> None:
        """Write one batch, with ``head`` for its first bytes. Raises OSError if the disk rejects it."""
        written = 0
        try:
            if len(data) > _WORTH_TWO_PIECES:
                written = os.pwritev(self._fd, (head, memoryview(data)[len(head) :]), self.size)
            while written < len(data):
                written += os.pwrite(self._fd, (head + data[len(head) :])[written:], self.size + written)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self._index(offset, batch)

    def _index(self, offset: int, batch: Batch) -> None:
        self._offsets.append(offset)
        self._positions.append(self.size)
        self.newest_timestamp = max(self.newest_timestamp, batch.max_timestamp)
        self._timestamps.append(self.newest_timestamp)
        self.size += batch.size
        self.next_offset = offset + batch.last_offset_delta + 1

    def time_to(self, timestamp: int) -> int:
        """Return how much later a timestamp is than that of the first batch."""
        return timestamp - self._timestamps[0] if self._timestamps else 0

    def newest_at(self, offset: int) -> int:
        """Return the newest timestamp up to the batch that holds ``offset``, or -1."""
        number = bisect_right(self._offsets, offset) - 1
        return self._timestamps[number] if number >= 0 else -1

    def position(self, offset: int) -> int:
        """Return the position of the batch that holds ``offset``, or the file's end."""
        if offset >= self.next_offset:
            return self.size
        return self._positions[max(bisect_right(self._offsets, offset) - 1, 0)]

    def read(self, start: int, limit: int, max_bytes: int) -> bytes:
        """Read whole batches from position ``start`` to ``limit``: at least one, otherwise at most ``max_bytes``."""
        if limit - start > max_bytes:
            last = bisect_right(self._positions, start + max_bytes) - 1
            first = bisect_left(self._positions, start)
            cut = self._positions[last] if last > first else self._end_of(first)
            limit = min(limit, cut)
        return os.pread(self._fd, limit - start, start)

    def _end_of(self, number: int) -> int:
        return self._positions[number + 1] if number + 1 < len(self._positions) else self.size

    def batch_reaching(self, timestamp: int, start: int) -> bytes | None:
        """Read the first batch that ends after the offset ``start`` and has a record with ``timestamp`` or later.

        The index has each batch's newest timestamp, that of all batches before included. A deleted batch may hide later
        ones, which are then read from the file.
        """
        number = bisect_left(self._timestamps, timestamp)
        if number == len(self._timestamps) or start >= self.next_offset:
            return None
        first = bisect_right(self._offsets, start) - 1
        if number < first:
            with mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ) as content:
                newest = (newest_timestamp_at(content, position) for position in self._positions[first:])
                number = next((number for number, each in enumerate(newest, first) if each >= timestamp), -1)
        if number < 0:
            return None
        position = self._positions[number]
        return os.pread(self._fd, self._end_of(number) - position, position)

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds ``offset`` or something later."""
        keep = max(bisect_right(self._offsets, offset) - 1, 0)
        if offset >= self.next_offset or keep == len(self._offsets):
            return
        self.size, self.next_offset = self._positions[keep], self._offsets[keep]
        del self._offsets[keep:], self._positions[keep:], self._timestamps[keep:]
        self.newest_timestamp = self._timestamps[-1] if keep else -1
        os.ftruncate(self._fd, self.size)

    def sync(self) -> None:
        """Force written bytes, and the file's name, to the disk. May be called from another thread.

        The first time, the bytes and the names are forced at once, which takes hardly longer than one of them.
        """
        if self._is_named:
            os.fsync(self._fd)
            return
        folders = self.path.parents[: 2 if self._is_first else 1]
        with ThreadPoolExecutor(len(folders), thread_name_prefix="segment-name") as threads:
            names = [threads.submit(sync_path, folder) for folder in folders]
            os.fsync(self._fd)
        for name in names:
            name.result()
        self._is_named = True

    def close(self) -> None:
        os.close(self._fd)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
