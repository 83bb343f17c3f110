"""From a bounded buffer to a durable folder: the thread that writes journals and traces.

``Journal`` and ``Trace`` are writers, each with rows of its own kind. The hot path does one thing: it adds a row to a
buffer (``_ledger`` has both kinds). Everything else happens on a thread of its own::

    buffer -> take up to ``chunk`` rows -> encode one frame -> write -> (fsync) -> count as written
                                                             full segment -> close -> seal in the background

*Nothing acknowledged is lost or doubled.* If ``flush()`` returns True, all rows that were put before it are
acknowledged. Rows are in the kernel once written, which survives a killed process. ``sync=`` says when they are also
forced to the disk, which survives a power cut. After a failed write, the segment is cut to its last good frame
(``open_segment``).

*A row that cannot be serialized is dropped.* If no frame can be made of a batch, the batch is halved, and its halves,
until the row at fault is alone. That row is counted, logged and dropped. The rest is written.

*The disk never stops the service.* While writing fails, the rows that were taken are kept and retried, and the buffer
fills. Then the policy decides: ``"drop"`` drops new rows and counts them. ``"wait"`` slows the caller down by up to
``patience_ms`` per row, and then drops and counts. Memory is bounded by ``capacity`` rows in both cases. Dropped rows
have no sequence numbers. The next frame says how many there were, or the ``.end`` file of the folder.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from purgatory._closing import Closing
from purgatory._core.log import Log
from purgatory.journal._options import JournalStats, folder_of, options_of
from purgatory.journal._segments import FolderLock, make_folder, recover
from purgatory.journal._segments.open_segment import OpenSegment
from purgatory.journal._segments.sealer import Sealer
from purgatory.journal.records.errors import JournalClosed, JournalMissing
from purgatory.journal.records.folder import check_kind, end, open_name
from purgatory.journal.records.frames import Batch, encode
from timer._fork import call_after_fork, new_condition, new_event, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from purgatory.journal._ledger import Rows
    from purgatory.journal.records import Schema

_log = Log("purgatory.journal")

_RETRY_S: Final = (0.05, 1.0)  # first and longest pause between two tries while writing fails
_CLOSE_S: Final = 30.0


def epoch_now() -> int:
    """Nanoseconds since the epoch at the monotonic clock's zero."""
    return time.time_ns() - time.monotonic_ns()


