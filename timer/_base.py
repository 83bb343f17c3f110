"""What every timer is, what it asks of an executor, and how it says how it stands."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from timer._task import TimerTask

__all__ = ["InlineExecutor", "Submits", "Timer", "TimerStatistics", "report_task_error"]


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
        wheel_size: how many buckets of one level a bucket of the next spans.
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
