"""Parking and satisfying: the two flows that every operation goes through.

**Why the hold is kept over check, watch and check.** The second check is what makes parking safe: an event between the
first check and the watch would otherwise be missed. That both happen under the operation's hold prevents this:

    1. the parker has watched its operation under its first key, and is about to watch it under the second
    2. a checker checks the first key, finds the operation complete, and runs ``on_complete``, which takes lock X
    3. the parker, who holds X (its caller did), runs ``try_complete`` again and waits for what the checker holds

With the hold taken by the parker, the checker's try misses, sets the flag, leaves, and the parker looks again when it
gives the hold back.

**Completed meanwhile.** Anybody may force the operation, or take it out, while it is being parked. They find it
arriving, decide its outcome, and leave the rest to the parker, who finds the outcome when it takes the step to parked,
inside the same gate. The operation is in the timer by then, so whoever finds it *parked* finds it everywhere:

    1. the parker adds the operation to the timer after the step to parked
    2. a checker completes the operation in between, and finds no timer entry to cancel
    3. the entry stays in the timer until its time is up

**Loops inside a try.** CPython 3.12 and newer forget the handlers around a jump back that follows a condition, and an
interrupt may strike just there. So where a handler minds interrupts, the body of a loop ends with a plain statement.

**Shut down meanwhile.** ``shutdown`` sets ``_closed`` before it collects what is watched, a key at a time. The parker
watches before it takes the step to parked, and looks at ``_closed`` then. Making a key and listing the keys exclude one
another, and so do putting an operation under a key and copying that key's operations: so either the operation is
collected, or its parker sees the flag and takes it out again.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final

from purgatory._events.log import log
from purgatory._events.outcome import ARRIVING, IMMEDIATE, PARKED
from purgatory._operations.hold import wait_for
from purgatory._operations.operation import LOBBY, DelayedOperation, refuse_own_state, warn_still_open
from purgatory._purgatory.many_keys import check_keys
from purgatory._support.edition import CORE
from purgatory._support.errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidTenant,
    NoKeys,
    PurgatoryClosed,
    PurgatoryFull,
    WatchKeysType,
    unhashable,
    whole,
)
from purgatory._threads.watchdog import hooks_on_this_stack
from timer import NS_PER_MS, TimerClosed

if TYPE_CHECKING:
    from purgatory._events.observers import Observers
    from purgatory._keys.watchers import WatcherList, Watchers
    from purgatory._limits.capacity import Capacity
    from purgatory._operations.operation import Operation
    from purgatory._purgatory.shards import Shards
    from timer import Timer

__all__ = ["Parking"]

#: Sorts of tuples that were warned of, and how many that may be.
_said: set[tuple[str, ...]] = set()
MOST_SAID: Final = 64

#: Types that are sequences of keys, without a closer look.
PLAIN: Final = frozenset({list, tuple})

#: How many operations a check with a limit takes from a key at a time.
STRETCH: Final = 16


class Parking:
    """What both flows need of a purgatory, and the flows; a type of its own, as it may be native.

    Args:
        name: the purgatory's name.
        shards: who waits under which key.
        timer: expires operations; None if they don't expire.
        observers: are told of operations.
        capacity: whose places they take.
        keep_context: whether hooks run in the context of whoever parked.
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
        self._admitted: set[type] = set()  # types of operations that were looked at

    # -- park

    def try_complete_else_watch(self, operation: DelayedOperation, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation at once, or park it under every key.

        A key named twice counts once. If this raises, the operation is not in the purgatory, unless it has completed.

        Returns:
            True if this call completed the operation; False if it is parked (or was completed by another thread
            meanwhile, or before).

        Raises:
            NoKeys: there are no keys.
            WatchKeysType: ``watch_keys`` is a ``str``, a named tuple, or no sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is no operation; a timer has it; or a hook of its own asks for this.
            AlreadyParked: the operation was given to a purgatory before.
            PurgatoryFull: it would have to wait, and ``max_parked`` operations do. It was not touched, and may be
                parked again later.
            InvalidTenant: the ``tenant`` function failed. The operation was not touched.
            PurgatoryClosed: the purgatory is shut down.
        """
        if type(operation) not in self._admitted:
            admit(self._admitted, operation)
        keys = watch_keys
        if not (type(keys) is list or type(keys) is tuple) or len(keys) != 1:
            keys = each_once(keys)
        home = self._shards.of(keys[0])
        if self._closed:
            raise PurgatoryClosed(self._name)

        try:
            hold, at_home = operation._hold, operation._home
        except AttributeError:
            raise InvalidOperation(operation, "its __init__ doesn't call super().__init__(delay_ms)") from None
        if at_home is not LOBBY:
            raise AlreadyParked(operation)
        if operation._bucket is not None and self._timer is not None:
            refuse_timed(operation)
        try:
            del hold[0]
        except IndexError:
            refuse_own_hook(operation)
            wait_for(hold)
        is_in = False
        try:
            try:
                operation._busy = True
                if not operation._arrive(home):
                    return False  # it completed before it came here
                completed = self._let_in(operation, home, keys)
                is_in = True
            finally:
                operation._busy = False
                hold.append(None)
            if self._observers.parked and operation._state != IMMEDIATE:
                self._observers.tell_parked(operation)
            if operation._pending:
                operation.maybe_try_complete()
        except BaseException:
            if is_in:  # this thread is being stopped, and its caller can't tell whether the operation is parked
                operation.cancel()
            elif operation._pending and operation._state == PARKED:
                # Another parker's: a check may have missed the hold while this thread had it for nothing.
                operation.maybe_try_complete()
            raise
        return completed

    def _let_in(self, operation: DelayedOperation, home: WatcherList, keys: Sequence[Hashable]) -> bool:
        """From arriving to parked, or to an outcome. Whether a check here completed the operation."""
        completed = may_stay = is_parked = False
        try:
            while True:  # twice: before it is watched, and after
                operation._checks += 1
                try:
                    if operation.try_complete():
                        if operation._state == IMMEDIATE:
                            completed = True
                        elif operation._state == ARRIVING:
                            warn_still_open(operation, keys)
                except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                    operation._contain("try_complete", error, keys)
                if operation._state != ARRIVING:
                    return completed
                if may_stay:
                    break
                may_stay = True
                if self._capacity is not None and not find_place(self._capacity, operation):
                    return False
                if self._keep_context:  # before anybody can find it
                    operation._context = copy_context()
                self._shards.watch(operation, home, keys)
            if self._timer is not None:
                self._timer.add(operation)
            else:
                operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS
            is_parked = operation._settle_down(home)
            if self._closed and operation.cancel():
                raise PurgatoryClosed(self._name)
            return False
        except TimerClosed:
            if not self._closed:
                operation.cancel()
                raise
            # A shutdown came between: it has settled the operation, or that is for the caller to do.
            if operation.cancel():
                raise PurgatoryClosed(self._name) from None
            return False
        except BaseException:
            operation.cancel()
            raise
        finally:
            if may_stay and not is_parked:
                try:
                    operation._leave()
                except BaseException:  # struck by an interrupt just then
                    operation._leave()
                    raise

    # -- satisfy

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in the order in which they came.

        Call it after each event that might complete one, once the change is visible to other threads.

        Args:
            key: the key.
            limit: stop once so many have been completed: for an event that is good for so many and no more (one lock
                let go, three items added). Those that can't complete are passed over, and count for nothing. So does
                one whose ``lock=`` another thread holds: its check is made up later, and may complete it besides.

        Returns:
            How many operations this call completed.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is no whole number, or less than 1.
        """
        watchers = self._shards.of(key).find(key)
        if limit is not None:
            return check_some(watchers, limit)
        if watchers is None:
            return 0
        completed = 0
        operations = [*watchers.keys()]  # operations(), without the call: a copy, as they come and go while hooks run
        try:
            for operation in operations:
                completed += 1 if operation._state <= PARKED and operation.maybe_try_complete() else 0
        except BaseException:
            _check_later(operations)
            raise
        return completed

    def check_and_complete_all(self, keys: Iterable[Hashable], limit: int | None = None) -> int:
        """Check the operations parked under many keys, each operation once.

        For an event that touches many keys. The keys are taken in their order, and the operations of each key in order
        of arrival. An operation under several of the keys is checked under the first one only.

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
        return check_keys(self._shards, keys, limit)


def check_some(watchers: Watchers | None, limit: int) -> int:
    """Check the operations under a key until ``limit`` were completed, and look at hardly more than those."""
    whole("limit", limit, 1)
    if watchers is None:
        return 0
    completed = 0
    seen: set[Operation] = set()
    stretch = watchers.head(STRETCH)
    # Not by stretches(): an interrupt that strikes as an unfinished generator is closed goes nowhere.
    while stretch:
        try:
            for operation in stretch:
                if completed == limit:
                    return completed
                completed += 1 if operation._state <= PARKED and operation.maybe_try_complete() else 0
        except BaseException:
            _check_later(stretch)
            raise
        if completed == limit:
            return completed
        stretch = _behind(watchers, seen, stretch)
    return completed


def stretches(watchers: Watchers) -> Iterator[list[Operation]]:
    """The operations under a key in order of arrival, some at a time: for whoever hopes not to need them all."""
    seen: set[Operation] = set()
    stretch = watchers.head(STRETCH)
    while stretch:
        yield stretch
        stretch = _behind(watchers, seen, stretch)


def _behind(watchers: Watchers, seen: set[Operation], stretch: list[Operation]) -> list[Operation]:
    """The stretch after one that was looked at, which is added to those that were seen."""
    # What was looked at and waits on stands at the head: look behind it, twice as far each time.
    seen.update(stretch)
    return [operation for operation in watchers.head(2 * len(seen) + STRETCH) if operation not in seen]


def admit(admitted: set[type], operation: object) -> None:
    """Look at a type of operations, which is done once; at one whose hooks are coroutines, each time.

    Raises:
        InvalidOperation: those can't be parked.
        ReservedName: this one has taken a name that the library keeps its state in.
    """
    if not isinstance(operation, DelayedOperation):
        raise InvalidOperation(operation, "it is no DelayedOperation")
    kind = type(operation)
    if kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__:
        raise InvalidOperation(operation, "operations are told apart by identity; say eq=False to attrs or dataclass")
    if iscoroutinefunction(operation.try_complete):
        raise InvalidOperation(operation, "its try_complete is a coroutine, and nobody can await while it is asked")
    if iscoroutinefunction(operation.on_complete) or iscoroutinefunction(operation.on_expiration):
        raise InvalidOperation(
            operation, "its hooks are coroutines, which need a loop: await the park() of an AsyncPurgatory"
        )
    refuse_own_state(operation)
    # One that park() has in hand has plain hooks of its own. Its type hasn't, and is looked at again each time.
    if not (iscoroutinefunction(kind.on_complete) or iscoroutinefunction(kind.on_expiration)):
        admitted.add(kind)


def each_once(watch_keys: Sequence[Hashable]) -> list[Hashable]:
    """The keys without those that are named again.

    Raises:
        WatchKeysType: that is no sequence of keys.
        NoKeys: there are none.
        UnhashableKey: one has no hash.
    """
    # Whether something is a sequence costs as much to ask as to tell three keys apart.
    if type(watch_keys) not in PLAIN and (
        isinstance(watch_keys, (str, bytes, bytearray))
        or not isinstance(watch_keys, Sequence)
        or (isinstance(watch_keys, tuple) and hasattr(watch_keys, "_fields"))  # a named tuple is one value
    ):
        raise WatchKeysType(watch_keys)
    keys = list(watch_keys)
    try:
        if len(set(keys)) != len(keys):  # a set is made in a third of the time of the dict that keeps their order
            keys = list(dict.fromkeys(keys))
    except TypeError:
        raise unhashable(watch_keys) from None
    if not keys:
        raise NoKeys
    if type(watch_keys) is tuple and len(set(map(type, keys))) > 1:
        _warn_one_key(watch_keys)
    return keys


def _warn_one_key(watch_keys: tuple[Hashable, ...]) -> None:
    """``("orders", 0)`` is two keys, and ``[("orders", 0)]`` was probably meant. Said once for each sort of tuple.

    Keys of one purgatory are rarely of several types, and those who give them all hold them in a list as a rule.
    """
    sort = tuple(type(key).__qualname__ for key in watch_keys[:MOST_SAID])
    if sort not in _said and len(_said) < MOST_SAID:
        _said.add(sort)
        log.warning(
            "keys_look_like_one",
            keys=watch_keys,
            advice="a tuple is taken for a sequence of keys: write [key] for one, or a list of the keys to be sure",
        )


def refuse_own_hook(operation: Operation) -> None:
    """A parker who finds the hold taken waits for it: not if it is the thread that has it, which would wait for ever.

    Raises:
        InvalidOperation: a hook of the operation is what parks it.
    """
    if id(operation) in map(id, hooks_on_this_stack()):
        raise InvalidOperation(operation, "a hook of its own asks for it, and would wait for itself")


def refuse_timed(operation: Operation) -> None:
    """An operation that its user gave to a timer would be taken out of that, or be held there: neither was asked for.

    Raises:
        AlreadyParked: it is a purgatory's: another thread has just parked it, which gave it a home first.
        InvalidOperation: a timer has it.
    """
    if operation.is_pending:
        if operation._home is not LOBBY:
            raise AlreadyParked(operation)
        raise InvalidOperation(operation, "it was added to a timer; the purgatory does that, and gives it its deadline")


def find_place(capacity: Capacity, operation: Operation) -> bool:
    """Take a place for an operation that has to wait; False if it need not any more.

    Raises:
        PurgatoryFull: there is none; the operation is as it was before it came.
        InvalidTenant: whose it is can't be found out; likewise.
    """
    try:
        capacity.take(operation)
    except (PurgatoryFull, InvalidTenant):
        if operation._turn_back():
            raise
        return False
    return True


def _check_later(operations: Iterable[Operation]) -> None:
    """This thread is being stopped: those under the key that have not had their check get it from somebody else."""
    for operation in operations:
        if operation._state <= PARKED:
            operation._retry()


if CORE is not None:
    Parking = CORE.Parking  # type: ignore[misc]
