"""The timer: adds tasks to a wheel, waits for what comes due, and hands it to an executor.

**Flow of an expiry**: a driver (usually a :class:`~timer.SystemTimerReaper`) sleeps in
:meth:`SystemTimer.advance_clock` until the next occupied bucket -> the bucket is closed and taken out -> its tasks
cascade, or are due -> everything due goes to the executor as one batch -> the executor claims each task and runs it,
in order of deadline.

**Never early.** A task's due tick is its deadline rounded *up*, and a bucket is flushed when the clock, read after
waking, has reached its first tick. So a task runs between 0 and ``tick_ms`` after its deadline, plus the time it takes
to wake the reaper and to get to the task.

**Who has what.** The wheel has the buckets that wait, the :class:`~timer._cascade.Cascade` those that are being emptied
into finer ones, the :class:`~timer._dispatch.Dispatcher` what was handed over, and :class:`~timer._intake.Intake` the
way in.

**Locks.** One lock, the timer's, around the wheel's structure: making, closing and taking out buckets, moving the hand,
cascading (a slice at a time), putting off. It is a leaf: nothing is called with it held but the clock. Adding to a
bucket that exists and cancelling don't take it (``timer._wheel`` says why that is safe). No task runs with it held.

**Rejected.** A condition variable a task or a queue a task to the executor: a wake-up costs more than the task. A
thread per timer that also runs the tasks: a slow one would hold up all others' expiry; someone whose tasks are quick
may say so with ``executor=InlineExecutor()`` and saves the hand-over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timer._base import Submits, Timer, TimerStatistics, report_task_error
from timer._batch import by_deadline
from timer._cascade import SLICE, Cascade
from timer._clock import NS_PER_MS, Clock
from timer._dispatch import Dispatcher
from timer._errors import DelayTypeError, TimerConfigError
from timer._fork import call_after_fork
from timer._intake import Intake
from timer._task import MISSING, TimerTask, checked_delay_ms

if TYPE_CHECKING:
    from typing import Final

    from timer._bucket import TimerTaskList
    from timer._reaper import Driver

__all__ = ["SystemTimer"]

#: How long a driver rests between two slices of a cascade, so that the executor gets the interpreter.
REST_S: Final = 0.0001


class SystemTimer(Intake, Timer):
    """A timer on a hierarchical wheel, driven by whoever calls :meth:`advance_clock`.

    Args:
        name: names its threads and its errors.
        tick_ms: how finely time is told apart. A task runs up to this much late, never early.
        wheel_size: how many buckets of one level a bucket of the next spans.
        clock: monotonic nanoseconds; ``time.monotonic_ns`` if not given.
        executor: where due tasks run, as one call a batch; a thread of the timer's own if not given. One that is
            given is not shut down with the timer.
        max_pending: refuse to hold more tasks than this.
        on_error: told of whatever a task raises.

    Raises:
        TimerConfigError: a setting that cannot work.

    >>> from timer import ManualClock, InlineExecutor
    >>> clock = ManualClock()
    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")
    >>> with SystemTimer(clock=clock, executor=InlineExecutor()) as timer:
    ...     timer.add(Ping(20))
    ...     clock.advance(20)
    ...     timer.advance_clock(0)
    ping
    True
    """

    __slots__ = ("__weakref__", "_cascade", "_dispatcher", "_driver", "_rest_s")

    def __init__(
        self,
        name: str = "timer",
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        clock: Clock | None = None,
        executor: Submits | None = None,
        max_pending: int | None = None,
        on_error: Callable[[TimerTask, BaseException], None] | None = None,
    ) -> None:
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise TimerConfigError("executor", executor, "an executor with a submit(fn, *args) method")
        super().__init__(name, tick_ms, wheel_size, clock, max_pending)
        self._cascade = Cascade(self._wheel, self._lock, self._origin_ns, self._tick_ns)
        self._dispatcher = Dispatcher(name, executor, self._clock, on_error or report_task_error, self._put_back)
        self._driver: Driver | None = None
        self._rest_s = REST_S
        call_after_fork(self)

    def after_fork(self) -> None:
        """Forget, in a forked child, the threads that slept, and what was handed over: it is the parent's to run."""
        self._sleepers = 0
        self._free_locks(self._waiting())
        self._dispatcher.after_fork()

    # -- expiring

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for a bucket to come due, and hand its tasks to the executor.

        Sleeps until the next bucket that holds something, and looks again when an earlier one appears.

        Returns:
            True if a bucket expired; False if the time passed, or the timer was shut down, without.
        """
        if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, (int, float)):
            raise DelayTypeError(timeout_ms)
        return self._advance(self._clock() + checked_delay_ms(timeout_ms) * NS_PER_MS, None)

    def advance_until(self, stopped: Callable[[], bool]) -> bool:
        """Wait for a bucket to come due, and expire it, or for ``stopped()``, which is asked with the lock held."""
        return self._advance(None, stopped)

    def _advance(self, until_ns: int | None, stopped: Callable[[], bool] | None) -> bool:
        """Wait until something is due, ``until_ns``, or ``stopped()``."""
        expired = False
        with self._changed:
            while True:
                if self._closed or (stopped is not None and stopped()):
                    return expired
                upcoming = self._wheel.next_tick()
                now_ns = self._clock()
                due_ns = None if upcoming is None else self._origin_ns + upcoming * self._tick_ns
                due = due_ns is not None and due_ns <= now_ns
                if due and self._flush():
                    expired = True
                if self._cascade and self._move_a_slice():
                    expired = True
                if not due and not self._cascade:
                    if expired:
                        return True
                    if until_ns is not None and now_ns >= until_ns:
                        return False
                    wake_ns = until_ns if due_ns is None else due_ns if until_ns is None else min(due_ns, until_ns)
                    wait_s = None if wake_ns is None else min((wake_ns - now_ns) / 1e9, threading.TIMEOUT_MAX)
                    # Whoever makes a bucket that comes before all others wakes the sleepers.
                    self._sleepers += 1
                    try:
                        self._changed.wait(wait_s)
                    finally:
                        self._sleepers -= 1

    def _flush(self) -> bool:
        """Take out every bucket that is due: hand over the finest, put the coarse aside for the cascade.

        Called with the lock held, and lets go of it in between. Whether anything was handed over.
        """
        wheel = self._wheel
        batch: list[TimerTaskList] = []
        now = self._tick_now()
        bucket = wheel.pop_due(now)
        while bucket is not None:
            if bucket.level == 0:
                batch.append(bucket)
            elif bucket.first <= now and len(bucket) <= SLICE:
                # The driver was away. Few as they are, they go with the others, for the order of deadlines.
                batch.append(self._cascade.move(bucket, bucket.tasks()))
            else:
                self._cascade.begin(bucket)
            bucket = wheel.pop_due(now)
        wheel.catch_up(now)
        return self._release(batch)

    def _move_a_slice(self) -> bool:
        """Go on with the cascade, and rest a little if there is more and it isn't urgent.

        Called with the lock held, and lets go of it in between. Whether anything was handed over, being due already.
        """
        due, done = self._cascade.step()
        if done and self._sleepers:
            self._changed.notify_all()  # another driver sleeps by what it saw before
        if due:
            return self._release([due])
        if self._cascade and not self._cascade.is_urgent():
            self._lock.release()
            time.sleep(self._rest_s)
            self._lock.acquire()
        return False

    def _release(self, buckets: list[TimerTaskList]) -> bool:
        """Hand over what is due, without the lock, which is held before and after; whether there was any."""
        if not buckets:
            return False
        self._lock.release()
        try:
            self._hand_over(buckets)
        finally:
            self._lock.acquire()
        return True

    def _hand_over(self, buckets: list[TimerTaskList]) -> None:
        """Give what is due to the executor. Called without the lock."""
        self._dispatcher.hand_over(buckets)

    def _put_back(self, buckets: list[TimerTaskList]) -> None:
        """Make what is left of a batch come due with the next tick."""
        with self._lock:
            if self._closed:
                return
            target = self._wheel.place(self._wheel.hand + 1)[0]
            for due in buckets:
                for task in due.tasks():
                    target.take(task, due)
            self._changed.notify_all()

    # -- looking in

    @property
    def name(self) -> str:
        """The timer's name."""
        return self._name

    @property
    def tick_ms(self) -> int:
        """How finely time is told apart."""
        return self._tick_ns // NS_PER_MS

    @property
    def wheel_size(self) -> int:
        """Buckets a level."""
        return self._wheel.wheel_size

    @property
    def size(self) -> int:
        """How many tasks are pending: added, not yet handed over to be run, not cancelled."""
        with self._lock:
            return self._pending()

    @property
    def driver(self) -> Driver | None:
        """The thread of the :class:`~timer.SystemTimerReaper` that was made for it; None if none was."""
        return self._driver

    @property
    def is_closed(self) -> bool:
        """Whether the timer was shut down."""
        return self._closed

    def now_ns(self) -> int:
        """The timer's clock."""
        return self._clock()

    def driven_by(self, driver: Driver) -> None:
        """Take note that ``driver`` drives this timer, so that nobody else begins to."""
        self._driver = driver

    def next_deadline_ms(self) -> float | None:
        """Milliseconds until the next bucket comes due (a task in it may be due later); None if nothing is pending."""
        with self._lock:
            first = min((bucket.first for bucket in self._waiting() if bucket), default=None)
            if first is None:
                return None
            return (self._origin_ns + first * self._tick_ns - self._clock()) / NS_PER_MS

    def pending(self) -> list[TimerTask]:
        """The pending tasks, earliest first: a copy."""
        with self._lock:
            tasks = [task for bucket in self._waiting() for task in bucket.tasks()]
        return sorted(tasks, key=by_deadline)

    def statistics(self) -> TimerStatistics:
        """The timer as it is now, as a frozen value."""
        next_deadline_ms = self.next_deadline_ms()
        dispatcher = self._dispatcher
        total = dispatcher.total
        with self._lock:
            return TimerStatistics(
                name=self._name,
                pending=self._pending(),
                occupancy=self._wheel.occupancy(),
                next_deadline_ms=next_deadline_ms,
                put_off=self._moves,
                fired=total.fired,
                failed=total.failed,
                late_ns=tuple(total.late_ns),
                late_sum_ns=total.late_sum_ns,
                late_max_ns=total.late_max_ns,
                handed_over=dispatcher.handed_over,
                running_since_ns=dispatcher.running_since_ns(),
                tick_ms=self.tick_ms,
                wheel_size=self.wheel_size,
                hand=self._wheel.hand,
                now_tick=self._tick_now(),
                buckets=tuple(
                    tuple([0 if bucket is None else len(bucket) for bucket in level.slots])
                    for level in self._wheel.levels
                ),
            )

    # -- the end

    def wake(self) -> None:
        """Make whoever waits in :meth:`advance_clock` look again."""
        with self._changed:
            self._changed.notify_all()

    def shutdown(self) -> list[TimerTask]:
        """Stop for good.

        Batches that were handed over run to their end (on the timer's own executor; one that was given is its owner's
        to wait for). Called from one of the timer's own tasks, it doesn't wait for that task.

        Returns:
            The tasks that were pending, earliest first. They are in no timer any more. An empty list the second time.
        """
        leftovers: list[TimerTask] = []
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            buckets = self._cascade.stop()
            while (bucket := self._wheel.pop_any()) is not None:
                buckets.append(bucket)
            for bucket in buckets:
                leftovers += [task for task in bucket.tasks() if bucket.pop(task, MISSING) is not MISSING]
        self._dispatcher.close()
        return sorted(leftovers, key=by_deadline)

    def _waiting(self) -> list[TimerTaskList]:
        return [*self._wheel.buckets(), *self._cascade.buckets()]

    def _pending(self) -> int:
        return sum(map(len, self._waiting()))
