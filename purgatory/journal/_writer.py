"""From a bounded buffer to a durable folder: the thread that writes journals and traces.

The hot path does one thing: it adds a row to a buffer (`_ledger` has both kinds). Everything else happens on a thread
of its own::

    buffer -> take up to `chunk` rows -> encode one frame -> write -> (fsync) -> count as written
                                                             full segment -> close -> seal in the background

*Nothing acknowledged is lost or doubled.* If `flush()` returns True, all rows that were put before it are acknowledged.
Rows are in the kernel once written, which survives a killed process. `sync=` says when they are also forced to the
disk, which survives a power cut. A frame is written whole or cut off: after a failed write, the file is truncated to
the last good frame before anything follows.

*A row that cannot be serialized is dropped.* If no frame can be made of a batch, the batch is halved, and its halves,
until the row at fault is alone. That row is counted, logged and dropped. The rest is written.

*The disk never stops the service.* While writing fails, the rows that were taken are kept and retried, and the buffer
fills. Then the policy decides: `"drop"` drops new rows and counts them. `"wait"` slows the caller down by up to
`patience_ms` per row, and then drops and counts. Memory is bounded by `capacity` rows in both cases. Dropped rows have
no sequence numbers. The next frame says how many there were, or the `.end` file of the folder.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from purgatory._events.log import Log
from purgatory.journal._options import File, JournalStats, Options
from purgatory.journal.records.errors import JournalClosed
from purgatory.journal.records.folder import end, open_name, segment_of
from purgatory.journal.records.frames import Batch, encode
from purgatory.journal.retention import retain
from purgatory.journal.segments import (
    FOLDER_MODE,
    FolderLock,
    check_schema,
    is_sealed,
    leave_end,
    recover,
    seal,
    sync_folder,
)
from timer._fork import call_after_fork, new_condition, new_event, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from purgatory.journal.records import Schema

_log = Log("purgatory.journal")

_RETAIN_EVERY_S: Final = 60.0  # segments age also while none is sealed
_SEAL_AGAIN_S: Final = 10.0  # what could not be sealed is tried again so often, and with each segment that is full
_RETRY_S: Final = (0.05, 1.0)  # first and longest pause between two tries while the disk refuses


class Buffer(Protocol):
    """The buffer of rows. Any thread may put. The writer takes and drops. A `take` that raises removes no row."""

    def __len__(self) -> int: ...
    def put(self, row: Sequence[Any], /) -> bool: ...
    def take(self, most: int, /) -> Any: ...
    def drop(self, most: int, /) -> int: ...
    def start_over(self) -> None: ...


class FolderWriter:
    """Owns one folder: its lock, its buffer, its thread, its sequence."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        buffer: Buffer,
        to_batch: Callable[[Any, int], Batch],
        options: Options,
        *,
        part: Callable[[Any, int, int], Any],
    ) -> None:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self.folder = folder
        self.options = options
        self._buffer = buffer
        self._schema = schema
        self._to_batch = to_batch
        self._part = part
        self._unsealed: list[
            Path
        ] = []  # retried once the disk has space; after the start, used by the sealer's thread alone
        self._lock = FolderLock(folder)
        try:
            check_schema(folder, schema)
            self._next = recover(folder, self._unsealed)
        except BaseException:
            self._lock.release()
            raise
        self._file: File | None = None
        self._path = folder
        self._size = 0
        self._opened_at = 0.0
        self._held: deque[tuple[bytes, int, int]] = deque()  # frames not written yet, their rows, and what they tell
        self._held_rows = 0
        self._refused = False  # whether it has just refused one
        self._counting = new_lock()
        self._dropped = self._written = self._bytes = 0
        ended = end(folder)
        self._told = -ended.dropped if ended.next == self._next else 0  # of those dropped, how many a frame tells of
        self._write_errors = self._seal_errors = self._sealed = 0
        self._deleted = self._deleted_bytes = 0
        self._retaining = options.retain_bytes is not None or options.retain_seconds is not None
        self._retain_at = self._seal_at = 0.0
        self._wake = new_event()
        self._room = new_condition()
        self._flushes: deque[threading.Event] = deque()
        self._closing = False
        self._is_copy = False  # in a forked child
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix=f"{schema.name}-sealer")
        self._thread = threading.Thread(target=self._run, name=f"{schema.name}-writer", daemon=True)
        call_after_fork(self)  # whole, and before its thread runs: a forked child finds all that it closes
        self._thread.start()

    # ---- called from any thread
    # -------------------------------------------------------------------------------------

    def refuse(self, row: Sequence[Any]) -> None:
        """Take a row for which the buffer had no room, by the policy."""
        if not self._closing and self.options.when_full == "wait":
            self._wake.set()
            limit = time.monotonic() + self.options.patience_ms / 1000
            with self._room:
                while len(self._buffer) >= self.options.capacity and not self._closing:
                    left = limit - time.monotonic()
                    if left <= 0:
                        break
                    self._room.wait(left)
            if not self._closing and self._buffer.put(row):
                return
        self.count_dropped(1)

    def lose(self, rows: int, problem: Exception) -> None:
        """Count and log rows that can never be written."""
        _log.error("journal.rows_refused", folder=str(self.folder), rows=rows, error=repr(problem))
        self.count_dropped(rows)

    def count_dropped(self, rows: int) -> None:
        """Count rows that are not written. The caller logs the reason."""
        with self._counting:
            self._dropped += rows

    def flush(self, timeout_s: float | None = 10.0) -> bool:
        """Wait until all that was put before this call is written; False if that took too long."""
        if self._closing:
            raise JournalClosed(self.folder)
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 30.0) -> JournalStats:
        """Write the remaining rows, seal the last segment and release the folder. Calling it again does nothing."""
        if self._is_copy:
            return self.stats()
        if not self._closing:
            self._closing = True
            self._wake.set()
            with self._room:
                self._room.notify_all()
        self._thread.join(timeout_s)
        self._sealer.shutdown(wait=True)
        self._lock.release()
        return self.stats()

    def after_fork(self) -> None:
        """Close this copy of the journal, because a forked child has none of its threads.

        The parent writes the rows that wait. Rows of the child's operations are counted as dropped.
        """
        self._is_copy = self._closing = True
        self._lock.release()  # its copy: the parent's stays, and is free when the parent is gone
        self._buffer.start_over()

    def stats(self) -> JournalStats:
        """The counters now."""
        with self._counting:
            return JournalStats(
                self._written,
                self._dropped,
                0 if self._is_copy else len(self._buffer) + self._held_rows,
                self._write_errors,
                self._seal_errors,
                self._sealed,
                self._bytes,
                self._deleted,
                self._deleted_bytes,
            )

    # ---- the writer's thread
    # ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = interval = self.options.interval_ms / 1000
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            closing = self._closing  # read before draining: what was put before close() is then in the buffer
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
        """Write what was in the buffer when we came; False if the disk refused."""
        left = len(self._buffer)
        while self._write_held() and left > 0:
            count = min(left, self.options.chunk)
            rows = self._take(count)
            left -= count
            if self.options.when_full == "wait":
                with self._room:
                    self._room.notify_all()
            if rows is not None:
                self._hold(rows, count)
        return not self._held

    def _take(self, count: int) -> Any:
        """So many rows as the buffer gives them; None if it can't, and then they are lost, and counted."""
        try:
            return self._buffer.take(count)
        except Exception as error:  # whatever it is, this thread goes on: it has the next rows to write  # noqa: BLE001
            self.lose(self._buffer.drop(count), error)
            return None

    def _hold(self, rows: Any, count: int) -> None:
        """Make frames of rows. Rows that can never be written are dropped, counted and logged."""
        refused: list[Exception] = []
        for frame, held, dropped in self._frames(rows, count, refused):
            self._held.append((frame, held, dropped))
            self._held_rows += held
        if refused:
            self.lose(len(refused), refused[0])

    def _frames(self, rows: Any, count: int, refused: list[Exception]) -> Iterator[tuple[bytes, int, int]]:
        """One frame, its rows, and the dropped rows that it reports. If a row spoils it, those of its halves."""
        try:
            dropped = self._dropped - self._told
            frame = encode(self._to_batch(rows, self._next + self._held_rows), dropped=dropped)
        except Exception as error:  # for example, a key whose repr raises  # noqa: BLE001
            if count == 1:
                refused.append(error)
                return
        else:
            self._told += dropped
            yield frame, count, dropped
            return
        for start, stop in ((0, count // 2), (count // 2, count)):
            yield from self._frames(self._part(rows, start, stop), stop - start, refused)

    def _write_held(self) -> bool:
        """Write the frames that were made; False if the disk refused one, which is then kept with those after it."""
        while self._held:
            frame, count, _ = self._held[0]
            try:
                self._append(frame)
            except OSError as error:
                if not self._refused:
                    _log.warning("journal.disk_refuses", folder=str(self.folder), error=str(error))
                self._refused = True
                with self._counting:
                    self._write_errors += 1
                return False
            self._refused = False
            self._held.popleft()
            self._held_rows -= count
            self._next += count
            with self._counting:
                self._written += count
                self._bytes += len(frame)
            if (
                self._size >= self.options.segment_bytes
                or time.monotonic() - self._opened_at > self.options.segment_seconds
            ):
                self._roll()
        return True

    def _append(self, frame: bytes) -> None:
        if self._file is None:
            self._path = self.folder / open_name(self._next)
            self._file = self.options.open_file(self._path)
            self._size = 0
            self._opened_at = time.monotonic()
        try:
            done = 0
            while done < len(frame):
                done += self._file.write(frame[done:] if done else frame) or 0
            if self.options.sync == "always":
                os.fsync(self._file.fileno())
        except OSError:
            self._cut()
            raise
        self._size += len(frame)

    def _cut(self) -> None:
        """Cut off a half-written frame. If that fails too, close the segment with its torn tail."""
        file = self._file
        assert file is not None
        try:
            file.truncate(self._size)
            file.seek(self._size)
        except OSError:
            self._roll()

    def _settle(self, waiting: list[threading.Event], *, closing: bool) -> None:
        if waiting and self._file is not None and self.options.sync == "flush":
            try:
                os.fsync(self._file.fileno())
            except OSError:
                with self._counting:
                    self._write_errors += 1
                self._flushes.extend(waiting)  # not acknowledged: the next round tries again
                return
        for done in waiting:
            done.set()
        aged = self._file is not None and time.monotonic() - self._opened_at > self.options.segment_seconds
        if self._file is not None and (closing or aged):
            self._roll()  # and the sealer tries what it could not seal before, too
        elif self._unsealed and (closing or time.monotonic() >= self._seal_at):
            self._seal_at = time.monotonic() + _SEAL_AGAIN_S
            with contextlib.suppress(RuntimeError):  # shut down: the next start tries
                self._sealer.submit(self._seal)
        if self._retaining and (closing or time.monotonic() >= self._retain_at):
            self._retain_at = time.monotonic() + min(_RETAIN_EVERY_S, self.options.retain_seconds or _RETAIN_EVERY_S)
            with contextlib.suppress(RuntimeError):  # shut down
                self._sealer.submit(self._retain)

    def _roll(self) -> None:
        """Close the segment. The sealer's thread does the rest."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            if self.options.sync != "never":
                os.fsync(file.fileno())
        with contextlib.suppress(OSError):
            file.close()
        if not self._size:
            return  # nothing of it was acknowledged, and the next try writes the file again, under the same name
        with contextlib.suppress(RuntimeError):  # shut down: the next start seals it
            self._sealer.submit(self._seal, self._path)

    def _seal(self, *paths: Path) -> None:
        """Seal these, and segments that could not be sealed before. Runs on the sealer's thread."""
        before, self._unsealed = self._unsealed, []
        sealed = None
        for path in (*before, *paths):
            try:
                sealed = seal(path, parquet=self.options.parquet)
            except Exception as error:  # the open segment stays readable, and is tried again  # noqa: BLE001
                if is_sealed(path):  # another process sealed it: `purgatory journal seal`
                    continue
                self._unsealed.append(path)
                if path in paths:
                    _log.error("journal.seal_failed", segment=path.name, error=repr(error))
                with self._counting:
                    self._seal_errors += 1
                continue
            with self._counting:
                self._sealed += 1
        if sealed is not None and not self._unsealed and (segment := segment_of(sealed)) and segment.last is not None:
            self._leave_end(segment.last + 1)
        if self._retaining:
            self._retain()

    def _retain(self) -> None:
        """Delete segments that are too old or beyond the size. Runs on the sealer's thread."""
        options = self.options
        try:
            gone = retain(self.folder, most_bytes=options.retain_bytes, most_seconds=options.retain_seconds)
        except OSError as error:
            _log.warning("journal.retention_failed", folder=str(self.folder), error=str(error))
            with self._counting:
                self._seal_errors += 1
            return
        with self._counting:
            self._deleted += gone.segments
            self._deleted_bytes += gone.bytes

    def _give_up(self) -> None:
        """On the way out: one last look, then what could not be written is counted as dropped."""
        self._drain()
        self._roll()
        rest = self._buffer.drop(len(self._buffer)) + self._held_rows
        while self._held:
            self._told -= self._held.popleft()[2]
        self._held_rows = 0
        if rest:
            _log.error("journal.rows_lost", folder=str(self.folder), rows=rest)
            self.count_dropped(rest)
        with contextlib.suppress(RuntimeError):  # shut down: the caller of close() has waited long enough
            self._sealer.submit(self._end)
        with contextlib.suppress(OSError):
            sync_folder(self.folder)

    def _end(self) -> None:
        """The sealer's last: what no frame tells of stands in the folder."""
        with contextlib.suppress(OSError):
            (self.folder / open_name(self._next)).unlink()  # no row of it was ever taken
        self._leave_end(self._next, self._dropped - self._told)

    def _leave_end(self, following: int, dropped: int = 0) -> None:
        with contextlib.suppress(OSError):  # a full disk: the folder goes at least as far as was said before
            leave_end(self.folder, following, dropped)
