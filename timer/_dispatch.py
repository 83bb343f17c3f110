"""The way from the wheel to the executor: due buckets are handed over as a batch, and what became of them is counted.

If the executor refuses, the batch is run here and now: late is better than lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

from timer._base import Submits, report_task_error
from timer._batch import Batch, Tally
from timer._fork import new_lock

if TYPE_CHECKING:
    from timer._bucket import TimerTaskList
    from timer._clock import Clock
    from timer._task import TimerTask

__all__ = ["Dispatcher"]


class Dispatcher:
    """Runs due buckets on an executor, and keeps count.

    Args:
        name: names the thread, if one has to be made.
        executor: where to run; a thread of the dispatcher's own, made when first needed, if None.
        clock: the timer's clock.
        on_error: told of what a task raises.
        put_back: takes the buckets that a caller's own ``KeyboardInterrupt`` broke off.

    Attributes:
        clock: the timer's clock.
        total: what all batches came to.
        handed_over: tasks in batches that are not finished.
    """

    __slots__ = (
        "_executor",
        "_inside",
        "_lock",
        "_name",
        "_on_error",
        "_own_executor",
        "_put_back",
        "clock",
        "handed_over",
        "total",
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
        self._on_error = on_error
        self._lock = new_lock()
        self._inside: dict[int, int] = {}  # the threads that run a batch, and since when
        self.clock = clock
        self._put_back = put_back
        self.total = Tally()
        self.handed_over = 0

    def hand_over(self, buckets: list[TimerTaskList]) -> None:
        """Give due buckets to the executor; if it refuses, run them here."""
        batch = self._batch(buckets)
        if batch:
            try:
                self._executor_now().submit(batch.run)
            except Exception:  # noqa: BLE001  # shut down, full, no thread to be had: whatever an executor raises
                batch.run()

    def run(self, buckets: list[TimerTaskList]) -> None:
        """Run what is in due buckets, on this thread."""
        self._batch(buckets).run()

    def _batch(self, buckets: list[TimerTaskList]) -> Batch:
        batch = Batch(self, buckets)
        with self._lock:
            self.handed_over += len(batch)
        return batch

    def begin(self) -> bool:
        """This thread begins to run a batch; whether it is the outermost, and not run by a task of another."""
        me = threading.get_ident()
        outermost = me not in self._inside
        if outermost:
            self._inside[me] = self.clock()
        return outermost

    def end(self, tally: Tally, done: int, outermost: bool) -> None:
        """It came to ``tally``, and ``done`` tasks fewer are handed over."""
        if outermost:
            self._inside.pop(threading.get_ident(), None)
        with self._lock:
            self.handed_over -= done
            self.total.add(tally)

    def contain(self, task: TimerTask, error: BaseException, buckets: list[TimerTaskList]) -> None:
        """Tell the timer's owner what a task raised; the caller's own goes through, and the rest is put back."""
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            self._put_back(buckets)
            raise error
        try:
            self._on_error(task, error)
        except Exception as second:  # noqa: BLE001  # a broken error handler must not stop the timer either
            report_task_error(task, second)

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

    def after_fork(self) -> None:
        """Forget, in a forked child, the threads and what was handed over to them."""
        self._inside.clear()
        self.handed_over = 0
        if self._own_executor:
            self._executor = None

    def _executor_now(self) -> Submits:
        executor = self._executor
        if executor is None:
            with self._lock:
                executor = self._executor
                if executor is None:
                    executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-executor")
                    self._executor = executor
        return executor
