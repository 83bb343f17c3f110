"""The timer: adds tasks to a wheel, waits for what comes due, and hands it to an executor.

**Flow of an expiry**: a driver (usually a :class:`~timer.SystemTimerReaper`) sleeps in
:meth:`SystemTimer.advance_clock` until the next occupied bucket -> the bucket is closed and taken out -> its tasks
cascade, or are due -> everything due goes to the executor as one batch -> the executor claims each task and runs it,
in order of deadline.

**Never early.** A task's due tick is its deadline rounded *up*, and a bucket is flushed when the clock, read after
waking, has reached its first tick. So a task runs between 0 and ``tick_ms`` after its deadline, plus the time it takes
to wake the reaper and to get to the task.

**Locks.** One lock, the timer's, around the wheel's structure: making, closing and taking out buckets, moving the hand,
cascading (in slices of :data:`SLICE` tasks). It is a leaf: nothing is called with it held but the clock. Adding to a
bucket that exists and cancelling don't take it (``timer._wheel`` says why that is safe). No task runs with it held.

**Rejected.** A condition variable a task or a queue a task to the executor: a wake-up costs more than the task. A
thread per timer that also runs the tasks: a slow one would hold up all others' expiry; someone whose tasks are quick
may say so with ``executor=InlineExecutor()`` and saves the hand-over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from timer._base import Submits, Timer, TimerStatistics, report_task_error
from timer._bucket import TimerTaskList
from timer._clock import NS_PER_MS, Clock, system_clock
from timer._dispatch import Dispatcher, by_deadline
from timer._errors import DelayTypeError, TimerClosed, TimerConfigError, TimerFull
from timer._task import MISSING, TimerTask, checked_delay_ms
from timer._wheel import TimingWheel

if TYPE_CHECKING:
    from typing import Final

__all__ = ["SLICE", "SystemTimer"]

#: How many tasks a cascade moves before it lets go of the timer's lock for a moment.
SLICE: Final = 256

#: A stretch is so many powers of two of nanoseconds: 1.07 s.
STRETCH: Final = 30

#: For how many stretches a bucket is kept in mind: 18 minutes' worth.
MOST_KNOWN: Final = 1024

#: How long it rests in between, unless the bucket is overdue.
REST_S: Final = 0.0001


def _positive_ms(setting: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise TimerConfigError(setting, value, "a whole number of milliseconds, 1 or more")
    return value


def _by_first(cascade: tuple[TimerTaskList, Iterator[TimerTask]]) -> int:
    return cascade[0].first


class Adding:
    """The part of :class:`SystemTimer` that every task goes through."""

    __slots__ = (
        "_cascading",
        "_changed",
        "_clock",
        "_closed",
        "_dispatcher",
        "_known",
        "_lock",
        "_max_pending",
        "_name",
        "_nowhere",
        "_origin_ns",
        "_recent",
        "_sleepers",
        "_tick_ns",
        "_wheel",
    )

    _cascading: list[tuple[TimerTaskList, Iterator[TimerTask]]]
    _changed: threading.Condition
    _clock: Clock
    _closed: bool
    _dispatcher: Dispatcher
    _known: dict[int, TimerTaskList]
    _lock: threading.Lock
    _max_pending: int | None
    _name: str
    _nowhere: TimerTaskList
    _origin_ns: int
    _recent: TimerTaskList
    _sleepers: int
    _tick_ns: int
    _wheel: TimingWheel

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            TimerFull: ``max_pending`` tasks are pending.
        """
        bucket = task._bucket
        # In this order: a cascade closes the bucket before it takes the task out, and puts it elsewhere.
        if bucket is not None and (task in bucket or bucket.closed):
            task.cancel()
        if self._max_pending is not None:
            self._add_counted(task, self._max_pending)
            return
        delay_ms = task._delay_ms
        deadline_ns = self._clock() + delay_ms * 1_000_000
        bucket = self._recent
        if delay_ms <= 0 or not bucket.after_ns < deadline_ns <= bucket.until_ns:
            found = self._known.get(deadline_ns >> STRETCH)
            if found is None or found.closed or delay_ms <= 0 or not found.after_ns < deadline_ns <= found.until_ns:
                tick = (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1
                found = self._wheel.find(tick) if delay_ms > 0 else None
                if found is None:
                    task._deadline_ns = deadline_ns
                    self._add_slowly(task, tick)
                    return
                self._remember(found, deadline_ns)
            bucket = found
        task._deadline_ns = deadline_ns
        # Without the lock, in the order that TimingWheel's header gives under "One task, one bucket".
        task._bucket = bucket
        bucket[task] = None
        if bucket.closed and bucket.pop(task, MISSING) is not MISSING:
            self._add_slowly(task, (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1)

    def _remember(self, bucket: TimerTaskList, deadline_ns: int) -> None:
        """Look at this bucket first for the next task: with one timeout for all, it is the right one for a long while.

        With several timeouts, or ever different ones, a wide bucket is found again by the second or so of the deadline.
        Its bounds are noted in nanoseconds, which spares the task the arithmetic of ticks and the walk over levels.
        """
        tick_ns = self._tick_ns
        bucket.after_ns = self._origin_ns + (bucket.first - 1) * tick_ns
        bucket.until_ns = self._origin_ns + (bucket.end - 1) * tick_ns
        self._recent = bucket
        if bucket.level and (bucket.end - bucket.first) * tick_ns >> STRETCH - 2:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[deadline_ns >> STRETCH] = bucket

    def _add_slowly(self, task: TimerTask, tick: int) -> None:
        """Add where a bucket has to be made, or the task is due already."""
        with self._lock:
            due = self._place(task, tick)
        if due is not None:
            self._dispatcher.hand_over([due])

    def _add_counted(self, task: TimerTask, limit: int) -> None:
        deadline_ns = self._clock() + task._delay_ms * NS_PER_MS
        with self._lock:
            if self._pending() >= limit:
                raise TimerFull(self._name, limit)
            task._deadline_ns = deadline_ns
            due = self._place(task, (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1)
        if due is not None:
            self._dispatcher.hand_over([due])

    def _place(self, task: TimerTask, tick: int) -> TimerTaskList | None:
        """Put a task into the wheel; one that is due comes back in a closed bucket. The lock is held."""
        if self._closed:
            raise TimerClosed(self._name)
        wheel = self._wheel
        wheel.catch_up(self._tick_now())
        if tick <= wheel.hand or task._delay_ms <= 0:
            due = TimerTaskList(tick, tick + 1, 0, self._lock, closed=True)
            task._bucket = due
            due[task] = None
            return due
        bucket, new = wheel.place(tick)
        task._bucket = bucket
        bucket[task] = None
        self._remember(bucket, task._deadline_ns)
        if new and self._sleepers and wheel.is_next(bucket):
            self._changed.notify_all()
        return None

    def _waiting(self) -> list[TimerTaskList]:
        return [*self._wheel.buckets(), *[bucket for bucket, _ in self._cascading]]

    def _pending(self) -> int:
        return sum(map(len, self._waiting()))

    def _tick_now(self) -> int:
        return (self._clock() - self._origin_ns) // self._tick_ns


class SystemTimer(Adding, Timer):
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

    __slots__ = (
        "_reaped",
        "_rest_s",
    )

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
        if max_pending is not None and (type(max_pending) is not int or max_pending < 1):
            raise TimerConfigError("max_pending", max_pending, "a whole number of tasks, 1 or more, or None")
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise TimerConfigError("executor", executor, "something with a submit(fn, *args) method")
        if clock is not None and not callable(clock):
            raise TimerConfigError("clock", clock, "a callable that answers with monotonic nanoseconds")
        self._tick_ns = _positive_ms("tick_ms", tick_ms) * NS_PER_MS
        self._name = name
        self._clock: Clock = clock or system_clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wheel = TimingWheel(wheel_size, self._lock)
        self._origin_ns = self._clock()
        self._known = self._wheel.known  # what is out of date doesn't fit, or is closed
        # The bucket added to last, usually right for the next task too. It starts as one that fits no tick.
        self._nowhere = TimerTaskList(0, 0, 0, self._lock, closed=True)
        self._recent = self._nowhere
        self._cascading: list[tuple[TimerTaskList, Iterator[TimerTask]]] = []
        self._rest_s = REST_S
        self._sleepers = 0
        self._reaped = False  # whether a SystemTimerReaper drives it
        self._max_pending = max_pending
        self._closed = False
        self._dispatcher = Dispatcher(name, executor, self._clock, on_error or report_task_error, self._put_back)

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

    def _advance(self, until_ns: int | None, stopped: Callable[[], bool] | None) -> bool:
        """Wait until something is due, ``until_ns``, or ``stopped()``, which is asked with the lock held."""
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
                if self._cascading and self._cascade():
                    expired = True
                if not due and not self._cascading:
                    if expired:
                        return True
                    if until_ns is not None and now_ns >= until_ns:
                        return False
                    wake_ns = until_ns if due_ns is None else due_ns if until_ns is None else min(due_ns, until_ns)
                    wait_s = None if wake_ns is None else min((wake_ns - now_ns) / 1e9, threading.TIMEOUT_MAX)
                    if self._recent.closed:
                        self._recent = self._nowhere  # nor should this one's table be kept
                    # Whoever makes a bucket that comes before all others wakes the sleepers.
                    self._sleepers += 1
                    try:
                        self._changed.wait(wait_s)
                    finally:
                        self._sleepers -= 1

    def _flush(self) -> bool:
        """Take out every bucket that is due: hand over the finest, put the coarse aside for :meth:`_cascade`.

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
                batch.append(self._move(bucket, bucket.copy()))
            else:
                self._cascading.append((bucket, iter(list(bucket.copy()))))
                self._cascading.sort(key=_by_first)  # the most urgent first
            bucket = wheel.pop_due(now)
        wheel.catch_up(now)
        return self._hand_over(batch)

    def _cascade(self) -> bool:
        """Put a slice of a coarse bucket's tasks in again, on a finer level.

        There is a bucket's span of time for it (the wheel's header says why), so it is done a slice at a time, between
        looks at what is due, with a short rest after each that lets the executor have the interpreter.

        Called with the lock held, and lets go of it in between. Whether anything was handed over, being due already.
        """
        bucket, tasks = self._cascading[0]
        some = list(islice(tasks, SLICE))
        due = self._move(bucket, some)
        if len(some) < SLICE:
            self._cascading.remove((bucket, tasks))
            if self._sleepers:
                self._changed.notify_all()  # another driver sleeps by what it saw before
        if due:
            return self._hand_over([due])
        if self._cascading and bucket.first > self._wheel.hand:
            self._lock.release()
            time.sleep(self._rest_s)
            self._lock.acquire()
        return False

    def _move(self, bucket: TimerTaskList, tasks: Iterable[TimerTask]) -> TimerTaskList:
        """Put tasks of a closed coarse bucket in again; those due come back in a closed bucket. The lock is held."""
        wheel, origin_ns, tick_ns = self._wheel, self._origin_ns, self._tick_ns
        below = wheel.levels[bucket.level - 1]
        slots, span, count = below.slots, below.span, len(below.slots)
        due = TimerTaskList(bucket.first, bucket.end, 0, self._lock, closed=True)
        for task in tasks:
            # Under the lock: a canceller that misses the task here waits for the lock, and then finds it where it is.
            if bucket.pop(task, MISSING) is not MISSING:
                tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
                target = slots[tick // span % count]
                if target is None or not target.first <= tick < target.end:
                    target = wheel.place(tick)[0] if tick > wheel.hand else due
                task._bucket = target
                target[task] = None
        return due

    def _hand_over(self, batch: list[TimerTaskList]) -> bool:
        """Give what is due to the executor, without the lock, which is held before and after."""
        if not batch:
            return False
        self._lock.release()
        try:
            self._dispatcher.hand_over(batch)
        finally:
            self._lock.acquire()
        return True

    def _put_back(self, batch: list[TimerTaskList]) -> None:
        """Make what is left of a batch come due with the next tick."""
        with self._lock:
            if self._closed:
                return
            target = self._wheel.place(self._wheel.hand + 1)[0]
            for due in batch:
                for task in due.copy():
                    if due.pop(task, MISSING) is not MISSING:
                        task._bucket = target
                        target[task] = None
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
    def is_driven(self) -> bool:
        """Whether a :class:`~timer.SystemTimerReaper` was made for it."""
        return self._reaped

    @property
    def is_closed(self) -> bool:
        """Whether the timer was shut down."""
        return self._closed

    def now_ns(self) -> int:
        """The timer's clock."""
        return self._clock()

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
            tasks = [task for bucket in self._waiting() for task in bucket.copy()]
        return sorted(tasks, key=by_deadline)

    def statistics(self) -> TimerStatistics:
        """The timer as it is now, as a frozen value."""
        next_deadline_ms = self.next_deadline_ms()
        dispatcher = self._dispatcher
        with self._lock:
            return TimerStatistics(
                name=self._name,
                pending=self._pending(),
                occupancy=self._wheel.occupancy(),
                next_deadline_ms=next_deadline_ms,
                fired=dispatcher.fired,
                failed=dispatcher.failed,
                late_ns=tuple(dispatcher.late_ns),
                late_sum_ns=dispatcher.late_sum_ns,
                late_max_ns=dispatcher.late_max_ns,
                handed_over=dispatcher.handed_over,
                running_since_ns=dispatcher.running_since_ns(),
                tick_ms=self.tick_ms,
                wheel_size=self.wheel_size,
                hand=self._wheel.hand,
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
            buckets = [bucket for bucket, _ in self._cascading]
            self._cascading.clear()
            while (bucket := self._wheel.pop_any()) is not None:
                buckets.append(bucket)
            for bucket in buckets:
                leftovers += [task for task in bucket.copy() if bucket.pop(task, MISSING) is not MISSING]
        self._dispatcher.close()
        return sorted(leftovers, key=by_deadline)
