"""A task, and the part of it that belongs to the timer.

Kafka keeps a ``TimerTaskEntry`` beside every task: a link of a doubly linked list. Here the entry is the task's base
class, so that a pending task is one object and one slot of a hash table. Rejected, with 100,000 tasks outstanding on
CPython 3.11: an entry of its own (one more allocation, 56 bytes and some 150 ns a task), and linked lists in Python
(four attribute writes to link and four to unlink, where a dict does either in one C call that is atomic besides).

**Who may write the entry.** ``_bucket`` names the bucket that the task was last put into. It is written by who puts it
there, before doing so, and by nobody else; that the task *is* there, is for the bucket to say. Taking out is
``del`` or ``dict.pop``, atomic in the default and in the free-threaded build, so among a cancel, a move and an expiry
exactly one gets the task. Why who takes it out leaves ``_bucket`` alone:

    1. the executor pops the task, and is about to write None to ``_bucket``
    2. another thread adds the task again: writes ``_bucket``, inserts
    3. the executor writes None: the task is in a bucket, and can be neither cancelled nor claimed there
"""

# An entry is a task, but that is for TimerTask to say.
# mypy: disable-error-code="call-overload,arg-type"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from timer._clock import NS_PER_MS
from timer._edition import CORE
from timer._errors import DelayTypeError, DelayValueError, InvalidTask

if TYPE_CHECKING:
    from timer._bucket import TimerTaskList

__all__ = ["MISSING", "TimerTask", "TimerTaskEntry", "checked_delay_ms"]

#: What ``bucket.pop(task, MISSING)`` answers when somebody else has the task.
MISSING: Final = object()


def checked_delay_ms(delay_ms: object) -> int:
    """A delay as whole milliseconds; fractions are rounded up, because nothing may run early.

    Raises:
        DelayTypeError: it is no number, or a bool.
        DelayValueError: it is NaN or infinite.
    """
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, (int, float)):
        raise DelayTypeError(delay_ms)
    if isinstance(delay_ms, int):
        return int(delay_ms)
    if not math.isfinite(delay_ms):
        raise DelayValueError(delay_ms)
    return math.ceil(delay_ms)


class TimerTaskEntry:
    """All of a task but what it does: its delay, when it is due, and which bucket holds it."""

    __slots__ = ("__weakref__", "_bucket", "_deadline_ns", "_delay_ms", "_moved_ns")

    #: Whether ``Timer.add`` may move a task of this class that is pending. Whoever keeps an account of such tasks says
    #: no, so that nobody moves one past him.
    _movable: ClassVar[bool] = True

    _bucket: TimerTaskList | None
    _deadline_ns: int
    _delay_ms: int
    _moved_ns: int

    def __init__(self, delay_ms: int = 0) -> None:
        self._bucket = None
        self._deadline_ns = 0
        self._delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._moved_ns = 0

    @property
    def deadline_ns(self) -> int:
        """When the task falls due, on its timer's clock; 0 before it was ever added."""
        return self._deadline_ns

    @property
    def is_pending(self) -> bool:
        """Whether a timer holds the task."""
        bucket = self._bucket
        if bucket is None:
            return False
        if self in bucket:
            return True
        with bucket.lock:  # or it is just being moved: see _withdraw
            bucket = self._bucket
            return bucket is not None and self in bucket

    @property
    def delay_ms(self) -> int:
        """The delay that the task was made with."""
        return self._delay_ms

    @property
    def added_ns(self) -> int:
        """When the task was last added to a timer, on that timer's clock; 0 before it ever was.

        Putting a task off doesn't change it.
        """
        return self._deadline_ns - self._moved_ns - self._delay_ms * NS_PER_MS if self._deadline_ns else 0

    def _withdraw(self) -> bool:
        """Take the task out of its timer.

        Returns:
            True if it will now not run; False if it wasn't pending: never added, running, run, or cancelled already.
        """
        bucket = self._bucket
        if bucket is None:
            return False
        try:
            del bucket[self]
        except KeyError:
            # It is not where it was said to be: it ran, or is being moved just now. Moving is done under the timer's
            # lock, so behind that lock the answer is final (see TimingWheel, "One task, one bucket").
            with bucket.lock:
                bucket = self._bucket
                return bucket is not None and bucket.pop(self, MISSING) is not MISSING
        return True


if not TYPE_CHECKING and CORE is not None:
    TimerTaskEntry = CORE.TimerTaskEntry


class TimerTask(TimerTaskEntry):
    """Something to run when a delay is over: subclass it and define :meth:`run`.

    A delay of zero or less means "already due". A task may be added again, to the same timer or to another, and
    adding one that is pending moves it. Two threads that add *the same task* at the same time must agree among
    themselves who does; cancelling and putting off may be done from any thread at any time.

    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")
    >>> Ping(20).delay_ms
    20

    Raises:
        DelayTypeError: the delay is no number, or a bool.
        DelayValueError: the delay is NaN or infinite.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("__eq__", "__hash__"):
            if name in vars(cls):
                raise InvalidTask(
                    cls,
                    f"{cls.__qualname__} defines {name}, but tasks are told apart by identity; "
                    "with attrs or dataclasses say eq=False",
                )

    #: The public name. A name and not a call, which would cost an add and a cancel a fifth more.
    cancel = TimerTaskEntry._withdraw

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would share the original's bucket, keys and hold.

        Raises:
            TypeError: always; a subclass that knows better defines its own.
        """
        raise TypeError(f"cannot copy or pickle a {type(self).__qualname__}: there is but one of each; make another")

    def run(self) -> None:
        """Do what was put off. Called once per ``add``, on the timer's executor, unless cancelled before."""
        raise NotImplementedError(f"{type(self).__qualname__} must define run()")
