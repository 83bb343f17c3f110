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
may say so with ``executor=InlineExecutor()`` and saves the hand-over."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from timer._bucket import TimerTaskList
from timer._clock import NS_PER_MS, Clock, system_clock
from timer._errors import DelayTypeError, TimerClosed, TimerConfigError, TimerFull
from timer._task import MISSING, TimerTask, checked_delay_ms
from timer._wheel import TimingWheel

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "SLICE",
    "InlineExecutor",
    "Submits",
    "SystemTimer",
    "Timer",
    "TimerStatistics",
    "report_task_error",
]

#: How many tasks a cascade moves before it lets go of the timer's lock for a moment.
SLICE = 256

_by_deadline = attrgetter("_deadline_ns")


class Submits(Protocol):
    """What a timer asks of an executor: ``concurrent.futures.Executor.submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run ``fn(*args)``, here or elsewhere, now or later."""


class InlineExecutor:
    """Runs what it is given at once, on the thread that submits: expiry without a hand-over, for quick tasks."""

    __slots__ = ()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> None:
        """Call ``fn(*args)``."""
        fn(*args)


@attrs.frozen
class TimerStatistics:
    """A timer at one moment.

    Attributes:
        name: the timer's name.
        pending: tasks waiting.
        occupancy: tasks waiting on each level of the wheel, the finest first.
        next_deadline_ms: milliseconds until the next bucket comes due, or None.
        fired: tasks run since the start.
        failed: of these, how many raised.
        late_ns: lateness of the tasks run, as counts by power of two: entry *i* counts those less than ``2**i`` ns
            late and not counted in an entry before.
        late_sum_ns: the sum of all lateness.
        late_max_ns: the greatest lateness.
        handed_over: tasks whose time came, given to the executor in batches that are not finished.
        running_since_ns: when the batch that runs now was begun, on the timer's clock; None if none runs.
        tick_ms: how finely the timer tells time apart.
        wheel_size: buckets a level.
        hand: the tick up to which the wheel is empty.
        buckets: of each level, the tasks in each of its buckets, in order of place.
    """

    name: str
    pending: int
    occupancy: tuple[int, ...]
    next_deadline_ms: float | None
    fired: int
    failed: int
    late_ns: tuple[int, ...]
    late_sum_ns: int
    late_max_ns: int
    handed_over: int
    running_since_ns: int | None
    tick_ms: int
    wheel_size: int
    hand: int
    buckets: tuple[tuple[int, ...], ...]


def report_task_error(task: TimerTask, error: BaseException) -> None:
    """The default for a timer's ``on_error``: hand the error to ``threading.excepthook``, as a thread's own."""
    del task
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


class Timer(abc.ABC):
    """Runs tasks after their delays. A context manager that shuts down on leaving."""

    __slots__ = ()

    @abc.abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
        """

    @abc.abstractmethod
    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for something to come due, and expire it.

        Returns:
            True if a bucket expired, False if the time passed without.
        """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many tasks are pending: added, not yet handed over to be run, not cancelled."""

    @abc.abstractmethod
    def shutdown(self) -> list[TimerTask]:
        """Stop for good. What was due already is run; what was pending is returned, earliest first. Harmless twice."""

    @property
    def is_driven(self) -> bool:
        """Whether somebody calls :meth:`advance_clock` already, so that a second driver would be one too many."""
        return False

    def wake(self) -> None:  # noqa: B027  # a timer that nobody can wait in has nothing to do here
        """Make whoever waits in :meth:`advance_clock` look again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


