"""The interface of every timer and of executors, and the statistics of a timer."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from timer._task import NS_PER_MS, whole_delay_ms

if TYPE_CHECKING:
    from typing import Self

    from timer._reaper import Driver
    from timer._task import TimerTask

#: How many milliseconds a driver waits at a time, if the timer does not define ``advance_until`` and ``wake``.
POLL_MS = 200

#: Before CPython 3.13, ``Thread.join`` and ``Thread.is_alive`` raise one of these if two threads call them just as
#: the thread ends.
JOIN_ERRORS = (AssertionError, RuntimeError)


def is_alive(thread: threading.Thread) -> bool:
    """Whether a thread has not ended. Never raises, unlike ``thread.is_alive()``: see :data:`JOIN_ERRORS`."""
    try:
        return thread.is_alive()
    except JOIN_ERRORS:
        return False


class Executor(Protocol):
    """The method that an executor must have: ``submit``, as in ``concurrent.futures.Executor``.

    The timer submits ``run`` of a batch of due tasks. The executor calls it once, without arguments. An executor that
    must not be kept for long (an event loop) calls ``run(500)``, and calls it again as long as it returns True.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run ``fn(*args)``, here or elsewhere, now or later."""


#: How many calls a batch may nest beside those of its tasks: to complete an operation, or to log an error.
ROOM: Final = 40


def has_room(calls: int = ROOM) -> bool:
    """Return True, or raise ``RecursionError`` if fewer than ``calls`` further calls fit on the stack."""
    return calls == 0 or has_room(calls - 1)


class InlineExecutor:
    """Runs each call at once, on the thread that submits it. For quick tasks: it saves the hand-over to a thread."""

    __slots__ = ()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> None:
        """Call ``fn(*args)``.

        Raises:
            RecursionError: the stack is nearly exhausted. ``fn`` was not called.
        """
        has_room()
        fn(*args)


@attrs.frozen
class TimerStatistics:
    """A timer at one moment. Events are counted from the timer's start.

    Attributes:
        name: the timer's name.
        tick_ms: its resolution in milliseconds.
        wheel_size: how many buckets of one level a bucket of the next level spans.
        pending: the number of pending tasks.
        occupancy: the number of pending tasks on each level of the wheel, the finest level first.
        buckets: for each level, the number of tasks in each slot of its ring.
        next_deadline_ms: milliseconds until the next bucket comes due, or None.
        rescheduled: how often ``reschedule`` moved the deadline of a pending task.
        fired: the number of tasks that were run.
        failed: the number of these that raised an exception.
        late_ns: a histogram of the lateness of the tasks that were run. Entry *i* is the number of tasks that were less
            than ``2**i`` ns late and are in no earlier entry.
        late_sum_ns: the sum of the lateness, in nanoseconds.
        late_max_ns: the greatest lateness, in nanoseconds.
        handed_over: the number of due tasks in batches that the executor has not finished.
        running_since_ns: when the batch that has run longest began, on the timer's clock. None if none runs.
        hand: every bucket up to this tick was removed from the wheel.
        now_tick: the tick that the clock has reached.
    """

    name: str
    pending: int
    occupancy: tuple[int, ...]
    next_deadline_ms: float | None
    rescheduled: int
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
    now_tick: int
    buckets: tuple[tuple[int, ...], ...]


def report_error(error: BaseException) -> None:
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


class ShutdownOnExit:
    """As a context manager, an object of a subclass is shut down at the end of the block."""

    __slots__ = ()

    def shutdown(self) -> object:
        """Stop permanently."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Timer(ShutdownOnExit, abc.ABC):
    """Runs tasks after their delays. As a context manager it shuts down at the end of the block.

    A timer of your own must define ``add``, ``advance_clock``, ``size`` and ``shutdown``. The rest has defaults.
    """

    __slots__ = ()

    @abc.abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed. A pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            TaskHeld: the task is pending, and its class does not allow moving it.
            InvalidTask: ``task`` is not a task.
        """

    @abc.abstractmethod
    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for a bucket to come due, and expire it. Returns whether one expired."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many tasks are pending: added, not handed over to the executor, not cancelled."""

    @abc.abstractmethod
    def shutdown(self) -> list[TimerTask]:
        """Stop permanently. Returns the tasks that were pending, earliest first. Some may be past their deadline.

        Batches that were handed to the executor are run. The timers of this package wait for running tasks without a
        time limit. A second call has no effect.
        """

    def reschedule(self, task: TimerTask, delay_ms: float | None) -> bool:
        """Move the deadline of a pending task to ``delay_ms`` from now, later or earlier than it was.

        A delay below zero counts as zero, and None removes the deadline. ``task.delay_ms`` and ``task.added_ns`` do not
        change. This default removes the task and adds it again. If ``add`` raises, the task is in no timer.

        Returns:
            True if the task was pending here. Otherwise False, and nothing has changed.

        Raises:
            DelayTypeError, DelayValueError: the delay is not a number up to 10**12.
        """
        whole_ms = whole_delay_ms(delay_ms)
        kept_ms, added_ns = task._task_delay_ms, task.added_ns
        if not task._task_withdraw():
            return False
        task._task_delay_ms = whole_ms
        try:
            self.add(task)
        finally:
            task._task_delay_ms = kept_ms
        task._task_moved_by_ns = task._task_deadline_ns - kept_ms * NS_PER_MS - added_ns
        return True

    def advance_until(self, stopped: Callable[[], bool]) -> bool:
        """Wait until a bucket comes due, and expire it, or until ``stopped()`` is true. Returns whether one expired.

        A timer that may wait for long must call ``stopped`` before it waits and after each :meth:`wake`.
        """
        return not stopped() and self.advance_clock(POLL_MS)

    def wake(self) -> None:  # nothing to do for a timer whose waits are short
        """Wake all threads that wait in :meth:`advance_clock` or :meth:`advance_until`."""

    def _is_empty(self) -> bool:
        """Whether nothing is pending, so that a driver may :meth:`_rest`. Called by the argument of ``advance_until``.

        A timer that overrides this must override :meth:`_rest`, too. With this default, a driver keeps its reference to
        the timer, which is then never collected.
        """
        return False

    def _rest(self, wake: Callable[[Timer], object]) -> bool:  # noqa: ARG002
        """Call ``wake(self)`` when the timer is not empty any more, or is woken. False, and no call, if it is not."""
        return False

    def driven_by(self, driver: Driver) -> None:  # a timer may ignore it, and can then get a second driver
        """Note that ``driver`` drives this timer, so that no other driver begins to."""

    @property
    def name(self) -> str:
        """The timer's name in errors and statistics."""
        return type(self).__name__

    @property
    def inner(self) -> Timer:
        """The timer that holds the tasks: this one, unless it wraps another."""
        return self

    @property
    def driver(self) -> Driver | None:
        """The thread that drives the timer, with its heartbeat. None if there is none or the timer does not know it."""
        return None

    @property
    def is_driven(self) -> bool:
        """Whether the timer already has a driver."""
        return self.driver is not None

    @property
    def is_closed(self) -> bool:
        """Whether the timer was shut down. Always False for a timer that does not define it."""
        return False

    def now_ns(self) -> int:
        """The time on the timer's clock, which ``deadline_ns`` and ``added_ns`` of its tasks refer to."""
        return time.monotonic_ns()

    def statistics(self) -> TimerStatistics | None:
        """The timer as it is now, as a frozen value. None if it keeps no statistics."""
        return None
