"""The log of one partition: segments on disk, appended at the end, cut at either side.

    start_offset            next_offset
        |  00..00.log   |  00..4711.log  (active)  |
        v               v                          v
    ----[batch][batch]..[batch][batch]......[batch]

What survives what:

- *kill -9 of the broker*: everything appended, whatever the policy, since appends go to the operating
  system at once.
- *power cut*: with `Fsync.ALWAYS` everything that was appended; with `INTERVAL` all but the last second or
  so; with `NEVER` what the system happened to write. A replica elsewhere still has the rest.

A tail that is torn (a batch half written, or with a wrong checksum) is cut off when the log is opened, and
so is everything behind it.

Not thread-safe, but for `sync`: a log belongs to the broker's loop.
"""

from __future__ import annotations

import enum
import os
import shutil
import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import RECORDS_PER_STEP, Batch, batches, parse, records_of
from examples.broker.storage.disk import Disk
from examples.broker.storage.leader_epochs import LeaderEpochs
from examples.broker.storage.producers import ProducerStates
from examples.broker.storage.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.protocol.steps import Steps

NEVER = 1 << 62
_MOST_REMEMBERED = 64 * 1024
_HEAD = struct.Struct(">qii")  # base offset, length, leader epoch
_HEAD_BEFORE_REST = 12  # what a batch's length doesn't count
_log = structlog.get_logger(__name__)


class Fsync(enum.Enum):
    """When appended bytes are forced to the disk."""

    NEVER = "never"
    INTERVAL = "interval"
    ALWAYS = "always"


