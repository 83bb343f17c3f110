"""A task: its delay, its deadline, and the bucket that it waits in.

Kafka links one ``TimerTaskEntry`` per task into a list. Here a task *is* its entry, which saves 56 bytes and 150 ns.

``task._task_bucket`` names the bucket that holds the task, or None. The timer's lock guards it and the buckets. A
thread that cancels does not know the timer, so it reads ``_task_bucket`` first, takes the lock of that bucket and reads
``_task_bucket`` again:

    1. ``cancel()`` reads the old bucket from ``_task_bucket``.
    2. The cascade moves the task to a finer bucket, under the lock.
    3. ``cancel()`` has the lock, finds another bucket in ``_task_bucket``, and starts again.

Without the second read, ``cancel()`` would return False and the task would run.
"""

# Every TimerTaskEntry is a TimerTask in fact, but its type does not say so.
# mypy: disable-error-code="call-overload,arg-type"

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from timer._errors import DelayTypeError, DelayValueError, InvalidTask
from timer._implementation import native_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from timer._bucket import TimerTaskList

#: Nanoseconds per millisecond. Delays are milliseconds, and clocks are nanoseconds.
NS_PER_MS: Final = 1_000_000
#: The longest delay: 31 years. All times that follow from it fit into 64 bits.
MOST_MS: Final = 10**12
#: The delay of a task without a deadline, which no one waits for.
NEVER_MS: Final = 2 * MOST_MS


def checked_delay_ms(delay_ms: object) -> int:
    """A delay as whole milliseconds, rounded up, because nothing may run early. Below zero it counts as zero."""
    if isinstance(delay_ms, bool):
        raise DelayTypeError(delay_ms)
    try:
        number = index(delay_ms) if hasattr(delay_ms, "__index__") else _float(delay_ms)
    except TypeError:
        raise DelayTypeError(delay_ms) from None
    if not -math.inf < number <= MOST_MS:  # so NaN is rejected, too
        raise DelayValueError(delay_ms)
    return max(0, math.ceil(number))


def _float(number: Any) -> float:
    try:
        return float(type(number).__float__(number))  # unlike float(), this takes no text
    except AttributeError:
        raise TypeError from None
    except OverflowError:
        return math.inf


def whole_delay_ms(delay_ms: object) -> int:
    """A delay in whole milliseconds, or :data:`NEVER_MS` for None: no deadline."""
    if type(delay_ms) is int and 0 <= delay_ms <= MOST_MS:  # nearly always
        return delay_ms
    return NEVER_MS if delay_ms is None else checked_delay_ms(delay_ms)


def as_number(delay_ms: int | None) -> int:
    """The ``delay_ms`` of a task as a number: :data:`NEVER_MS` for None."""
    return NEVER_MS if delay_ms is None else delay_ms


def not_a_task(task: object) -> InvalidTask:
    """The error for an object that is not a task, or whose ``__init__`` was not called."""
    if not isinstance(task, TimerTaskEntry):
        return InvalidTask(task)
    kind = type(task).__qualname__
    return InvalidTask(task, f"{kind} was not initialized; call super().__init__(delay_ms) in its __init__")


@native_class
class TimerTaskEntry:
    """The timer's part of a task: its delay, its deadline, and the bucket that holds it."""

    __slots__ = ("__weakref__", "_task_bucket", "_task_deadline_ns", "_task_delay_ms", "_task_moved_by_ns")

    #: Whether a purgatory owns the tasks of this class. Then ``Timer.add`` does not move a pending one, and ``run`` may
    #: be called again after an interrupt.
    _task_is_owned: ClassVar[bool] = False
    #: Whether it must not run any more. An operation says so once it has an outcome.
    _task_is_done: ClassVar[bool] = False

    def __init__(self, delay_ms: float | None = 0) -> None:
        whole_ms = whole_delay_ms(delay_ms)
        if getattr(self, "_task_bucket", None) is None:  # a second __init__ of a pending task changes nothing
            self._task_bucket: TimerTaskList | None = None
            self._task_deadline_ns = self._task_moved_by_ns = 0
            self._task_delay_ms = whole_ms

    @property
    def deadline_ns(self) -> int | None:
        """When the task is due, on its timer's clock. 0 before it was ever added, and None if it has no deadline."""
        waits_ns = self._task_delay_ms * NS_PER_MS + self._task_moved_by_ns
        return self._task_deadline_ns if waits_ns < NEVER_MS * NS_PER_MS else None

    @property
    def is_pending(self) -> bool:
        """Whether a timer holds the task."""
        return self._task_bucket is not None

    @property
    def delay_ms(self) -> int | None:
        """The delay that the task was made with, in whole milliseconds. None: it was made without a deadline."""
        return self._task_delay_ms if self._task_delay_ms < NEVER_MS else None

    @property
    def added_ns(self) -> int:
        """When the task was last added to a timer, on that timer's clock. 0 before it was ever added."""
        if not self._task_deadline_ns:
            return 0
        return self._task_deadline_ns - self._task_moved_by_ns - self._task_delay_ms * NS_PER_MS

    def _task_withdraw(self) -> bool:
        """Remove the task from its timer. Returns True if it will now not run, and False if it was not pending."""
        while (bucket := self._task_bucket) is not None:
            with bucket.lock:
                if self._task_bucket is bucket:
                    del bucket[self]
                    self._task_bucket = None
                    return True
            # Another thread has moved or removed the task: read its bucket again.
        return False


class TimerTask(TimerTaskEntry):
    """A task that runs after a delay. Subclass it and define :meth:`run`.

    A delay is any number up to 10**12 (31 years), rounded up. Below zero it counts as zero: the task is due at once.
    With None the task has no deadline. It is pending until it is cancelled, or rescheduled.

    A task may be added again, to the same timer or to another. A pending task is then moved. Any thread may cancel or
    reschedule a task at any time, but two threads must not add *the same task* at the same time. The default of
    :meth:`Timer.reschedule` adds it, too.

    A subclass may use any names except the public names of this class and names that begin with ``_task_``.

    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")

    Raises:
        DelayTypeError, DelayValueError: the delay is not a number up to 10**12.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("__eq__", "__hash__"):
            if getattr(cls, name) is not getattr(object, name):
                raise InvalidTask(
                    cls,
                    f"{cls.__qualname__} has its own {name}, but tasks are told apart by identity; "
                    "with attrs or dataclasses pass eq=False",
                )

    #: The public name of ``_task_withdraw``.
    cancel: ClassVar[Callable[[TimerTask], bool]] = TimerTaskEntry._task_withdraw

    def __reduce__(self) -> NoReturn:
        """Reject copying and pickling with ``TypeError``: a copy would share the original's bucket."""
        raise TypeError(f"cannot copy or pickle a {type(self).__qualname__}: create a new one")

    def run(self) -> None:
        """Do the work. Called once per ``add``, on the timer's executor, unless the task is cancelled before."""
        raise NotImplementedError(f"{type(self).__qualname__} must define run()")
