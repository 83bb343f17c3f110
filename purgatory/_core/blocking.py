"""Waits that block the calling thread: ``wait_for`` and ``wait_for_result`` of a purgatory without a loop.

The thread waits for a plain lock, which is taken from the start. The thread that completes or cancels the operation
releases it. There is no timeout here: the purgatory's timer expires the operation, as it expires any other.

**Interrupts.** A signal handler of the main thread may raise ``KeyboardInterrupt`` while it waits. Then the wait is
cancelled, and a result that was found is given back. A signal that arrives just before a thread sleeps does not wake
it. So the main thread, which runs the handlers, looks up once per second.

Rejected: ``threading.Event``, which is a condition with a lock of its own. One wake needs no condition.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock, get_ident, main_thread
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from purgatory._core.errors import InvalidOperation
from purgatory._core.waits import PredicateWait, PurgatoryLike, ResultWait, Wait, raise_error_of, result_of

if TYPE_CHECKING:
    from purgatory._core.hooks import LockLike
    from purgatory._core.outcome import Outcome

ResultT = TypeVar("ResultT")

#: How long the main thread sleeps before it looks for signals.
LOOK_UP_S: Final = 1.0
#: The least time to wait for a ``Lock`` to become free, however short the wait itself is.
LOCK_PATIENCE_MS = 5_000
#: The type of a lock that does not know its owner. ``Lock`` itself is a function before Python 3.13.
PLAIN_LOCK: Final = type(Lock())


class Parks(PurgatoryLike, Protocol):
    """A purgatory that operations are parked in."""

    def try_complete_else_watch(self, operation: Any, watch_keys: Sequence[Hashable]) -> bool:
        """Park an operation."""


class WakesThread:
    """An operation that one thread waits for. A mixin: its subclasses add the slot.

    Attributes:
        wake: taken until the operation has completed or was cancelled. See :func:`sleep_on`.
    """

    __slots__ = ()

    wake: Lock

    def on_complete(self) -> None:
        """Wake the thread."""
        self.wake.release()

    def cancel(self) -> bool:
        """Remove the operation from its purgatory, and wake the thread."""
        if not super().cancel():  # type: ignore[misc]  # an operation's
            return False
        self.wake.release()
        return True


class Until(WakesThread, PredicateWait):
    """A thread that waits for a predicate."""

    __slots__ = ("wake",)


class Taking(WakesThread, ResultWait[ResultT]):
    """A thread that waits for a result."""

    __slots__ = ("wake",)


def outcome_of(purgatory: Parks, wait: Until, keys: Sequence[Hashable], lock: LockLike | None) -> Outcome:
    """Park the wait, block, and return the outcome. Raises what the predicate raised."""
    try:
        _block(purgatory, wait, keys, lock)
    except BaseException:
        wait.cancel()
        raise
    if wait.error is not None:
        raise_error_of(wait)
    outcome = wait.outcome
    assert outcome is not None
    return outcome


def result_for(purgatory: Parks, wait: Taking[ResultT], keys: Sequence[Hashable], lock: LockLike | None) -> ResultT:
    """Park the wait, block, and return the result. Raises the error that explains why there is none."""
    try:
        _block(purgatory, wait, keys, lock)
    except BaseException:
        wait.cancel()
        wait.give_back()
        raise
    return result_of(wait, purgatory, keys)


def _block(
    purgatory: Parks,
    wait: Until | Taking[Any],
    keys: Sequence[Hashable],
    lock: LockLike | None,
) -> None:
    """Park the wait, and return when it has an outcome."""
    if lock is not None:
        _reject_own_lock(wait, lock)
    wait.error = None
    wait.wake = taken_lock()
    purgatory.try_complete_else_watch(wait, keys)
    sleep_on(wait.wake)


def taken_lock() -> Lock:
    """A lock for :func:`sleep_on`."""
    lock = Lock()
    lock.acquire()
    return lock


def sleep_on(wake: Lock) -> None:
    """Block until another thread releases the lock."""
    longest_s = LOOK_UP_S if get_ident() == main_thread().ident else -1
    while not wake.acquire(timeout=longest_s):
        pass


def _reject_own_lock(wait: Wait, lock: LockLike) -> None:
    """Raise if this thread holds the lock of a wait: no other thread could then check it.

    A ``Lock`` does not know its owner. If this thread holds it, it does not become free. Another thread holds it for a
    moment only. So this waits for it for the time of the wait, and for :data:`LOCK_PATIENCE_MS` at least. Without a
    deadline it waits for ever.
    """
    if _is_held_here(lock):
        raise InvalidOperation(wait, "this thread holds its lock, which no other thread could take; release it first")
    if type(lock) is not PLAIN_LOCK or wait.delay_ms is None:
        return
    patience_ms = max(wait.delay_ms, LOCK_PATIENCE_MS)
    if not _is_free_within(lock, patience_ms / 1000):
        reason = (
            f"its lock was not free within {patience_ms} ms; if this thread holds it, release it first, or pass an "
            "RLock, whose owner is known at once"
        )
        raise InvalidOperation(wait, reason)


def _is_free_within(lock: LockLike, seconds: float) -> bool:
    taken: list[bool] = []
    try:
        taken.extend(map(lock.acquire, (True,), (seconds,)))  # one call, because of signals
        return taken[0]
    finally:
        if taken and taken[0]:
            lock.release()


def _is_held_here(lock: object) -> bool:
    """Whether this thread holds a lock that knows its owner, as an ``RLock`` and a ``Condition`` do."""
    is_owned = getattr(lock, "_is_owned", None)
    return callable(is_owned) and type(lock).__module__ in {"_thread", "threading"} and bool(is_owned())
