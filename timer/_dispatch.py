"""Dispatch of due buckets to the executor, which runs each *batch* of them.

Each task of a batch stays in its bucket until the executor *claims* it: removes it from the bucket, under the timer's
lock (in C, the entry's). So either the executor runs the task, or another thread cancels or moves it.

**Exceptions of a task** are reported to the timer's ``on_error`` and stop no other task. ``KeyboardInterrupt`` and
``SystemExit`` on the main thread reach the caller. On any other thread only the task can have raised them, and they are
reported, too. Any exception that leaves a batch makes the rest of it due again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from timer._base import JOIN_ERRORS, Executor, InlineExecutor, report_error
from timer._fork import new_lock
from timer._implementation import native_class
from timer._running import here, numbers, remove, wake, wakes

if TYPE_CHECKING:
    from timer._bucket import TimerTaskList
    from timer._task import TimerTask
    from timer._timer import Clock, SystemTimer

by_deadline = attrgetter("_task_deadline_ns")

#: The number of entries in the histogram of lateness.
POWERS: Final = 64
#: How long to sleep between two checks of whether the batches have ended.
POLL_S: Final = 0.001


@native_class
class Tally:
    """Counts of one call of :meth:`Batch.run`, as in ``TimerStatistics``. ``reached`` includes cancelled tasks."""

    __slots__ = ("failed", "fired", "late_max_ns", "late_ns", "late_sum_ns", "reached")

    def __init__(self) -> None:
        self.reached = self.fired = self.failed = 0
        self.late_ns = [0] * POWERS
        self.late_sum_ns = self.late_max_ns = 0

    def add(self, other: Tally) -> None:
        self.reached += other.reached
        self.fired += other.fired
        self.failed += other.failed
        self.late_sum_ns += other.late_sum_ns
        self.late_max_ns = max(self.late_max_ns, other.late_max_ns)
        self.late_ns = [a + b for a, b in zip(self.late_ns, other.late_ns, strict=True)]

    def count(self, late_ns: int) -> None:
        """Count a task that ran."""
        self.fired += 1
        self.late_ns[min(late_ns.bit_length(), POWERS - 1)] += 1
        self.late_sum_ns += late_ns
        self.late_max_ns = max(self.late_max_ns, late_ns)


class Batch:
    """Due buckets, to be run together in order of deadline. One thread at a time."""

    __slots__ = ("_buckets", "_dispatcher", "_due", "left")

    def __init__(self, dispatcher: Dispatcher, buckets: list[TimerTaskList], count: int) -> None:
        self._dispatcher = dispatcher
        self._buckets = buckets
        self.left = count  # how many tasks it has not come to. Guarded by the dispatcher's lock
        self._due: DueTasks | None = None

    def run(self, most: int = sys.maxsize) -> bool:
        """Run the tasks, or the next ``most`` of them. Returns whether there may be more."""
        tally = Tally()
        more, thread_id = False, None
        try:
            # 1. the dispatcher notes that this thread runs a batch
            thread_id = self._dispatcher.begin()
            # 2. gather the tasks, and run them
            if self._due is None:
                self._due = DueTasks(self._buckets, self._dispatcher.clock, self._dispatcher.contain)
            more = self._due.run_tasks(tally, most)
        except BaseException:
            # 3. after an error, the other tasks run later
            self._dispatcher.requeue(self._buckets)
            raise
        finally:
            # 4. the dispatcher adds the counts
            self._dispatcher.end(tally, self, thread_id, more=more)
        return more


def _gather(buckets: list[TimerTaskList]) -> list[tuple[TimerTaskList, TimerTask]]:
    """All tasks of the buckets in order of deadline. Tasks of one deadline stay in order of arrival."""
    due = [(bucket, task) for bucket in buckets for task in list(bucket)]  # a copy: others cancel
    due.sort(key=lambda pair: pair[1]._task_deadline_ns)
    return due


@native_class
class DueTasks:
    """The tasks of a batch. ``contain`` is called with a task and what it raised."""

    __slots__ = ("_claimed", "_clock", "_contain", "_tasks")

    def __init__(
        self, buckets: list[TimerTaskList], clock: Clock, contain: Callable[[TimerTask, BaseException], object], /
    ) -> None:
        self._tasks = iter(_gather(buckets))
        self._clock = clock
        self._contain = contain
        self._claimed: TimerTask | None = None  # in no bucket, and must be put back after an interrupt

    def run_tasks(self, tally: Tally, most: int, /) -> bool:
        """Claim and run the next ``most`` tasks. Returns whether there may be more."""
        for bucket, task in islice(self._tasks, most):
            now_ns = self._clock()
            tally.reached += 1
            # 1. record the call, before the claim: after an error here, the task is in its bucket
            calls = here.calls
            record = (task, "run", next(numbers))
            calls += (record,)
            try:
                if wakes:
                    wake()
                # 2. claim the task, unless it was cancelled or rescheduled meanwhile
                deadline_ns = self._claim(bucket, task)
                # 3. run it
                if deadline_ns is not None:
                    self._run_task(task, tally, max(0, now_ns - deadline_ns))
            except BaseException:
                self._put_back(bucket, task)
                raise
            finally:
                # 4. remove the record
                if calls[-1] is record:
                    del calls[-1]
                else:
                    remove(calls, record)
        return tally.reached == most

    def _claim(self, bucket: TimerTaskList, task: TimerTask) -> int | None:
        """Remove a task from the bucket, and return its deadline. None if the task is not there any more.

        A signal handler runs only where a function is called or a loop jumps back. So none runs between the lines that
        remove the task and the line that notes it.
        """
        with bucket.lock:
            if task._task_bucket is bucket:
                del bucket[task]
                task._task_bucket = None
                self._claimed = task
                return task._task_deadline_ns
        return None

    def _run_task(self, task: TimerTask, tally: Tally, late_ns: int) -> None:
        try:
            self._claimed = task if task._task_is_owned else None  # only an owned task may run twice
            task.run()
        except BaseException as error:  # contain() raises an interrupt again
            tally.failed += 1
            self._contain(task, error)
            if self._claimed is task and not task._task_is_done:
                raise  # nothing else will run it, so it is put back
        finally:
            tally.count(late_ns)
        self._claimed = None

    def _put_back(self, bucket: TimerTaskList, task: TimerTask) -> None:
        """Undo a claim after an interrupt: of a task that does not run yet, or of one that may run twice."""
        with bucket.lock:
            if self._claimed is task and task._task_bucket is None:
                bucket.put(task)
        if task._task_is_done:  # asked last: what completes it from now on removes it
            task._task_withdraw()
        self._claimed = None


class Dispatcher:
    """Runs due buckets on an executor, or on a thread of its own, and keeps the counts."""

    def __init__(
        self, timer: SystemTimer, executor: Executor | None, on_error: Callable[[TimerTask, BaseException], None]
    ) -> None:
        self._timer = timer
        self._executor = executor
        self._own_executor = executor is None
        self._on_error = on_error
        self._lock = new_lock()
        self._inside: dict[int, int] = {}  # by id of a thread that runs a batch: when the batch began
        self.clock = timer._clock
        self.requeue = timer._requeue  # called with the buckets of a batch that an exception ended
        self.total = Tally()  # of all batches
        self.handed_over = 0  # tasks in batches that are not finished

    def hand_over(self, buckets: list[TimerTaskList]) -> None:
        """Give due buckets to the executor. If it rejects them, run them here."""
        count = sum(map(len, buckets))
        if not count:
            return
        batch = Batch(self, buckets, count)
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self._timer.name}-executor")
            executor = self._executor
            self.handed_over += count
        try:
            try:
                executor.submit(batch.run)
            except Exception:
                if not batch.left:  # it was run here, and raised
                    raise
                InlineExecutor().submit(batch.run)  # the executor is shut down, full, or out of threads
        except BaseException:
            self.end(Tally(), batch, None)
            raise

    def begin(self) -> int | None:
        """Note that this thread runs a batch. Returns its id, or None if a task of another batch called this one."""
        me = threading.get_ident()
        if me in self._inside:
            return None
        self._inside[me] = self.clock()
        return me

    def end(self, tally: Tally, batch: Batch, thread_id: int | None, *, more: bool = False) -> None:
        """Undo :meth:`begin`, and add the counts of one ``Batch.run``: last, because only this step needs memory.

        Without ``more``, the batch is finished.
        """
        if thread_id is not None:
            self._inside.pop(thread_id, None)
        with self._lock:
            done = min(tally.reached, batch.left) if more else batch.left
            batch.left -= done
            self.handed_over -= done
            self.total.add(tally)

    def contain(self, task: TimerTask, error: BaseException) -> None:
        """Report what a task raised. An interrupt of the main thread is raised again instead."""
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise error
        try:
            self._on_error(task, error)
        except Exception as second:  # noqa: BLE001  # a broken error handler must not stop the timer either
            report_error(second)

    def counts(self) -> tuple[Tally, int]:
        """A copy of :attr:`total`, and :attr:`handed_over`, of one moment."""
        total = Tally()
        with self._lock:
            total.add(self.total)
            return total, self.handed_over

    def running_since_ns(self) -> int | None:
        return min(self._inside.copy().values(), default=None)

    def close(self, timeout_s: float | None) -> None:
        """End the own thread after the batches that were handed over, and wait for it up to ``timeout_s``.

        A call from one of the batches does not wait.
        """
        with self._lock:
            if self._own_executor and self._executor is None:
                self._executor = InlineExecutor()  # for a batch that comes later: nothing would end a new thread
        if self._own_executor and isinstance(self._executor, ThreadPoolExecutor):
            self._executor.shutdown(wait=False)
            if threading.get_ident() not in self._inside:
                wait = timeout_s is None or self._ends_within(timeout_s)
                with contextlib.suppress(*JOIN_ERRORS):
                    self._executor.shutdown(wait=wait)

    def _ends_within(self, timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while self.handed_over and time.monotonic() < give_up:
            time.sleep(POLL_S)
        return not self.handed_over

    def after_fork(self) -> None:
        self._inside.clear()
        self.handed_over = 0
        if self._own_executor:
            self._executor = None
