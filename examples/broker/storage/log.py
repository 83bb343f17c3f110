"""The log of one partition: segments on disk, appended at the end, cut at either side.

    start_offset            next_offset
        |  00..00.log   |  00..4711.log  (active)  |
        v               v                          v
    ----[batch][batch]..[batch][batch]......[batch]

Appends go to the operating system at once, so they survive a kill of the process. A power cut leaves what ``Fsync``
says. A torn tail (a batch that is incomplete or has a wrong checksum) is cut off when the log is opened, with
everything after it.

Not thread-safe, except ``sync``. Used on the broker's loop.
"""

from __future__ import annotations

import shutil
import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import RECORDS_PER_STEP, Batch, batches, parse, records_of
from examples.broker.storage.disk import Disk, Fsync
from examples.broker.storage.leader_epochs import UNKNOWN, LeaderEpochs
from examples.broker.storage.producers import ProducerStates
from examples.broker.storage.segment import SEGMENT_FILES, Segment

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.protocol.steps import Steps

NEVER = 1 << 62
_MOST_REMEMBERED = 64 * 1024
_HEAD = struct.Struct(">qii")  # base offset, length, leader epoch
_HEAD_BEFORE_REST = 12  # not counted in a batch's length
_log = structlog.get_logger(__name__)


class Log:
    """An append-only sequence of record batches.

    Args:
        folder: the folder of the segments, created if it does not exist.
        segment_bytes: a segment of this size is followed by a new one.
        fsync: for ``INTERVAL``, the owner calls ``sync``.
        start_offset: the log start that the owner remembers.
        last_epoch: the last leader epoch that the owner remembers, and where it began.
        disk: is notified of errors.
        is_new: remove the old content of the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 64 * 1024 * 1024,
        fsync: Fsync = Fsync.INTERVAL,
        start_offset: int = 0,
        last_epoch: tuple[int, int] = (UNKNOWN, UNKNOWN),
        disk: Disk | None = None,
        is_new: bool = False,
    ) -> None:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.segment_ms = NEVER
        """A record that is so much later than the first of its segment begins a new segment."""
        self.retention_bytes = self.retention_ms = -1
        self.fsync = fsync
        self.producers = ProducerStates()
        self.epochs = LeaderEpochs()
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._disk = disk or Disk(folder)
        self._unsynced: dict[Segment, None] = {}
        """The segments with bytes that must be forced to the disk."""
        self._noted_end = 0
        """The log's end when ``_unsynced`` was last changed."""
        self._cuts = 0
        self._secured = (0, 0)
        """Cuts and end of the log when ``sync`` last began, once it has ended. Set by its thread."""
        self._memo: tuple[tuple[int, int, int], bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._recover(start_offset)
        self.start_offset = min(max(start_offset, self._bases[0]), self.next_offset)
        if last_epoch[1] == self.next_offset:
            self.epochs.begin(*last_epoch)
        # The last process may have been killed before it forced its last batch.
        if fsync is not Fsync.NEVER and self.size:
            self._unsynced[self._segments[-1]] = None
            self._noted_end = self.next_offset
            if fsync is Fsync.ALWAYS:
                self.sync()

    @property
    def next_offset(self) -> int:
        """The offset of the next record: the log's end."""
        return self._segments[-1].next_offset

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def secured_offset(self) -> int:
        """The offset up to which appended records are on the disk. With ``Fsync.NEVER`` they count as if they were."""
        if self.fsync is Fsync.NEVER:
            return self.next_offset
        cuts, end = self._secured
        return end if cuts == self._cuts else 0

    def _recover(self, start_offset: int) -> None:
        reason: str | None = None
        for path in sorted(self.folder.glob(SEGMENT_FILES)):
            base = int(path.stem)
            if reason is None and self._segments and base != self.next_offset:
                reason = f"the segment must begin at {self.next_offset}, got {base}"
            if reason is not None:
                path.unlink()
                continue
            found, reason = self._add_segment(base).recover()
            for batch in found:
                self.producers.appended(batch, batch.base_offset)
                self.epochs.begin(batch.leader_epoch, batch.base_offset)
        if reason is not None:
            _log.warning("log cut", folder=str(self.folder), at=self.next_offset, reason=reason)
        if not self._segments:
            self._add_segment(start_offset)

    def _add_segment(self, base: int) -> Segment:
        last = self._segments[-1] if self._segments else None
        start = last.global_start + last.size if last else 0
        segment = Segment(self.folder, base, global_start=start, is_first=last is None)
        self._segments.append(segment)
        self._bases.append(base)
        return segment

    def append(self, data: bytes, batch: Batch, leader_epoch: int = 0) -> int:
        """Append a producer's batch, which is all of ``data``. Returns the offset of its first record.

        Offset and leader epoch are written into the batch. A batch that is already in the log (see ``producers``) is
        not appended again.

        Raises:
            BrokerError: if the batch is fenced or out of order, or the disk rejects it.
        """
        offset = self.producers.duplicate_of(batch)
        if offset is None:
            offset = self.next_offset
            head = _HEAD.pack(offset, batch.size - _HEAD_BEFORE_REST, leader_epoch)
            self.epochs.begin(leader_epoch, offset)
            try:
                self._write(data, batch, offset, head)
                self._secure(offset)
            except BrokerError as error:
                self.producers.rejected(batch, error.code)
                raise
        return offset

    def append_replicated(self, data: bytes) -> None:
        """Append a leader's batches. Raises BrokerError if they do not continue."""
        start = self.next_offset
        try:
            for batch in batches(data):
                if batch.next_offset <= self.next_offset:
                    continue  # read again from the middle of a batch
                if batch.base_offset != self.next_offset:
                    raise BrokerError(
                        ErrorCode.OFFSET_OUT_OF_RANGE,
                        f"the next batch must begin at {self.next_offset}, got {batch.base_offset}",
                    )
                self.epochs.begin(batch.leader_epoch, batch.base_offset)
                self._write(data[batch.position : batch.position + batch.size], batch, batch.base_offset)
        finally:  # also after an error, because the next fetch acknowledges the batches before it
            self._secure(start)

    def _write(self, data: bytes, batch: Batch, offset: int, head: bytes = b"") -> None:
        self._disk.check()
        segment = self._segments[-1]
        try:
            is_full = segment.size + batch.size > self.segment_bytes
            if segment.size and (is_full or segment.time_to(batch.max_timestamp) > self.segment_ms):
                segment = self._add_segment(segment.next_offset)
            segment.append(data, batch, offset, head)
        except OSError as error:
            self._disk.failed(error, batch.size)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.producers.appended(batch, offset)
        if self.fsync is not Fsync.NEVER:
            self._unsynced[segment] = None
            self._noted_end = self.next_offset

    def _secure(self, start: int) -> None:
        """With ``Fsync.ALWAYS``: force everything from ``start`` on to the disk, or remove it again."""
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
        """Read whole batches of one segment, from the batch with ``offset`` up to the offset ``limit``.

        Returns at least one batch if there is one, otherwise at most ``max_bytes``.

        Raises:
            BrokerError: if the offset is not in the log.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the offset must be {self.start_offset} to {self.next_offset}, got {offset}",
            )
        segment = self._segment_of(offset)
        start, end = segment.position(offset), segment.position(limit)
        if end <= start:
            return b""
        # One append can wake many readers at the same place. Read their bytes once.
        request = (segment.global_start + start, segment.global_start + end, max_bytes)
        if self._memo is not None and self._memo[0] == request:
            return self._memo[1]
        data = segment.read(start, end, max_bytes)
        if len(data) <= _MOST_REMEMBERED:
            self._memo = (request, data)
        return data

    def newest_at(self, offset: int) -> int:
        """Return the newest timestamp up to the batch that holds ``offset``, or -1."""
        return self._segment_of(offset).newest_at(offset)

    def distance(self, offset: int, limit: int) -> int:
        """Return the bytes between two offsets, in whole batches."""
        first, last = self._segment_of(offset), self._segment_of(limit)
        return (last.global_start + last.position(limit)) - (first.global_start + first.position(offset))

    def is_in_older_segment(self, offset: int) -> bool:
        """Whether the offset is before the active segment."""
        return offset < self._bases[-1]

    def offset_for_timestamp(self, timestamp: int, limit: int) -> Steps[tuple[int, int] | None]:
        """Find the first record below ``limit`` with ``timestamp`` or later. Returns its offset and timestamp.

        A batch may have a million records. The log may change between two steps.

        Raises:
            BrokerError: if a batch is damaged inside.
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
        """Return the offset below which records have expired. Only whole segments below ``limit`` expire.

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
        """Move the start of the log to ``offset``. Segments before it are removed."""
        if offset <= self.start_offset:
            return
        self.start_offset = min(offset, self.next_offset)
        while len(self._segments) > 1 and self._segments[0].next_offset <= self.start_offset:
            self._segments.pop(0).delete()
            self._bases.pop(0)

    def truncate_to(self, offset: int) -> None:
        """Remove ``offset`` and everything later, in whole batches. A log that begins later is then empty at it."""
        if offset >= self.next_offset:
            self.epochs.truncate_to(self.next_offset)  # also that of a leader that has written nothing
            return
        if offset < self._bases[0]:
            self.restart_at(offset)
            return
        _log.info("log truncated", folder=str(self.folder), to=offset, end=self.next_offset)
        while len(self._segments) > 1 and self._bases[-1] >= offset:
            self._segments.pop().delete()
            self._bases.pop()
        self._segments[-1].truncate_to(offset)
        self._was_cut()
        self.epochs.truncate_to(self.next_offset)
        self.start_offset = min(self.start_offset, self.next_offset)
        self.producers.truncate_to(self.next_offset)

    def _was_cut(self) -> None:
        self._memo = None
        self._noted_end = min(self._noted_end, self.next_offset)  # first: ``sync`` reads them in the other order
        self._cuts += 1

    def restart_at(self, offset: int) -> None:
        """Remove everything and begin again at ``offset``, because the leader has nothing in common with this log."""
        _log.info("log restarted", folder=str(self.folder), at=offset)
        old = self._segments
        for segment in old:
            segment.path.unlink(missing_ok=True)  # first, because the new segment may have the name of one of them
        self._segments, self._bases = [Segment(self.folder, offset)], [offset]
        self._was_cut()
        for segment in old:
            segment.close()
        self.start_offset = offset
        self.producers = ProducerStates()
        self.epochs = LeaderEpochs()

    def sync(self) -> None:
        """Force appended bytes to the disk. May be called from another thread."""
        secured = self._cuts, self._noted_end
        for segment in list(self._unsynced):
            self._unsynced.pop(segment, None)  # before the call, because an append meanwhile adds it again
            try:
                segment.sync()
            except OSError:
                if segment in self._segments:  # otherwise the loop has removed it
                    self._unsynced[segment] = None
                    raise
        self._secured = secured

    def close(self) -> None:
        """Force everything to the disk, except with ``Fsync.NEVER``, and close the files."""
        try:
            self.sync()
        except OSError as error:
            self._disk.failed(error)
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        for segment in self._segments:
            segment.delete()
        shutil.rmtree(self.folder, ignore_errors=True)
