"""Parking and checking: the two flows that every operation goes through.

**Two checks, one turn.** An event between the first check and the watch would be missed without the second check. The
parking thread keeps the turn over both, which prevents this deadlock:

    1. The parking thread has watched its operation under one key, and is about to watch it under another.
    2. A checking thread finds the operation complete, and runs ``on_complete``, which takes the user's lock X.
    3. The parking thread, whose caller holds X, calls ``try_complete`` again, which waits for the checking thread.

Because the parking thread has the turn, the checking thread sets the recheck flag and returns. The parking thread
checks once more after it has given up the turn.

**Completed while arriving.** Any thread may force or cancel the operation while it is being parked. That thread decides
the outcome, and the parking thread removes the operation from its keys and the timer. The operation is added to the
timer before the step to PARKED. Otherwise a thread that completes it between the two would find nothing to remove from
the timer, and the entry would stay there until its deadline.

**Shut down while arriving.** ``shutdown`` sets ``_closed`` before it collects the operations. The parking thread
watches first and reads ``_closed`` last. So either the shutdown finds the operation, or its parking thread removes it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final

from purgatory._events.log import log, throttle
from purgatory._events.outcome import ARRIVING, IMMEDIATE, PARKED
from purgatory._operations.operation import LOBBY, DelayedOperation, ParkingTurn
from purgatory._operations.user_lock import call_with
from purgatory._purgatory.many_keys import check_keys
from purgatory._support.edition import CORE, native_class
from purgatory._support.errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidTenant,
    NoKeys,
    PurgatoryClosed,
    PurgatoryFull,
    WatchKeysType,
    unhashable,
)
from purgatory._threads.watchdog import hooks_on_this_stack
from timer import NS_PER_MS, TimerClosed

if TYPE_CHECKING:
    from purgatory._events.observers import Observers
    from purgatory._keys.shard import Shard
    from purgatory._limits.capacity import Capacity
    from purgatory._purgatory.shards import Shards
    from timer import Timer

__all__ = ["Parking"]

#: The combinations of types that _warn_one_key() logged a warning for, and their greatest number.
_said: set[tuple[str, ...]] = set()
MOST_SAID: Final = 64

#: Types that need no further check whether they are a sequence of keys.
PLAIN: Final = frozenset({list, tuple})

#: How long a parking thread sleeps while another thread checks the operation.
REST_S: Final = 0.0001


class Parking:
    """Implements ``try_complete_else_watch`` and ``check_and_complete``. A separate class so that C can replace it.

    Args:
        name: the purgatory's name.
        shards: the watch lists.
        timer: expires operations; None if they do not expire.
        observers: are told of operations.
        capacity: limits the operations; None for no limit.
        keep_context: whether hooks run in a copy of the parking thread's context.
    """

    __slots__ = ("_admitted", "_capacity", "_closed", "_keep_context", "_name", "_observers", "_shards", "_timer")

    def __init__(  # noqa: PLR0917  # one caller, the purgatory
        self,
        name: str,
        shards: Shards,
        timer: Timer | None,
        observers: Observers,
        capacity: Capacity | None,
        keep_context: bool = False,
    ) -> None:
        self._name = name
        self._shards = shards
        self._timer = timer
        self._observers = observers
        self._capacity = capacity
        self._keep_context = keep_context
        self._closed = False
        self._admitted: set[type] = set()  # types of operations that were checked

    # -- park

    def try_complete_else_watch(self, operation: DelayedOperation, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation at once, or park it under every key.

        A key that is named twice counts once. If this raises, the operation is not in the purgatory, unless it has
        completed.

        Returns:
            True if this call completed the operation. False if it is parked, or was completed by another thread.

        Raises:
            NoKeys: ``watch_keys`` is empty.
            WatchKeysType: ``watch_keys`` is a ``str``, a named tuple, or not a sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is not an operation, a timer has it, or one of its own hooks parks it.
            AlreadyParked: the operation was parked before.
            PurgatoryFull: the operation would have to wait, and ``max_parked`` operations do. It is unchanged and may
                be parked again later.
            InvalidTenant: the ``tenant`` function failed. The operation is unchanged.
            PurgatoryClosed: the purgatory is shut down.
            timer.TimerFull: a timer that was given to the purgatory holds its ``max_pending`` tasks. The operation is
                cancelled. To limit a purgatory, use ``max_parked``.
        """
        if type(operation) not in self._admitted:
            admit(self._admitted, operation)
        keys = each_once(watch_keys)
        home = self._shards.of(keys[0])
        if self._closed:
            raise PurgatoryClosed(self._name)
        refuse_unready(operation, self._timer)
        turn = ParkingTurn()
        lock = operation._op_lock
        try:
            if lock is None:
                completed = self._park(operation, turn, home, keys)
            else:
                completed = call_with(lock, self._park, operation, turn, home, keys)
            if operation._op_home is LOBBY:
                return False  # it had completed before it was parked
            if self._observers.parked and operation._op_state != IMMEDIATE:
                self._observers.tell_parked(operation)
            if operation._op_recheck and operation._op_state == PARKED:
                operation.maybe_try_complete()  # a check came while this thread had the turn
        except BaseException:
            if turn.is_parked or operation._op_turn is turn:  # after an exception it must not stay parked
                operation.cancel()
                operation._op_leave()
            raise
        return completed

    def _park(self, operation: DelayedOperation, turn: ParkingTurn, home: Shard, keys: Sequence[Hashable]) -> bool:
        """Park the operation with the user's lock held. Returns whether a check here completed it."""
        if not (operation._op_arrive(home, turn) or arrive(operation, home, turn)):
            return False
        completed = operation._op_check_now(keys)
        if operation._op_state != ARRIVING:
            return completed
        if self._capacity is not None and not find_place(self._capacity, operation):
            return False
        try:
            if self._keep_context:  # before another thread can find the operation
                operation._op_context = copy_context()
            self._shards.watch(operation, home, keys)
            completed = operation._op_check_now(keys)
            if operation._op_state != ARRIVING:
                return completed
            self._add_to_timer(operation)
            operation._op_settle(turn)
        finally:
            if operation._op_state != PARKED:
                operation._op_leave()
        if self._closed and operation.cancel():
            raise PurgatoryClosed(self._name)
        return False

    def _add_to_timer(self, operation: DelayedOperation) -> None:
        if self._timer is None:
            operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS
            return
        try:
            self._timer.add(operation)
        except TimerClosed:
            was_open = operation.cancel()
            if not self._closed:
                raise
            if was_open:  # a shutdown closed the timer, and did not find the operation
                raise PurgatoryClosed(self._name) from None

    # -- check

    def watching(self, key: Hashable) -> int:
        """The number of operations under a key, which is what a check of the key costs.

        Raises:
            UnhashableKey: the key has no hash.
        """
        watchers = self._shards.find(key)
        return 0 if watchers is None else len(watchers)

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in order of arrival.

        Call it after each event that might complete one, once the change is visible to other threads. It may also be
        called after the shutdown. It then completes nothing, and logs ``checked_when_closed``.

        Args:
            key: the key.
            limit: stop after this number of completions, for an event that can satisfy only so many operations (one
                lock released, three items added). An operation whose ``lock=`` another thread holds does not count. Its
                check is repeated later and may complete it in addition.

        Returns:
            The number of operations that this call completed.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        if limit is not None:
            completed = check_keys(self, [key], limit)
        else:
            watchers = self._shards.find(key)
            completed = 0 if watchers is None else check_all(watchers.operations())
        if self._closed and not completed:
            checked_when_closed(self._name)
        return completed

    def check_and_complete_all(self, keys: Iterable[Hashable], limit: int | None = None) -> int:
        """Check the operations parked under many keys, each operation once.

        The keys are taken in their order, and the operations of each key in order of arrival. An operation under
        several of the keys is checked under the first one only.

        Args:
            keys: any iterable of keys, but not a ``str`` or ``bytes``. A repeated key counts once.
            limit: stop after this number of completions under all keys together, as in :meth:`check_and_complete`.

        Returns:
            The number of operations that this call completed.

        Raises:
            WatchKeysType: ``keys`` is a ``str`` or ``bytes``, or not iterable. Nothing was checked.
            UnhashableKey: a key has no hash. Nothing was checked.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        completed = check_keys(self, keys, limit)
        if self._closed and not completed:
            checked_when_closed(self._name)
        return completed


def checked_when_closed(name: str) -> None:
    """Log a check that found nothing after the shutdown began: its caller may not know that nothing waits any more."""
    suppressed = throttle.admit("checked_when_closed", name)
    if suppressed is not None:
        log.info("checked_when_closed", purgatory=name, suppressed=suppressed)


def check_all(operations: Sequence[DelayedOperation]) -> int:
    """Check operations. Returns how many this thread completed."""
    completed = 0
    try:
        for operation in operations:
            if operation._op_state <= PARKED and operation.maybe_try_complete():
                completed += 1
    except BaseException:  # this thread is interrupted, so the retrier makes the checks that are still owed
        for operation in operations:
            if operation._op_state <= PARKED:
                operation._op_retry()
        raise
    return completed


def arrive(operation: DelayedOperation, home: Shard, turn: ParkingTurn) -> bool:
    """Wait for the turn, and take the step to ARRIVING. False if the operation has completed before.

    Raises:
        AlreadyParked: the operation was parked before.
        InvalidOperation: a hook of the operation parks it.
    """
    while not operation._op_arrive(home, turn):
        if operation._op_home is not LOBBY:
            raise AlreadyParked(operation)
        if operation._op_state > PARKED:
            return False
        refuse_own_hook(operation)
        time.sleep(REST_S)  # another thread checks the operation: rare, and usually short
    return True


def refuse_unready(operation: DelayedOperation, timer: Timer | None) -> None:
    """Check that an operation can be parked now.

    Raises:
        InvalidOperation: its ``__init__`` does not call the library's, or it was added to a timer.
        AlreadyParked: it was parked before.
    """
    try:
        if operation._op_home is not LOBBY:
            raise AlreadyParked(operation)
    except AttributeError:
        raise InvalidOperation(operation, "its __init__ does not call super().__init__(delay_ms)") from None
    if timer is not None and operation._bucket is not None:
        refuse_timed(operation)


def admit(admitted: set[type], operation: object) -> None:
    """Check a type of operations, once. A type whose hooks are coroutines is checked each time.

    Raises:
        InvalidOperation: such an operation cannot be parked.
    """
    if not isinstance(operation, DelayedOperation):
        raise not_an_operation(operation)
    kind = type(operation)
    if kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__:
        raise InvalidOperation(operation, "operations are compared by identity; pass eq=False to attrs or dataclass")
    if iscoroutinefunction(operation.try_complete):
        raise InvalidOperation(operation, "its try_complete is a coroutine; make it a plain function")
    if iscoroutinefunction(operation.on_complete) or iscoroutinefunction(operation.on_expiration):
        raise InvalidOperation(
            operation, "its hooks are coroutines, which need an event loop; await the park() of an AsyncPurgatory"
        )
    # AsyncPurgatory.park() gives an instance plain hooks, but its type has coroutines and is checked each time.
    if not (iscoroutinefunction(kind.on_complete) or iscoroutinefunction(kind.on_expiration)):
        admitted.add(kind)


def not_an_operation(given: object) -> InvalidOperation:
    """The error for an object that is not an operation, with a hint if it is a class."""
    if not isinstance(given, type):
        return InvalidOperation(given, "it is not a DelayedOperation")
    name = given.__qualname__
    reason = f"expected a DelayedOperation instance, got the class {name}; create one first: {name}(...)"
    return InvalidOperation(given, reason)


def each_once(watch_keys: Sequence[Hashable]) -> Sequence[Hashable]:
    """The keys without repetitions.

    Raises:
        WatchKeysType: ``watch_keys`` is not a sequence of keys.
        NoKeys: it is empty.
        UnhashableKey: a key has no hash.
    """
    kind = type(watch_keys)
    if kind not in PLAIN and not _is_sequence_of_keys(watch_keys):
        raise WatchKeysType(watch_keys)
    keys = list(watch_keys)
    if len(keys) == 1:
        return keys
    try:
        keys = list(dict.fromkeys(keys))
    except TypeError:
        raise unhashable(watch_keys) from None
    if not keys:
        raise NoKeys
    if kind is tuple and len(set(map(type, keys))) > 1:
        _warn_one_key(watch_keys)
    return keys


def _is_sequence_of_keys(watch_keys: object) -> bool:
    is_one_value = isinstance(watch_keys, (str, bytes, bytearray)) or hasattr(watch_keys, "_fields")  # a named tuple
    return isinstance(watch_keys, Sequence) and not is_one_value


def _warn_one_key(watch_keys: Sequence[Hashable]) -> None:
    """Warn about ``("orders", 0)``: these are two keys, but one key, ``[("orders", 0)]``, was probably meant.

    The keys of one purgatory rarely have several types. The warning is logged once per combination of types.
    """
    types = tuple(type(key).__qualname__ for key in watch_keys[:MOST_SAID])
    if types not in _said and len(_said) < MOST_SAID:
        _said.add(types)
        log.warning(
            "keys_look_like_one",
            keys=watch_keys,
            advice="a tuple is taken for a sequence of keys: write [key] for one, or a list of the keys to be sure",
        )


def refuse_own_hook(operation: DelayedOperation) -> None:
    """Reject parking an operation from one of its own hooks: the thread would wait for itself.

    Raises:
        InvalidOperation: a hook of the operation parks it.
    """
    if id(operation) in map(id, hooks_on_this_stack()):
        raise InvalidOperation(operation, "one of its own hooks parks it, and would wait for itself")


def refuse_timed(operation: DelayedOperation) -> None:
    """Reject an operation that its user added to a timer.

    Raises:
        AlreadyParked: another thread has just parked it.
        InvalidOperation: a timer has it.
    """
    if operation.is_pending:
        if operation._op_home is not LOBBY:
            raise AlreadyParked(operation)
        raise InvalidOperation(operation, "it was added to a timer; the purgatory adds it and sets its deadline")


def find_place(capacity: Capacity, operation: DelayedOperation) -> bool:
    """Take a place. False if the operation has an outcome and needs none.

    Raises:
        PurgatoryFull: there is none. The operation is new again.
        InvalidTenant: the ``tenant`` function failed. The operation is new again.
    """
    try:
        capacity.take(operation)
    except (PurgatoryFull, InvalidTenant):
        if operation._op_turn_back():
            raise
        return False
    return True


if CORE is not None:
    Parking = native_class(Parking)  # type: ignore[misc]