class Log:
    """An append-only sequence of record batches.

    Args:
        folder: where the segments are; made if it isn't there.
        segment_bytes: a segment that reached this size is followed by a new one.
        fsync: see the module's table; `INTERVAL` is carried out by whoever calls `sync`.
        start_offset: what was deleted before, as the owner remembers it.
        disk: is told of what fails.
        is_new: nothing of what the folder may hold belongs to this log; it is removed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 64 * 1024 * 1024,
        fsync: Fsync = Fsync.INTERVAL,
        start_offset: int = 0,
        disk: Disk | None = None,
        is_new: bool = False,
    ) -> None:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.segment_ms = NEVER
        """A segment is also followed by a new one when a record is so much later than its first."""
        self.retention_bytes = self.retention_ms = -1
        self.fsync = fsync
        self.producers = ProducerStates()
        self.epochs = LeaderEpochs()
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._disk = disk or Disk(folder)
        self._unsynced = False
        self._memo: tuple[tuple[int, int, int], bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._recover(start_offset)
        self.start_offset = min(max(start_offset, self._bases[0]), self.next_offset)

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get: the log's end."""
        return self._segments[-1].next_offset

    @property
    def size(self) -> int:
        """The bytes on disk."""
        return sum(segment.size for segment in self._segments)

    def _recover(self, start_offset: int) -> None:
        paths = sorted(self.folder.glob("*.log"))
        for number, path in enumerate(paths):
            base = int(path.stem)
            if self._segments and base != self.next_offset:
                reason: str | None = f"the segment starts at {base}, expected {self.next_offset}"
            else:
                segment = self._add_segment(base)
                found, reason = segment.recover()
                for batch in found:
                    self.producers.appended(batch, batch.base_offset)
                    self.epochs.begin(batch.leader_epoch, batch.base_offset)
            if reason is not None:
                _log.warning("log cut", folder=str(self.folder), at=self.next_offset, reason=reason)
                for later in paths[number + 1 :]:
                    later.unlink()
                if base != self._bases[-1]:
                    path.unlink()
                break
        if not self._segments:
            self._add_segment(start_offset)

    def _add_segment(self, base: int) -> Segment:
        last = self._segments[-1] if self._segments else None
        segment = Segment(self.folder, base, global_start=last.global_start + last.size if last else 0)
        self._segments.append(segment)
        self._bases.append(base)
        return segment

    def append(self, data: bytes, batch: Batch, leader_epoch: int = 0) -> int:
        """Append a producer's batch, which is all of `data`, and give the offset of its first record.

        The offset and the leader's epoch are written into the batch.

        A batch that is in the log already (see `producers`) is not appended again.

        Raises:
            BrokerError: if the batch is fenced or out of order, or the disk refuses it.
        """
        offset = self.producers.duplicate_of(batch)
        if offset is None:
            offset = self.next_offset
            head = _HEAD.pack(offset, batch.size - _HEAD_BEFORE_REST, leader_epoch)
            self.epochs.begin(leader_epoch, offset)
            try:
                self._disk.check()
                self._write(data, batch, offset, head)
                self._secure(offset)
            except BrokerError:
                self.producers.refused(batch)
                raise
        return offset

    def append_replicated(self, data: bytes) -> int:
        """Append batches that a leader numbered already; give how many bytes were new.

        Raises:
            BrokerError: if they don't continue this log, or the disk refuses them.
        """
        new, start = 0, self.next_offset
        for batch in batches(data):
            if batch.next_offset <= self.next_offset:
                continue  # sent again from the middle of a batch
            if batch.base_offset != self.next_offset:
                raise BrokerError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"got {batch.base_offset}, expected {self.next_offset}"
                )
            self.epochs.begin(batch.leader_epoch, batch.base_offset)
            self._write(data[batch.position : batch.position + batch.size], batch, batch.base_offset)
            new += batch.size
        if new:
            self._secure(start)
        return new

    def _write(self, data: bytes, batch: Batch, offset: int, head: bytes = b"") -> None:
        segment = self._segments[-1]
        try:
            is_full = segment.size + batch.size > self.segment_bytes
            if segment.size and (is_full or segment.time_to(batch.max_timestamp) > self.segment_ms):
                if self.fsync is not Fsync.NEVER:
                    segment.sync()
                segment = self._add_segment(segment.next_offset)
                self._sync_folder()
            segment.append(data, batch, offset, head)
        except OSError as error:
            self._disk.failed(error, batch.size)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.producers.appended(batch, offset)
        self._unsynced = True

    def _secure(self, start: int) -> None:
        """Where each write is forced to the disk: force what was appended from `start` on, or take it back."""
        if self.fsync is not Fsync.ALWAYS:
            return
        try:
            self.sync()
        except OSError as error:
            self._disk.failed(error)
            self.truncate_to(start)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes:
        """Read whole batches from the one that holds `offset` up to the offset `limit`, out of one segment.

        At least one batch if there is one, else no more than `max_bytes`.

        Raises:
            BrokerError: if the offset is not in the log.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {self.start_offset}..{self.next_offset}"
            )
        segment = self._segment_of(offset)
        start, end = segment.position(offset), segment.position(limit)
        if end <= start:
            return b""
        # Many readers at the same place, woken by one append, ask for the same bytes: read them once.
        request = (segment.global_start + start, segment.global_start + end, max_bytes)
        if self._memo is not None and self._memo[0] == request:
            return self._memo[1]
        data = segment.read(start, end, max_bytes)
        if len(data) <= _MOST_REMEMBERED:
            self._memo = (request, data)
        return data

    def newest_at(self, offset: int) -> int:
        """Give the newest timestamp up to the batch that holds `offset`, or -1 if there is none."""
        return self._segment_of(offset).newest_at(offset)

    def distance(self, offset: int, limit: int) -> int:
        """Give how many bytes lie between two offsets, in whole batches."""
        first, last = self._segment_of(offset), self._segment_of(limit)
        return (last.global_start + last.position(limit)) - (first.global_start + first.position(offset))

    def is_in_older_segment(self, offset: int) -> bool:
        """Tell whether the offset lies before the active segment."""
        return offset < self._bases[-1]

    def offset_for_timestamp(self, timestamp: int, limit: int) -> Steps[tuple[int, int] | None]:
        """Look for the first record below `limit` of `timestamp` or later; return its offset and timestamp.

        A batch may hold a million records. The log may change between two steps.

        Raises:
            BrokerError: if a batch cannot be taken apart.
        """
        start = self.start_offset
        while (data := self._batch_reaching(timestamp, start)) is not None:
            batch = parse(data)
            for number, record in enumerate(records_of(data, batch)):
                if number % RECORDS_PER_STEP == 0:
                    yield
                if record.timestamp >= timestamp and record.offset >= self.start_offset:
                    return (record.offset, record.timestamp) if record.offset < limit else None
            start = batch.next_offset  # only deleted records of this batch are as late
        return None

    def _batch_reaching(self, timestamp: int, start: int) -> bytes | None:
        found = (segment.batch_reaching(timestamp, start) for segment in self._segments)
        return next((data for data in found if data is not None), None)

    def expired_before(self, limit: int, now_ms: float) -> int:
        """Give the offset before which the records have outlived their retention: whole segments that end by `limit`.

        The last segment can be too old, too. Its file is removed when the next segment has begun.
        """
        offset = self.start_offset
        too_many = self.size - self.retention_bytes if self.retention_bytes >= 0 else -1
        for segment in self._segments:
            too_many -= segment.size
            is_old = 0 <= self.retention_ms < now_ms - segment.newest_timestamp and segment.newest_timestamp >= 0
            is_surplus = too_many >= 0 and segment is not self._segments[-1]
            if segment.next_offset > limit or not (is_old or is_surplus):
                break
            offset = segment.next_offset
        return offset

    def delete_before(self, offset: int) -> None:
        """Move the start of the log to `offset`; segments that lie wholly before it are removed."""
        if offset <= self.start_offset:
            return
        self.start_offset = min(offset, self.next_offset)
        while len(self._segments) > 1 and self._segments[0].next_offset <= self.start_offset:
            self._segments.pop(0).delete()
            self._bases.pop(0)

    def truncate_to(self, offset: int) -> None:
        """Drop what is at `offset` and later, in whole batches."""
        if offset >= self.next_offset:
            return
        _log.info("log truncated", folder=str(self.folder), to=offset, end=self.next_offset)
        while len(self._segments) > 1 and self._bases[-1] >= offset:
            self._segments.pop().delete()
            self._bases.pop()
        self._segments[-1].truncate_to(offset)
        self._memo = None
        self.epochs.truncate_to(self.next_offset)
        self.start_offset = min(self.start_offset, self.next_offset)
        self.producers = ProducerStates()
        for segment in self._segments:
            for batch in segment.scan():
                self.producers.appended(batch, batch.base_offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`, as a replica must whose leader deleted that far."""
        _log.info("log restarted", folder=str(self.folder), at=offset)
        for segment in self._segments:
            segment.delete()
        self._segments, self._bases, self._memo = [], [], None
        self._add_segment(offset)
        self.start_offset = offset
        self.producers = ProducerStates()
        self.epochs = LeaderEpochs()

    def sync(self) -> None:
        """Force what was appended to the disk; may be called from another thread."""
        if self._unsynced:
            self._unsynced = False  # before the call: an append meanwhile sets it again
            try:
                self._segments[-1].sync()
            except OSError:
                self._unsynced = True
                raise

    def _sync_folder(self) -> None:
        if self.fsync is Fsync.NEVER:
            return
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Force everything to the disk, unless the policy is never to, and close the files."""
        if self.fsync is not Fsync.NEVER:
            try:
                self.sync()
            except OSError as error:
                self._disk.failed(error)
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        """Close the log and remove its folder."""
        for segment in self._segments:
            segment.delete()
        shutil.rmtree(self.folder, ignore_errors=True)
