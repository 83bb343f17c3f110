"""The lock that an operation shares with its user (``lock=``).

The home shard's lock guards every operation (see ``purgatory._operations.operation``). A user's lock is held in
addition, while the operation is parked or checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from purgatory._support.errors import InvalidSetting

__all__ = ["LockLike", "call_with", "check_lock"]

ResultT = TypeVar("ResultT")


class LockLike(Protocol):
    """The methods that a lock must have. ``threading.Lock`` and ``threading.RLock`` have them."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Returns whether it was taken."""

    def release(self) -> None:
        """Release the lock."""


def check_lock(lock: object) -> None:
    """Raise ``InvalidSetting`` if a value has no ``acquire`` or no ``release``."""
    if not (callable(getattr(lock, "acquire", None)) and callable(getattr(lock, "release", None))):
        raise InvalidSetting("lock", lock, "a lock with acquire() and release(), or None")


def call_with(lock: LockLike, call: Callable[..., ResultT], *args: object, wait: bool) -> ResultT | None:
    """Call ``call(*args)`` with the lock held. If it is taken, wait for it, or return None if ``wait`` is False."""
    taken: list[bool] = []
    try:
        _take(lock, False, taken)
        if wait and not taken[0]:
            taken.clear()
            _take(lock, True, taken)
        return call(*args) if taken[0] else None
    finally:
        if taken and taken[0]:  # no call: a signal could raise an exception after it
            lock.release()


def _take(lock: LockLike, blocking: bool, taken: list[bool]) -> None:
    """Take the lock and record the answer in one call, because a signal can raise an exception between two calls."""
    taken.extend(map(lock.acquire, (blocking,)))
