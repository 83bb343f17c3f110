"""The arguments of ``try_complete_else_watch``: whether an operation can be parked, and under which keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from inspect import iscoroutinefunction
from typing import Final

from purgatory._core.errors import AlreadyParked, InvalidOperation, NoKeys, WatchKeysType, unhashable
from purgatory._core.log import log
from purgatory._core.operation import NOWHERE, DelayedOperation
from timer._running import calls_here

#: Type combinations already warned about, and the greatest number that is kept.
_warned: set[tuple[str, ...]] = set()
MOST_WARNED: Final = 64

#: Why an operation is rejected.
NO_INIT: Final = "its __init__ does not call super().__init__(delay_ms)"
IN_TIMER: Final = "it was added to a timer; park one that is in no timer"
OWN_HOOK: Final = "one of its own hooks parks it, and would wait for itself"

#: Types that need no further check whether they are a sequence of keys.
PLAIN: Final = frozenset({list, tuple})


def check_ready(operation: DelayedOperation) -> None:
    """Check that an operation is initialized, was not parked before, and is not in its user's timer."""
    try:
        is_in_timer = operation._task_bucket is not None  # read first: parking sets the home shard before the bucket
        if operation._op_home_shard is not NOWHERE:
            raise AlreadyParked(operation)
    except AttributeError:
        raise InvalidOperation(operation, NO_INIT) from None
    if is_in_timer:
        raise InvalidOperation(operation, IN_TIMER)


def admit(admitted: set[type], operation: object) -> None:
    """Check a type of operations, once. A type whose hooks are coroutines is checked each time."""
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
    """The keys without repetitions. Raises ``WatchKeysType``, ``NoKeys`` or ``UnhashableKey``."""
    kind = type(watch_keys)
    if kind not in PLAIN:
        is_one_value = isinstance(watch_keys, (str, bytes, bytearray)) or hasattr(watch_keys, "_fields")  # named tuple
        if is_one_value or not isinstance(watch_keys, Sequence):
            raise WatchKeysType(watch_keys)
    keys = [*watch_keys]
    if len(keys) == 1:
        return keys
    try:
        keys = list(dict.fromkeys(keys))
    except TypeError as error:
        raise unhashable(watch_keys, error) from None
    if not keys:
        raise NoKeys
    if kind is tuple and len(set(map(type, keys))) > 1:  # a key such as ("orders", 0) was probably meant
        types = tuple(type(key).__qualname__ for key in watch_keys[:MOST_WARNED])
        if types not in _warned and len(_warned) < MOST_WARNED:
            _warned.add(types)
            advice = "a tuple is taken for a sequence of keys: write [key] for one, or a list of the keys to be sure"
            log.warning("keys_look_like_one", keys=watch_keys, advice=advice)
    return keys


def reject_own_hook(operation: DelayedOperation) -> None:
    """Reject parking an operation from one of its own hooks: the thread would wait for itself."""
    if any(task is operation for _, task, _, _ in calls_here()):
        raise InvalidOperation(operation, OWN_HOOK)
