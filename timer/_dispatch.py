"""What becomes of tasks whose time has come: handed to an executor a batch at a time, claimed one by one, and run.

A batch is a list of closed buckets. Its tasks stay in them until the moment each is run, so that a task can still be
cancelled, or moved, while those before it run. Claiming is ``bucket.pop``: one of the executor and a canceller gets it.

**What a task raises** is handed to ``on_error`` and stops nobody else. ``KeyboardInterrupt`` and ``SystemExit`` on the
main thread are the caller's own and go through; the rest of the batch is put back first. On any other thread they can
only have come from the task, and are contained too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from timer._base import Submits, report_task_error
from timer._clock import NS_PER_MS
from timer._task import MISSING

if TYPE_CHECKING:
    from timer._bucket import TimerTaskList
    from timer._clock import Clock
    from timer._task import TimerTask

__all__ = ["Dispatcher", "by_deadline"]

by_deadline = attrgetter("_deadline_ns")

_POWERS: Final = 64


class Dispatcher:
    """Runs due buckets on an executor, and keeps count.

    Args:
        name: names the thread, if one has to be made.
        executor: where to run; a thread of the dispatcher's own, made when first needed, if None.
        clock: the timer's clock.
        on_error: told of what a task raises.
        put_back: takes the batch that a caller's own ``KeyboardInterrupt`` broke off.

    Attributes:
        fired: tasks run.
        failed: tasks that raised.
        late_ns: counts of lateness by power of two of nanoseconds.
        late_sum_ns: the sum of it.
        late_max_ns: the most of it.
        handed_over: tasks in batches that are not finished.
    """

    __slots__ = (
        "_clock",
        "_executor",
        "_inside",
        "_lock",
        "_name",
        "_on_error",
        "_own_executor",
        "_put_back",
        "failed",
        "fired",
        "handed_over",
        "late_max_ns",
        "late_ns",
        "late_sum_ns",
    )

    def __init__(
        self,
        name: str,
        executor: Submits | None,
        clock: Clock,
        on_error: Callable[[TimerTask, BaseException], None],
        put_back: Callable[[list[TimerTaskList]], None],
    ) -> None:
        self._name = name
        self._executor = executor
        self._own_executor = executor is None
        self._clock = clock
        self._on_error = on_error
        self._put_back = put_back
        self._lock = threading.Lock()
        self._inside: dict[int, int] = {}  # the threads that run a batch, and since when
        self.fired = 0
        self.failed = 0
        self.late_ns = [0] * _POWERS
        self.late_sum_ns = 0
        self.late_max_ns = 0
        self.handed_over = 0

    def hand_over(self, batch: list[TimerTaskList]) -> None:
        """Give due buckets to the executor; if it refuses, run them here: late is better than lost."""
        count = sum(map(len, batch))
        if not count:
            return
        with self._lock:
            self.handed_over += count
        try:
            self._executor_now().submit(self.run, batch, count)
        except Exception:  # noqa: BLE001  # shut down, full, no thread to be had: whatever an executor raises
            self.run(batch, count)

    def run(self, batch: list[TimerTaskList], count: int) -> None:
        """Run what is in due buckets, in order of deadline. On the executor's thread."""
        tasks = sorted((task for bucket in batch for task in bucket.copy()), key=by_deadline)
        late_ns = [0] * _POWERS
        fired = failed = late_sum = late_max = 0
        clock = self._clock
        me = threading.get_ident()
        self._inside[me] = clock()
        try:
            for task in tasks:
                bucket = task._bucket
                deadline_ns = task._deadline_ns
                # Unless it was cancelled since its bucket came due, or added again elsewhere: ours, once it is popped.
                if bucket is not None and bucket.closed and bucket.pop(task, MISSING) is not MISSING:
                    late = clock() - deadline_ns
                    if task._delay_ms < 0:
                        late += task._delay_ms * NS_PER_MS  # was due when it was added, not before
                    late_ns[min(late.bit_length(), _POWERS - 1)] += 1
                    late_sum += late
                    if late > late_max:  # noqa: PLR1730  # max() is a call
                        late_max = late
                    fired += 1
                    try:
                        task.run()
                    except BaseException as error:
                        failed += 1
                        if not isinstance(error, Exception) and _is_main_thread():
                            self._put_back(batch)
                            raise
                        self._report(task, error)
        finally:
            self._inside.pop(me, None)
            with self._lock:
                self.handed_over -= count
                self.fired += fired
                self.failed += failed
                self.late_sum_ns += late_sum
                self.late_max_ns = max(self.late_max_ns, late_max)
                self.late_ns = [a + b for a, b in zip(self.late_ns, late_ns, strict=True)]

    def running_since_ns(self) -> int | None:
        """When the batch that has run longest was begun; None if none runs."""
        return min(self._inside.copy().values(), default=None)

    def close(self) -> None:
        """Let the batches that were handed over run to their end, unless called from one of them, and end the thread.

        An executor that was given is its owner's to close.
        """
        with self._lock:
            executor = self._executor
        if self._own_executor and isinstance(executor, Executor):
            executor.shutdown(wait=threading.get_ident() not in self._inside)

    def _executor_now(self) -> Submits:
        executor = self._executor
        if executor is None:
            with self._lock:
                executor = self._executor
                if executor is None:
                    executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-executor")
                    self._executor = executor
        return executor

    def _report(self, task: TimerTask, error: BaseException) -> None:
        try:
            self._on_error(task, error)
        except Exception as second:  # noqa: BLE001  # a broken error handler must not stop the timer either
            report_task_error(task, second)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
