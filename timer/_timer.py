"""The timer: adds tasks to a wheel, waits until they are due, and hands them to an executor.

A driver (usually a :class:`~timer.SystemTimerReaper`) sleeps until the time of the next bucket, and removes it from the
wheel. The tasks of a fine bucket are due. Those of a coarse one move to finer buckets. All due buckets go to the
executor as one batch, which runs the tasks in order of deadline.

**Never early.** The due tick of a task is its deadline rounded *up*. A bucket becomes due when the clock has reached
its first tick. So a task runs up to ``tick_ms`` after its deadline, plus the time to wake the driver and to run the
tasks before it.

**Threads.** One lock guards the wheel and, in the pure implementation, its buckets. No task, executor or error handler
runs with the lock held. Only the clock and the argument of :meth:`SystemTimer.advance_until` are called with it. Signal
handlers and ``__del__`` methods must not call a timer: they may run on a thread that holds the lock.

The executor gets one call per batch, because a wake-up of its thread costs more than a task. The driver does not run
the tasks, because a slow task would delay all others. If your tasks are quick, pass ``executor=InlineExecutor()``.

``time.monotonic_ns``, the default clock, does not advance while Linux is suspended. So a delay that spans a suspend is
late by its length. If suspended time must count, pass ``clock=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)``. The
driver's sleep still does not count it: due tasks run after the resume, when a bucket comes due or a task is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timer._base import Executor, Timer, TimerStatistics, report_error
from timer._dispatch import Dispatcher, by_deadline
from timer._errors import TaskHeld, TimerClosed, TimerConfigError
from timer._fork import call_after_fork, new_condition, new_lock
from timer._implementation import CORE, take_docs
from timer._task import MOST_MS, NS_PER_MS, TimerTask, checked_delay_ms, not_a_task, whole_delay_ms
from timer._wheel import TimingWheel

if TYPE_CHECKING:
    from typing import Final

    from timer._bucket import TimerTaskList
    from timer._reaper import Driver

#: A clock: a callable without arguments that returns nanoseconds as an int, and never less than before.
Clock = Callable[[], int]

#: What a clock may return, so that deadlines fit into 64 bits: 126 years.
LEAST_NOW_NS: Final = -(10**18)
MOST_NOW_NS: Final = 4 * 10**18

#: How long a driver waits between two slices of tasks, so that other threads get the interpreter.
SLEEP_S: Final = 0.0001

#: A timer remembers one bucket per 2**STRETCH ns of deadlines, and PLACES of them.
STRETCH: Final = 30
PLACES: Final = 64

#: The longest sleep of a driver. After it, the driver of a timer whose tasks were all cancelled begins to rest.
LONGEST_SLEEP_NS: Final = 30_000_000_000

#: A time before all others, also on a clock that has stepped back.
PAST_NS: Final = -(10**30)


def _check_settings(tick_ms: object, clock: object, executor: object) -> None:
    if type(tick_ms) is not int or not 1 <= tick_ms <= MOST_MS:
        raise TimerConfigError("tick_ms", tick_ms, "an int number of milliseconds, from 1 to 10**12")
    if clock is not None and not callable(clock):
        raise TimerConfigError("clock", clock, "a callable that returns monotonic nanoseconds as an int")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TimerConfigError("executor", executor, "an executor with a submit(fn, *args) method")


class SystemTimer(Timer):
    """A timer on a hierarchical wheel, driven by the threads that call :meth:`advance_clock`.

    Args:
        name: the timer's name, in errors and the names of threads.
        tick_ms: the resolution in milliseconds. A task runs up to this much late, never early.
        wheel_size: how many buckets of one level a bucket of the next level spans.
        clock: returns monotonic nanoseconds. The default is ``time.monotonic_ns``.
        executor: runs due tasks, one call per batch. The timer does not shut it down. The default is a thread.
        on_error: called with a task and the exception that it raised.

    Attributes:
        tick_ms: as given.
        wheel_size: as given, and at least 2.
        driver: the thread that drives the timer. None if there is none.

    Raises:
        TimerConfigError: a setting cannot work.

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

    name: str = ""
    driver: Driver | None = None
    _quick_reschedules = 0  # the native class counts here

    def __init__(
        self,
        name: str = "timer",
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        clock: Clock | None = None,
        executor: Executor | None = None,
        on_error: Callable[[TimerTask, BaseException], None] | None = None,
    ) -> None:
        _check_settings(tick_ms, clock, executor)
        self.name = name
        self.tick_ms = tick_ms
        self._clock = clock or time.monotonic_ns
        self._tick_ns = tick_ms * NS_PER_MS
        self._origin_ns = self._clock()  # when tick 0 was
        if not LEAST_NOW_NS <= self._origin_ns <= MOST_NOW_NS:
            raise TimerConfigError("clock", clock, "a callable that returns nanoseconds from -10**18 to 4 * 10**18")
        self._lock = new_lock()  # guards the wheel, the buckets, _closed and _reschedules
        self._changed = new_condition(self._lock)  # drivers sleep on it
        self._resting: list[Callable[[Timer], object]] = []  # how to wake the drivers that rest: nothing is pending
        self._wheel = TimingWheel(wheel_size, self._lock, self._tick_ns, self._origin_ns)
        self.wheel_size: int = self._wheel.wheel_size
        self._closed = False
        self._reschedules = 0  # how often a task was rescheduled
        self._known: list[TimerTaskList | None] = [None] * PLACES  # the buckets that were found last, by deadline
        self._dispatcher = Dispatcher(self, executor, on_error or (lambda _, error: report_error(error)))
        if CORE is not None:
            self._connect(self._clock, self._wheel)  # type: ignore[attr-defined]
        call_after_fork(self)

    def after_fork(self) -> None:
        self._dispatcher.after_fork()

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed. See :meth:`Timer.add`.

        A pending task that is rejected stays where it was. If it comes from another timer, and another thread closes
        this one during the move, it is in neither.
        """
        try:
            source, delay_ms = task._task_bucket, task._task_delay_ms
        except AttributeError:
            raise not_a_task(task) from None
        if source is None and delay_ms:
            # 1. the deadline
            deadline_ns = self._clock() + delay_ms * NS_PER_MS
            with self._lock:
                # 2. find the bucket
                bucket = self._find_bucket(deadline_ns)
                # 3. put the task in it
                if bucket is not None and task._task_bucket is None:
                    task._task_deadline_ns = deadline_ns
                    task._task_moved_by_ns = 0
                    bucket[task] = None  # first: without memory, the task is in no bucket
                    task._task_bucket = bucket
                    return
        self._add_slowly(task)

    def _add_slowly(self, task: TimerTask) -> None:
        """Add a task that is pending, or due at once, or whose bucket is not there."""
        source = task._task_bucket
        if source is not None:
            self._check_source(task, source)
        now_ns = self._clock()
        deadline_ns = now_ns + task._task_delay_ms * NS_PER_MS
        with self._lock:
            bucket = self._bucket_for(deadline_ns, now_ns)
            if (source := task._task_bucket) is not None:
                source.remove(task)
            task._task_deadline_ns = deadline_ns
            task._task_moved_by_ns = 0
            bucket.put(task)

    def _check_source(self, task: TimerTask, source: TimerTaskList) -> None:
        """Check that a pending task may be moved. If it is in another timer, remove it there."""
        if task._task_is_owned:
            raise TaskHeld(task)
        if source.lock is not self._lock:
            if self._closed:
                raise TimerClosed(self.name)
            task._task_withdraw()

    def reschedule(self, task: TimerTask, delay_ms: float | None) -> bool:
        """Move the deadline of a pending task to ``delay_ms`` from now, in O(1). See :meth:`Timer.reschedule`."""
        if not hasattr(task, "_task_delay_ms"):
            raise not_a_task(task)
        # 1. the deadline
        whole_ms = whole_delay_ms(delay_ms)
        now_ns = self._clock()
        deadline_ns = now_ns + whole_ms * NS_PER_MS
        with self._lock:
            source = task._task_bucket
            # After shutdown, a task of a batch must keep its deadline: nothing would run it later.
            if source is None or source.lock is not self._lock or self._closed:
                return False
            # 2. find the bucket
            bucket = self._find_bucket(deadline_ns) if whole_ms else None
            if bucket is None:
                bucket = self._bucket_for(deadline_ns, now_ns)
            # 3. move the task to it
            is_moved = bucket.take(task, source, deadline_ns)
            self._reschedules += is_moved
            return is_moved

    def _find_bucket(self, deadline_ns: int) -> TimerTaskList | None:
        """The bucket for a deadline ahead, if it is there."""
        # 1. the one that was found last for such a deadline
        place = deadline_ns >> STRETCH & PLACES - 1
        bucket = self._known[place]
        if bucket is not None and bucket.after_ns < deadline_ns <= bucket.until_ns and not bucket.closed:
            return bucket
        # 2. look in the wheel, and remember what is found
        bucket = self._wheel.find_bucket(deadline_ns)
        if bucket is not None:
            self._known[place] = bucket
        return bucket

    def _bucket_for(self, deadline_ns: int, now_ns: int) -> TimerTaskList:
        """The bucket for a deadline, made if needed. For a new earliest one, the drivers are woken."""
        if self._closed:
            raise TimerClosed(self.name)
        try:
            bucket, is_earliest = self._wheel.bucket_for(deadline_ns, now_ns)
            if is_earliest:
                self._wake_all()  # the drivers sleep until a later bucket, and only they expire tasks
        except BaseException:
            self._wake_all()
            raise
        return bucket

    def _wake_all(self) -> None:
        """Wake all threads that wait for a bucket. The lock is held. A second call has no effect."""
        self._changed.notify_all()
        for wake in self._resting:
            wake(self)
        self._resting.clear()

    def advance_clock(self, timeout_ms: float) -> bool:
        return self._advance(self._clock() + checked_delay_ms(timeout_ms) * NS_PER_MS, lambda: False)

    def advance_until(self, stopped: Callable[[], bool]) -> bool:
        return self._advance(None, stopped)

    def _advance(self, until_ns: int | None, stopped: Callable[[], bool]) -> bool:
        """Expire what is due. If nothing is, wait for it until ``until_ns`` or ``stopped()``."""
        expired = False
        while self._wait_for_due(until_ns, stopped):
            if self._expire_due():
                expired, until_ns = True, PAST_NS  # do not wait any longer
        return expired

    def _wait_for_due(self, until_ns: int | None, stopped: Callable[[], bool]) -> bool:
        """Advance the wheel until a bucket is due. Returns False if the caller must not wait any longer."""
        wheel = self._wheel
        with self._lock:
            while not self._closed and not stopped():
                now_ns = self._clock()
                wheel.collect(wheel.tick_at(now_ns))
                if not wheel.due and wheel.moving:
                    wheel.move_slice()
                if wheel.due:
                    return True
                if wheel.moving and wheel.is_urgent():
                    continue
                if until_ns is not None and now_ns >= until_ns:
                    return False
                self._changed.wait(SLEEP_S if wheel.moving else self._sleep_s(now_ns, until_ns))
        return False

    def _sleep_s(self, now_ns: int, until_ns: int | None) -> float:
        upcoming = self._wheel.next_tick()
        next_ns = None if upcoming is None else self._origin_ns + upcoming * self._tick_ns
        wake_ns = min(ns for ns in (until_ns, next_ns, now_ns + LONGEST_SLEEP_NS) if ns is not None)
        return (wake_ns - now_ns) / 1e9

    def _expire_due(self) -> bool:
        """Hand due buckets to the executor, without the lock. If that fails they stay due. Returns whether any was."""
        due: list[TimerTaskList] = []
        try:
            with self._lock:
                due += self._wheel.due
                self._wheel.due = []
            self._dispatcher.hand_over(due)
        except BaseException:
            self._requeue(due)
            raise
        return bool(due)

    def _requeue(self, buckets: list[TimerTaskList]) -> None:
        """Make the tasks that remain in some buckets due again."""
        with self._lock:
            due_ids = set(map(id, self._wheel.due))
            self._wheel.due += [bucket for bucket in buckets if id(bucket) not in due_ids]
            self._wake_all()

    @property
    def size(self) -> int:
        with self._lock:
            return self._pending()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def now_ns(self) -> int:
        return self._clock()

    def driven_by(self, driver: Driver) -> None:
        self.driver = driver

    def next_deadline_ms(self) -> float | None:
        """Milliseconds until the next bucket is due (its first task may be due later). None: no deadline."""
        with self._lock:
            first = min((bucket.first for bucket in self._wheel.buckets() if bucket), default=None)
            if first is None:
                return None
            wait_ms = (self._origin_ns + first * self._tick_ns - self._clock()) / NS_PER_MS
            return wait_ms if wait_ms <= MOST_MS else None

    def pending(self) -> list[TimerTask]:
        """The pending tasks, earliest first: a copy."""
        with self._lock:
            tasks = [task for bucket in self._wheel.buckets() for task in bucket]
        return sorted(tasks, key=by_deadline)

    def statistics(self) -> TimerStatistics:
        next_deadline_ms = self.next_deadline_ms()
        total, handed_over = self._dispatcher.counts()
        with self._lock:
            buckets = self._wheel.counts()
            return TimerStatistics(
                name=self.name,
                pending=self._pending(),
                occupancy=tuple(map(sum, buckets)),
                next_deadline_ms=next_deadline_ms,
                rescheduled=self._reschedules + self._quick_reschedules,
                fired=total.fired,
                failed=total.failed,
                late_ns=tuple(total.late_ns),
                late_sum_ns=total.late_sum_ns,
                late_max_ns=total.late_max_ns,
                handed_over=handed_over,
                running_since_ns=self._dispatcher.running_since_ns(),
                tick_ms=self.tick_ms,
                wheel_size=self.wheel_size,
                hand=self._wheel.hand,
                now_tick=self._wheel.tick_at(self._clock()),
                buckets=buckets,
            )

    def _pending(self) -> int:
        return sum(map(len, self._wheel.buckets()))

    def wake(self) -> None:
        with self._lock:
            self._wake_all()

    def _is_empty(self) -> bool:
        wheel = self._wheel
        return not (wheel.due or wheel.moving or self._closed or wheel.has_deadlines())

    def _rest(self, wake: Callable[[Timer], object]) -> bool:
        with self._lock:
            rests = self._is_empty()
            if rests:
                self._resting.append(wake)
            return rests

    def shutdown(self) -> list[TimerTask]:
        """Stop, and wait for batches on the timer's own executor. Returns the pending tasks, earliest first.

        There is no time limit. A call from one of the timer's own tasks does not wait.
        """
        return self._shut_down(None)

    def _shut_down(self, timeout_s: float | None) -> list[TimerTask]:
        with self._lock:
            self._closed = True
            self._wake_all()
            leftovers = self._empty()
        self._dispatcher.close(timeout_s)
        with self._lock:
            leftovers += self._empty()  # of batches that failed meanwhile
        return sorted(leftovers, key=by_deadline)

    def _empty(self) -> list[TimerTask]:
        return [task for bucket in self._wheel.clear() for task in list(bucket) if bucket.remove(task)]


if not TYPE_CHECKING and CORE is not None:
    take_docs(CORE.QuickTimer, SystemTimer)

    class SystemTimer(CORE.QuickTimer, SystemTimer):
        __doc__ = SystemTimer.__doc__

        _reschedule_slowly = SystemTimer.reschedule  # called by C for tasks whose bucket is not there

        def after_fork(self) -> None:
            self._free_mutexes(list(self._wheel.buckets()))
            super().after_fork()
