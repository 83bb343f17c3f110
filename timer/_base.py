"""What every timer is, what it asks of an executor, and how it says how it stands.

:class:`Timer` is all that the rest of the house knows of a timer: whoever has one in hand never asks which kind it is.
A timer of somebody else's need only define ``add``, ``advance_clock``, ``size`` and ``shutdown``; what it says nothing
about has an answer here that is true of every timer, if less than some could say.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from timer._clock import NS_PER_MS
from timer._task import checked_delay_ms

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from timer._reaper import Driver
    from timer._task import TimerTask

__all__ = ["FOREIGN_WAIT_MS", "InlineExecutor", "Submits", "Timer", "TimerStatistics", "report_task_error"]

#: How long a driver waits at a time in a timer that doesn't say how it can be called back, in milliseconds.
FOREIGN_WAIT_MS = 200


class Submits(Protocol):
    """What a timer asks of an executor: ``concurrent.futures.Executor.submit``.

    What it submits is a batch's :meth:`~timer.Batch.run`, to be called once, without arguments; an executor that wants
    to go easy may call it for a few tasks at a time, again and again.
    """

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
        put_off: how often a pending task's deadline was moved since the start.
        fired: tasks run since the start.
        failed: of these, how many raised.
        late_ns: lateness of the tasks run, as counts by power of two: entry *i* counts those less than ``2**i`` ns
            late and not counted in an entry before.
        late_sum_ns: the sum of all lateness.
        late_max_ns: the greatest lateness.
        handed_over: tasks whose time came, given to the executor in batches that are not finished.
        running_since_ns: when the batch that runs now was begun, on the timer's clock; None if none runs.
        tick_ms: how finely the timer tells time apart.
        wheel_size: how many buckets of one level a bucket of the next spans.
        hand: the tick up to which the wheel is empty; it moves from one occupied bucket to the next.
        now_tick: the tick that the clock has reached.
        buckets: of each level, the tasks in each of its buckets, in order of place.
    """

    name: str
    pending: int
    occupancy: tuple[int, ...]
    next_deadline_ms: float | None
    put_off: int
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


def report_task_error(task: TimerTask, error: BaseException) -> None:
    """The default for a timer's ``on_error``: hand the error to ``threading.excepthook``, as a thread's own."""
    del task
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


class Timer(abc.ABC):
    """Runs tasks after their delays. A context manager that shuts down on leaving."""

    __slots__ = ()

    # -- what every timer defines

    @abc.abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            TaskHeld: the task is pending, and of a class whose tasks are not anybody's to move.
            InvalidTask: it is no task.
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

    # -- what a timer may do better

    def put_off(self, task: TimerTask, delay_ms: float) -> bool:
        """Let a pending task run when ``delay_ms`` from now have passed, instead of when it would have.

        That may be later or earlier. ``task.delay_ms`` and ``task.added_ns`` stay what they were.

        Returns:
            True if the task was pending here, and the new deadline counts. False if it is running, has run, was
            cancelled or never added: then nothing has changed. There is nothing between: it runs once, by the one
            deadline or by the other.

        Raises:
            DelayTypeError: the delay is no number, or a bool.
            DelayValueError: the delay is NaN or infinite.
        """
        whole_ms = checked_delay_ms(delay_ms)
        kept_ms, added_ns = task._delay_ms, task.added_ns
        if not task._withdraw():
            return False
        task._delay_ms = whole_ms
        try:
            self.add(task)
        finally:
            task._delay_ms = kept_ms
        task._moved_ns = task._deadline_ns - kept_ms * NS_PER_MS - added_ns
        return True

    def advance_until(self, stopped: Callable[[], bool]) -> bool:
        """Wait for something to come due, and expire it, or for ``stopped()`` to be true.

        What a driver's thread calls, round after round. A timer that waits longer than a moment asks ``stopped`` before
        it waits and whenever it is woken by :meth:`wake`.

        Returns:
            True if a bucket expired.
        """
        return not stopped() and self.advance_clock(FOREIGN_WAIT_MS)

    def wake(self) -> None:  # noqa: B027  # a timer that nobody can wait in has nothing to do here
        """Make whoever waits in :meth:`advance_clock` or :meth:`advance_until` look again."""

    def driven_by(self, driver: Driver) -> None:  # noqa: B027  # a timer that takes no note of it may be driven by two
        """Take note that ``driver`` drives this timer, so that nobody else begins to."""

    # -- what a timer may say of itself

    @property
    def name(self) -> str:
        """What the timer is called, in errors and figures."""
        return type(self).__name__

    @property
    def inner(self) -> Timer:
        """The timer that holds the tasks: this one, unless it was only put around another."""
        return self

    @property
    def driver(self) -> Driver | None:
        """The thread that drives the timer, and its heartbeat; None if it is driven another way, or not known to be."""
        return None

    @property
    def is_driven(self) -> bool:
        """Whether somebody calls :meth:`advance_clock` already, so that a second driver would be one too many."""
        return self.driver is not None

    @property
    def is_closed(self) -> bool:
        """Whether the timer was shut down, as far as it says."""
        return False

    def now_ns(self) -> int:
        """The timer's clock, to which its tasks' ``deadline_ns`` and ``added_ns`` belong."""
        return time.monotonic_ns()

    def statistics(self) -> TimerStatistics | None:
        """The timer as it is now, as a frozen value; None if it keeps no account."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
