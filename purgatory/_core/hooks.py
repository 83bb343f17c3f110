"""What a call of a hook needs: room on the stack, and the lock that an operation shares with its user (``lock=``).

If the recursion limit were reached between an outcome and its hooks, the hooks would never run. So an operation gets
an outcome only if the stack has room for further calls. If not, the caller gets a ``RecursionError``, and
the operation stays open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Protocol

from purgatory._core.errors import InvalidOperation, InvalidSetting

#: How many calls must nest: a hook, and what it calls. PyPy measures the stack in bytes, and the frames of hooks take
#: more than these.
ROOM: Final = 20 if sys.implementation.name == "pypy" else 5


def has_room_for_outcome(calls: int = ROOM) -> bool:
    """Return True, or raise ``RecursionError`` if fewer than ``calls`` further calls fit on the stack."""
    return calls == 0 or has_room_for_outcome(calls - 1)


class LockLike(Protocol):
    """The methods that a lock must have. ``threading.Lock`` and ``threading.RLock`` have them."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Returns whether it was taken."""

    def release(self) -> None:
        """Release the lock."""


def check_lock(lock: object) -> None:
    if not (callable(getattr(lock, "acquire", None)) and callable(getattr(lock, "release", None))):
        raise InvalidSetting("lock", lock, "a lock with acquire() and release(), or None")


def lock_not_taken(operation: object, answer: object) -> InvalidOperation:
    """The error for a lock whose blocking ``acquire()`` returned a false value."""
    return InvalidOperation(operation, f"its lock was not taken: acquire() returned {answer!r}")


def call_with(lock: LockLike, operation: object, call: Callable[..., bool], *args: object, wait: bool) -> bool | None:
    """Call ``call(*args)`` with the user's lock held.

    If another thread holds the lock, wait for it, or return None if ``wait`` is False.
    """
    taken: list[bool] = []
    try:
        taken.extend(map(lock.acquire, (wait,)))  # one call: an interrupt between two would leave it locked
        if taken[0]:
            return call(*args)
        if wait:
            raise lock_not_taken(operation, taken[0])
        return None
    finally:
        if taken and taken[0]:
            lock.release()