def _positive_ms(setting: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise TimerConfigError(setting, value, "a whole number of milliseconds, 1 or more")
    return value


class SystemTimer(Timer):
    """A timer on a hierarchical wheel, driven by whoever calls :meth:`advance_clock`.

    Args:
        name: names its threads and its errors.
        tick_ms: how finely time is told apart. A task runs up to this much late, never early.
        wheel_size: buckets a level.
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
        "_cascading",
        "_changed",
        "_clock",
        "_closed",
        "_executor",
        "_failed",
        "_fired",
        "_handed_over",
        "_inside",
        "_late_max_ns",
        "_late_ns",
        "_late_sum_ns",
        "_lock",
        "_max_pending",
        "_name",
        "_on_error",
        "_origin_ns",
        "_own_executor",
        "_recent",
        "_tick_ns",
        "_waiting_for",
        "_wheel",
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
        # The bucket added to last, usually right for the next task too. It starts as one that fits no tick.
        self._recent = TimerTaskList(0, 0, 0, self._lock, closed=True)
        self._cascading: TimerTaskList | None = None
        self._waiting_for: int | None = None  # the tick a driver sleeps until; None while none sleeps
        self._max_pending = max_pending
        self._closed = False
        self._executor: Submits | None = executor
        self._own_executor = executor is None
        self._handed_over = 0
        self._inside: dict[int, int] = {}  # threads that run a batch, and since when
        self._on_error = on_error or report_task_error
        self._fired = 0
        self._failed = 0
        self._late_ns = [0] * 64
        self._late_sum_ns = 0
        self._late_max_ns = 0

    # -- adding

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            TimerFull: ``max_pending`` tasks are pending.
        """
        if task._bucket is not None:
            task.cancel()
        if self._max_pending is not None:
            self._add_counted(task, self._max_pending)
            return
        delay_ms = task._delay_ms
        deadline_ns = self._clock() + delay_ms * 1_000_000
        tick = (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1
        bucket = self._recent
        if delay_ms <= 0 or not bucket.first <= tick < bucket.end:
            found = self._wheel.find(tick) if delay_ms > 0 else None
            if found is None:
                task._deadline_ns = deadline_ns
                self._add_slowly(task, tick)
                return
            self._recent = bucket = found
        task._deadline_ns = deadline_ns
        # Without the lock, in the order that TimingWheel's header gives under "One task, one bucket".
        task._bucket = bucket
        bucket[task] = None
        if bucket.closed and bucket.pop(task, MISSING) is not MISSING:
            task._bucket = None
            self._add_slowly(task, tick)

    def _add_slowly(self, task: TimerTask, tick: int) -> None:
        """Add where a bucket has to be made, or the task is due already."""
        with self._lock:
            due = self._place(task, tick)
        if due is not None:
            self._hand_over([due])

    def _add_counted(self, task: TimerTask, limit: int) -> None:
        deadline_ns = self._clock() + task._delay_ms * NS_PER_MS
        with self._lock:
            if self._pending() >= limit:
                raise TimerFull(self._name, limit)
            task._deadline_ns = deadline_ns
            due = self._place(task, (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1)
        if due is not None:
            self._hand_over([due])

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
        self._recent = bucket
        if new and self._waiting_for is not None and bucket.first < self._waiting_for:
            self._waiting_for = bucket.first
            self._changed.notify_all()
        return None

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
        with self._changed:
            while True:
                if self._closed or (stopped is not None and stopped()):
                    return False
                upcoming = self._wheel.next_tick()
                now_ns = self._clock()
                if upcoming is not None and upcoming * self._tick_ns <= now_ns - self._origin_ns:
                    break
                if until_ns is not None and now_ns >= until_ns:
                    return False
                wake_ns = until_ns
                if upcoming is not None:
                    due_ns = self._origin_ns + upcoming * self._tick_ns
                    wake_ns = due_ns if until_ns is None else min(due_ns, until_ns)
                # A sleeper is woken for any bucket before this tick; "never" is a tick that no bucket reaches.
                self._waiting_for = upcoming if upcoming is not None else 1 << 128
                try:
                    wait_s = None if wake_ns is None else (wake_ns - now_ns) / 1e9
                    self._changed.wait(None if wait_s is None else min(wait_s, threading.TIMEOUT_MAX))
                finally:
                    self._waiting_for = None
        return self._flush()

    def _flush(self) -> bool:
        """Take out every bucket that is due, cascade the coarse ones, and hand over what is to run."""
        batch: list[TimerTaskList] = []
        expired = False
        while True:
            with self._lock:
                if self._cascading is not None:  # another driver is at it and will see what is due
                    break
                now = self._tick_now()
                bucket = self._wheel.pop_due(now)
                if bucket is None:
                    self._wheel.catch_up(now)
                    break
                expired = True
                if bucket.level == 0:
                    batch.append(bucket)
                    continue
                self._cascading = bucket
            try:
                due = self._cascade(bucket)
            finally:
                self._cascading = None
            if due:
                batch.append(due)
        if batch:
            self._hand_over(batch)
        return expired

    def _cascade(self, bucket: TimerTaskList) -> TimerTaskList:
        """Put the tasks of a coarse bucket in again, in slices; those due come back in a closed bucket."""
        lock, wheel, origin_ns, tick_ns = self._lock, self._wheel, self._origin_ns, self._tick_ns
        due = TimerTaskList(bucket.first, bucket.first + 1, 0, lock, closed=True)
        tasks = list(bucket.copy())
        for start in range(0, len(tasks), SLICE):
            with lock:
                if self._closed:
                    break  # what is left stays in the bucket, where shutdown finds it
                for task in tasks[start : start + SLICE]:
                    tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
                    target = wheel.place(tick)[0] if tick > wheel.hand else due
                    # In this order: the wheel's header, "One task, one bucket", says what goes wrong in another.
                    if task not in bucket:
                        continue
                    target[task] = None
                    if bucket.pop(task, MISSING) is MISSING:
                        target.pop(task, None)
                    else:
                        task._bucket = target
        return due

    def _hand_over(self, batch: list[TimerTaskList]) -> None:
        """Give due buckets to the executor; if it refuses, run them here: late is better than lost."""
        count = sum(map(len, batch))
        if not count:
            return
        with self._lock:
            self._handed_over += count
        try:
            self._executor_now().submit(self._run_batch, batch, count)
        except RuntimeError:  # shut down, or no thread to be had
            self._run_batch(batch, count)

    def _executor_now(self) -> Submits:
        executor = self._executor
        if executor is None:
            with self._lock:
                executor = self._executor
                if executor is None:
                    executor = self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-executor")
        return executor

    def _run_batch(self, batch: list[TimerTaskList], count: int) -> None:
        """Run what is in due buckets, in order of deadline. On the executor's thread."""
        tasks = sorted((task for bucket in batch for task in bucket.copy()), key=_by_deadline)
        late_ns = [0] * 64
        fired = failed = late_sum = late_max = 0
        clock = self._clock
        me = threading.get_ident()
        self._inside[me] = clock()
        try:
            for task in tasks:
                bucket = task._bucket
                # Cancelled, or added again elsewhere, since its bucket came due; or it is ours, once it is popped.
                if bucket is None or not bucket.closed or bucket.pop(task, MISSING) is MISSING:
                    continue
                task._bucket = None
                late = clock() - task._deadline_ns
                late_ns[late.bit_length()] += 1
                late_sum += late
                late_max = max(late_max, late)
                fired += 1
                try:
                    task.run()
                except Exception as error:  # noqa: BLE001  # a task's error is reported and stops nobody else
                    failed += 1
                    self._report(task, error)
                except BaseException as error:
                    # On the main thread it is the caller's own, and the rest runs when the timer is next looked at.
                    # Anywhere else it can only have come from the task.
                    failed += 1
                    if threading.current_thread() is threading.main_thread():
                        self._put_back(batch)
                        raise
                    self._report(task, error)
        finally:
            self._inside.pop(me, None)
            with self._lock:
                self._handed_over -= count
                self._fired += fired
                self._failed += failed
                self._late_sum_ns += late_sum
                self._late_max_ns = max(self._late_max_ns, late_max)
                self._late_ns = [a + b for a, b in zip(self._late_ns, late_ns, strict=True)]

    def _put_back(self, batch: list[TimerTaskList]) -> None:
        """Make what is left of a batch come due with the next tick."""
        with self._lock:
            if self._closed:
                return
            target = self._wheel.place(self._wheel.hand + 1)[0]
            for due in batch:
                for task in due.copy():
                    target[task] = None
                    if due.pop(task, MISSING) is MISSING:
                        target.pop(task, None)
                    else:
                        task._bucket = target
            self._changed.notify_all()

    def _report(self, task: TimerTask, error: BaseException) -> None:
        try:
            self._on_error(task, error)
        except Exception as second:  # noqa: BLE001  # a broken error handler must not stop the timer either
            report_task_error(task, second)

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
    def is_closed(self) -> bool:
        """Whether the timer was shut down."""
        return self._closed

    def now_ns(self) -> int:
        """The timer's clock."""
        return self._clock()

    def next_deadline_ms(self) -> float | None:
        """Milliseconds until the next bucket comes due (a task in it may be due later); None if nothing is pending."""
        with self._lock:
            upcoming = self._wheel.next_tick()
            if upcoming is None:
                return None
            return (self._origin_ns + upcoming * self._tick_ns - self._clock()) / NS_PER_MS

    def pending(self) -> list[TimerTask]:
        """The pending tasks, earliest first: a copy."""
        with self._lock:
            tasks = [task for bucket in self._waiting() for task in bucket.copy()]
        return sorted(tasks, key=_by_deadline)

    def statistics(self) -> TimerStatistics:
        """The timer as it is now, as a frozen value."""
        next_deadline_ms = self.next_deadline_ms()
        with self._lock:
            return TimerStatistics(
                name=self._name,
                pending=self._pending(),
                occupancy=self._wheel.occupancy(),
                next_deadline_ms=next_deadline_ms,
                fired=self._fired,
                failed=self._failed,
                late_ns=tuple(self._late_ns),
                late_sum_ns=self._late_sum_ns,
                late_max_ns=self._late_max_ns,
                handed_over=self._handed_over,
                running_since_ns=min(self._inside.values(), default=None),
                tick_ms=self.tick_ms,
                wheel_size=self.wheel_size,
                hand=self._wheel.hand,
                buckets=tuple(
                    tuple(0 if bucket is None else len(bucket) for bucket in level.slots)
                    for level in self._wheel.levels
                ),
            )

    def _waiting(self) -> list[TimerTaskList]:
        buckets = list(self._wheel.buckets())
        if self._cascading is not None:
            buckets.append(self._cascading)
        return buckets

    def _pending(self) -> int:
        return sum(map(len, self._waiting()))

    def _tick_now(self) -> int:
        return (self._clock() - self._origin_ns) // self._tick_ns

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
            buckets = [self._cascading] if self._cascading is not None else []
            while (bucket := self._wheel.pop_any()) is not None:
                buckets.append(bucket)
            for bucket in buckets:
                for task in list(bucket.copy()):
                    if bucket.pop(task, MISSING) is not MISSING:
                        task._bucket = None
                        leftovers.append(task)
            executor = self._executor
        if self._own_executor and isinstance(executor, Executor):
            executor.shutdown(wait=threading.get_ident() not in self._inside)
        return sorted(leftovers, key=_by_deadline)