class FolderWriter(Closing):
    """Owns one folder: its lock, its buffer, its thread, its sequence.

    Args:
        place: the folder, as the caller gave it.
        schema: what is written to it.
        given: the options, as the caller gave them.
        buffer: makes the buffer, with room for so many rows.

    Attributes:
        folder: where it is written.
    """

    def __init__(self, place: object, schema: Schema, given: dict[str, Any], buffer: Callable[[int], Rows]) -> None:
        self._options = options = options_of(given)
        self.folder: Path = folder_of(place)
        folder = self.folder
        make_folder(folder)
        self._buffer = buffer(options.capacity)
        self._epoch_ns = epoch_now()
        unsealed: list[Path] = []
        self._lock = FolderLock(folder)
        try:
            with contextlib.suppress(JournalMissing):  # a new folder
                check_kind(folder, schema)
            self._next = recover(folder, unsealed)
        except BaseException:
            self._lock.close()
            raise
        # Frames to write. With each: how many rows it has, and how many dropped rows it reports.
        self._held: deque[tuple[bytes, int, int]] = deque()
        self._held_rows = 0
        self._failing = False  # whether the last write failed
        self._counting = new_lock()
        self._dropped = self._written = self._bytes = 0
        ended = end(folder)
        self._reported = -ended.dropped if ended.next == self._next else 0  # dropped rows that frames report
        self._write_errors = 0
        self._wake = new_event()
        self._room = new_condition()
        self._flushes: deque[Future[bool]] = deque()
        self._closing = self._ended = False
        self._is_copy = False  # in a forked child
        self._sealer = Sealer(folder, options, f"{schema.name}-sealer", unsealed)
        seal = partial(self._sealer.submit, self._sealer.seal)
        self._segment = OpenSegment(folder, options, seal, self._write_failed)
        self._thread = threading.Thread(target=self._run, name=f"{schema.name}-writer", daemon=True)
        call_after_fork(self)  # before its thread runs: a forked child then finds everything that it closes
        self._thread.start()

    @abstractmethod
    def _batch(self, rows: Any, first: int) -> Batch:
        """The rows that the buffer gave, of which the first has this number, to be encoded."""

    @staticmethod
    @abstractmethod
    def _part(rows: Any, start: int, stop: int) -> Any:
        """Some of the rows that the buffer gave."""

    # Called from any thread.

    def _refuse(self, row: Sequence[Any]) -> None:
        """Wait until the full buffer has room for a row, or drop the row, as ``when_full`` says."""
        if not self._closing and self._options.when_full == "wait":
            self._wake.set()
            limit = time.monotonic() + self._options.patience_ms / 1000
            with self._room:
                while len(self._buffer) >= self._options.capacity and not self._closing:
                    left = limit - time.monotonic()
                    if left <= 0:
                        break
                    self._room.wait(left)
            if not self._closing and self._buffer.put(row):
                return
        self._count_dropped(1)

    def _lose(self, rows: int, problem: Exception) -> None:
        """Count and log rows that can never be written."""
        _log.error("journal.rows_refused", folder=str(self.folder), rows=rows, error=repr(problem))
        self._count_dropped(rows)

    def _count_dropped(self, rows: int) -> None:
        """Count rows that are not written. The caller logs the reason."""
        with self._counting:
            self._dropped += rows

    def flush(self, timeout_s: float | None = 10.0) -> bool:
        """Wait until all rows that were put before this call are written. Return False if that did not happen in time.

        It also returns False if the journal is closed meanwhile and these rows could not be written.
        """
        if self._closing:
            raise JournalClosed(self.folder)
        done: Future[bool] = Future()
        self._flushes.append(done)
        self._wake.set()
        if self._ended:  # the writer's thread has already answered every flush that it found
            return False
        try:
            return done.result(timeout_s)
        except TimeoutError:
            return False

    def close(self) -> JournalStats:
        """Write the remaining rows, seal the last segment and release the folder. Calling it again does nothing.

        If that takes longer than half a minute, the folder stays locked until it is done.
        """
        if self._is_copy:
            return self.stats()
        if not self._closing:
            self._closing = True
            self._wake.set()
            with self._room:
                self._room.notify_all()
        self._thread.join(_CLOSE_S)
        return self.stats()

    def after_fork(self) -> None:  # no caller of a journal needs it
        # A forked child has no thread of its parent, so this copy of the journal is closed. The parent writes the rows
        # that wait. Rows of the child's operations are counted as dropped.
        self._is_copy = self._closing = True
        self._lock.close()  # the child's copy: the parent keeps its own
        self._buffer.after_fork()

    def stats(self) -> JournalStats:
        """The counters now. Rows that were put after the end are never written, and so they are dropped."""
        buffered = 0 if self._is_copy else len(self._buffer) + self._held_rows
        with self._counting:
            return JournalStats(
                self._written,
                self._dropped + (buffered if self._ended else 0),
                0 if self._ended else buffered,
                self._write_errors,
                self._sealer.errors,
                self._sealer.sealed,
                self._bytes,
                self._sealer.deleted,
                self._sealer.deleted_bytes,
            )

    # Called from the writer's thread.

    def _run(self) -> None:
        try:
            self._write_until_closed()
        finally:
            self._ended = True
            while self._flushes:
                self._flushes.popleft().set_result(False)
            self._sealer.shutdown()
            self._lock.close()

    def _write_until_closed(self) -> None:
        pause = interval = self._options.interval_ms / 1000
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            closing = self._closing  # read before draining: rows that were put before close() are then in the buffer
            waiting = [self._flushes.popleft() for _ in range(len(self._flushes))]
            if self._drain():
                pause = interval
                self._settle(waiting, closing=closing)
            else:
                pause = min(max(pause * 2, _RETRY_S[0]), _RETRY_S[1])
                self._flushes.extend(waiting)
            if closing:
                self._give_up()
                return

    def _drain(self) -> bool:
        """Write the rows that are in the buffer now. Return False if a write failed."""
        left = len(self._buffer)
        while self._write_held() and left > 0:
            count = min(left, self._options.chunk)
            rows = self._take(count)
            left -= count
            if self._options.when_full == "wait":
                with self._room:
                    self._room.notify_all()
            if rows is not None:
                self._hold(rows, count)
        return not self._held

    def _take(self, count: int) -> Any:
        """Take rows from the buffer. Return None if that fails. The rows are then dropped and counted."""
        try:
            return self._buffer.take(count)
        except Exception as error:  # the thread must survive to write the next rows  # noqa: BLE001
            self._lose(self._buffer.drop(count), error)
            return None

    def _hold(self, rows: Any, count: int) -> None:
        """Make frames of rows. Rows that can never be written are dropped, counted and logged."""
        refused: list[Exception] = []
        for frame, held, dropped in self._frames(rows, count, refused):
            self._held.append((frame, held, dropped))
            self._held_rows += held
        if refused:
            self._lose(len(refused), refused[0])

    def _frames(self, rows: Any, count: int, refused: list[Exception]) -> Iterator[tuple[bytes, int, int]]:
        """One frame, how many rows it has, and how many dropped rows it reports. If a row spoils it, two halves."""
        try:
            dropped = self._dropped - self._reported
            frame = encode(self._batch(rows, self._next + self._held_rows), dropped=dropped)
        except Exception as error:  # for example, a key whose repr raises  # noqa: BLE001
            if count == 1:
                refused.append(error)
                return
        else:
            self._reported += dropped
            yield frame, count, dropped
            return
        for start, stop in ((0, count // 2), (count // 2, count)):
            yield from self._frames(self._part(rows, start, stop), stop - start, refused)

    def _write_held(self) -> bool:
        """Write the frames that were made. Return False if a write failed. That frame and those after it are kept."""
        while self._held:
            frame, count, _ = self._held[0]
            try:
                self._segment.append(frame, self._next)
            except OSError as error:
                self._write_failed(error)
                return False
            self._failing = False
            self._held.popleft()
            self._held_rows -= count
            self._next += count
            with self._counting:
                self._written += count
                self._bytes += len(frame)
            if self._segment.is_full or self._segment.is_aged:
                self._segment.close()
        return True

    def _write_failed(self, error: OSError) -> None:
        """Count the error. Log it, unless the last write failed too."""
        if not self._failing:
            _log.warning("journal.disk_refuses", folder=str(self.folder), error=str(error))
        self._failing = True
        with self._counting:
            self._write_errors += 1

    def _settle(self, waiting: list[Future[bool]], *, closing: bool) -> None:
        """Acknowledge flushes once their rows are on the disk, and close a segment that is old enough."""
        if waiting and self._options.sync == "flush" and not self._segment.sync():
            self._flushes.extend(waiting)  # not acknowledged: the next round tries again
            waiting = []
        for done in waiting:
            done.set_result(True)
        sealing = self._segment.exists and (closing or self._segment.is_aged)
        if sealing:
            self._segment.close()
        self._sealer.tend(closing=closing, sealing=sealing)

    def _give_up(self) -> None:
        """Try to write the rest once more. Count the rows that could not be written as dropped."""
        self._drain()
        self._segment.close()
        rest = self._buffer.drop(len(self._buffer)) + self._held_rows
        while self._held:
            self._reported -= self._held.popleft()[2]
        self._held_rows = 0
        if rest:
            _log.error("journal.rows_lost", folder=str(self.folder), rows=rest)
            self._count_dropped(rest)
        self._sealer.submit(self._end)

    def _end(self) -> None:
        """The last task of the sealer's thread: write how many dropped rows no frame reports."""
        with contextlib.suppress(OSError):
            (self.folder / open_name(self._next)).unlink()  # none of its rows was acknowledged
        self._sealer.leave_end(self._next, self._dropped - self._reported)
