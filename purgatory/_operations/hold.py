"""The lock of an operation, in the form in which the hot path can afford it.

Who holds an operation may look at it. To take the hold is ``del hold[0]``, which raises ``IndexError`` if somebody has
it; to give it back is ``hold.append(None)``. An operation's own hold is a plain list with one cell: both are single
steps in the default and in the free-threaded build, cost 40 ns together where a ``threading.Lock`` tried and released
costs 125, and the list is made in half the time of a lock. A ``del`` is no call: the interpreter raises a
``KeyboardInterrupt`` after calls, where it would leave the hold taken by nobody.

An operation that shares the user's lock (``lock=``) has a :class:`SharedHold` instead, which speaks the same two words
and means the lock.

**Interrupts.** A ``KeyboardInterrupt`` strikes after a call, also one of ``acquire``, before its answer is noted
anywhere. So the answer is noted by the call itself: ``extend(map(acquire, ...))`` is one call, and what it found is in
the list when it is over. And a shared lock is given back by its own ``__exit__`` where it has one, as ``threading``'s
have: a method of ours could be struck before its first line.

Nobody ever waits for a hold but somebody who parks an operation that another thread is looking at already: that is
:func:`wait_for`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import MethodDescriptorType
from typing import Final, Protocol

from purgatory._support.errors import InvalidSetting

__all__ = ["Hold", "LockLike", "SharedHold", "checked_lock", "wait_for"]

#: The types of the locks that ``threading`` has, where they are C: one that is monkey-patched has classes of its own.
_THREADINGS: Final = tuple(
    kind
    for kind in (type(threading.Lock()), type(threading.RLock()))
    if isinstance(kind.__exit__, MethodDescriptorType)
)

#: What a gate is opened with: ``gate += A_CELL``, which is no call.
A_CELL: Final = (None,)

#: How long a parker rests between its tries.
REST_S: Final = 0.0001


class LockLike(Protocol):
    """What an operation asks of a lock: ``threading.Lock`` and ``threading.RLock`` have it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or say that it can't be had."""

    def release(self) -> None:
        """Let go."""


def checked_lock(lock: object) -> None:
    """Look whether what is given for a lock can be one.

    Raises:
        InvalidSetting: it can't.
    """
    if not (callable(getattr(lock, "acquire", None)) and callable(getattr(lock, "release", None))):
        raise InvalidSetting("lock", lock, "a lock with acquire() and release(), or None for a lock of its own")


class SharedHold:
    """The hold of an operation whose lock is the user's too."""

    __slots__ = ("append", "lock")

    def __init__(self, lock: LockLike) -> None:
        self.lock = lock
        #: Give it back; takes an argument, as a list's does.
        self.append: Callable[[None], object] = lambda _: lock.release()
        if isinstance(lock, _THREADINGS):
            self.append = lock.__exit__  # type: ignore[assignment]  # in C, they take whatever they are given
        else:
            checked_lock(lock)

    def __delitem__(self, place: int) -> None:
        """Take it, or raise ``IndexError``."""
        if not self.acquire(False):
            raise IndexError("held")

    def acquire(self, blocking: bool) -> bool:
        """Take it, at once or however long that takes; whether it was taken."""
        answers: list[bool] = []
        try:
            answers.extend(map(self.lock.acquire, (blocking,)))
            return answers[0]
        except BaseException:
            if any(answers):
                self.lock.release()
            raise


Hold = list[None] | SharedHold


def wait_for(hold: Hold, rest_s: float = REST_S) -> None:
    """Take the hold, however long that takes."""
    if isinstance(hold, SharedHold):
        hold.acquire(True)
        return
    while True:
        try:
            del hold[0]
        except IndexError:
            time.sleep(rest_s)  # an operation is rarely looked at before it is parked, and never for long
        else:
            return
