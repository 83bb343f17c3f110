"""The flows ``try_complete_else_watch`` and ``check_and_complete``.

**Two checks, one turn.** An event between the first check and the watch would be missed without the second check. The
parking thread keeps the turn over both, which prevents this deadlock:

    1. The parking thread has watched its operation under one key, and is about to watch it under another.
    2. A checking thread finds the operation complete, and runs ``on_complete``, which takes the user's lock X.
    3. The parking thread, whose caller holds X, is about to check again. Only one thread at a time may check, so it
       waits for the checking thread, which waits for X.

Instead, the thread of step 2 finds the turn taken, sets the recheck flag and returns. The parking thread checks once
more after it has given up the turn.

**Completed while arriving.** Any thread may force or cancel the operation while it is being parked. That thread decides
the outcome, and the parking thread removes the operation from its keys and the timer. The operation is added to the
timer *before* the step to PARKED. In the other order, a thread could complete it between the two and find nothing to
remove from the timer. The entry would stay there until its deadline.

**Shut down while arriving.** ``shutdown`` sets ``_closed`` before it collects the operations. The parking thread
watches first and reads ``_closed`` last. So either the shutdown finds the operation, or its parking thread removes it.

**Checks of many keys.** An operation under several of the keys is checked once, under the first of them. So an event on
100 keys that share 20 operations makes 20 checks in place of 2,000. If a check is interrupted, the retrier makes the
rest of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import copy_context
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from purgatory._core.arguments import admit, check_ready, each_once, reject_own_hook
from purgatory._core.errors import (
    AlreadyParked,
    InvalidTenant,
    PurgatoryClosed,
    PurgatoryFull,
    WatchKeysType,
    checked_int,
)
from purgatory._core.hooks import call_with
from purgatory._core.implementation import CORE, native_class
from purgatory._core.log import log, throttle
from purgatory._core.operation import NOWHERE, DelayedOperation
from purgatory._core.outcome import ARRIVING, IMMEDIATE, NEW, PARKED, SATISFIED
from timer import TimerClosed
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from purgatory._core.observers import Observers
    from purgatory._core.operation import Operation
    from purgatory._core.places import Places
    from purgatory._core.shards import Shard, Shards, Watchers
    from timer import Timer

#: The errors of an operation that gets no place.
NO_PLACE: Final = (PurgatoryFull, InvalidTenant)
#: How long a parking thread sleeps while another thread checks the operation.
RETRY_SLEEP_S: Final = 0.0001
#: How many operations a check with a limit reads from a key at first.
FIRST_PART: Final = 16


@attrs.frozen(eq=False)
class RestOfCheck:
    """For the retrier, which treats it as an operation: the rest of an interrupted check."""

    _parking: Parking
    keys: Sequence[Hashable]
    _limit: int | None
    _op_home_shard: Shard
    _op_state: ClassVar = NEW  # for overdue_ms(), which reads the deadlines of parked operations only

    def maybe_try_complete(self) -> None:
        if self._limit is not None:
            self._parking.check_and_complete_all(self.keys, self._limit)
            return
        for key in self.keys:
            watchers = self._parking._shards.find(key)
            for operation in [] if watchers is None else watchers.operations():
                operation._op_retry()  # each by itself, so that one whose check raises an interrupt stops no other


def retry_rest(parking: Parking, keys: Sequence[Hashable], limit: int | None) -> None:
    """Pass the rest of an interrupted check to the retrier, if there is any."""
    if keys and (limit is None or limit > 0):
        shard = parking._shards.shard_for(keys[0])
        if shard.retrier is not None:
            shard.retrier.retry(RestOfCheck(parking, keys, limit, shard))


def checked_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The keys as a tuple. Raises ``WatchKeysType`` if they are not an iterable of keys."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise WatchKeysType(keys)
    return tuple(keys)


def note_unwatched(parking: Parking, key: Hashable) -> None:
    """Note a check that found no operation under the key, if the purgatory has asked for such notes."""
    note = parking._note_unwatched
    if note is not None:
        note(key)


def _in_order(lists: Iterable[Watchers], limit: int | None) -> Iterator[Operation]:
    """The operations under the keys, each once.

    A key's list is copied only when it is reached. With a limit, its first :data:`FIRST_PART` operations come first.
    """
    seen: set[Operation] = set()
    for watchers in lists:
        for most in (None,) if limit is None else (FIRST_PART, None):
            for operation in watchers.operations(most):
                if operation not in seen:
                    seen.add(operation)
                    yield operation


class Parking:
    """Implements both flows. A separate class so that C can replace it."""

    __slots__ = (
        *("_admitted", "_places", "_closed", "_keep_context", "_name", "_note_unwatched", "_observers", "_shards"),
        "_timer",
    )

    def __init__(  # noqa: PLR0917  # one caller, the purgatory
        self,
        name: str,
        shards: Shards,
        timer: Timer | None,
        observers: Observers,
        places: Places | None,
        keep_context: bool = False,
    ) -> None:
        self._name = name
        self._shards = shards
        self._timer = timer
        self._observers = observers
        self._places = places
        self._keep_context = keep_context
        self._closed = False
        self._admitted: set[type] = set()  # types of operations that were checked
        self._note_unwatched: Callable[[Hashable], object] | None = None  # gets each key without operations

    def try_complete_else_watch(self, operation: DelayedOperation, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation at once, or park it under every key.

        A key that is named twice counts once. If this raises, the operation is not in the purgatory, unless it has
        completed.

        Returns:
            True if this call completed the operation without parking it. False if it is parked, or completed otherwise.

        Raises:
            NoKeys: ``watch_keys`` is empty.
            WatchKeysType: ``watch_keys`` is a ``str``, a named tuple, or not a sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is not an operation, a timer has it, one of its own hooks parks it, or its
                lock was not taken.
            AlreadyParked: the operation was parked before.
            PurgatoryFull: the operation would have to wait, and there is no place. It may be parked again later.
            InvalidTenant: the ``tenant`` function failed. The operation is unchanged.
            PurgatoryClosed: the purgatory is shut down.
            timer.TimerClosed: the given timer is shut down. The operation is cancelled.
        """
        # 1. check the type of the operation, once
        if type(operation) not in self._admitted:
            admit(self._admitted, operation)
        # 2. name each key once
        keys = each_once(watch_keys)
        # 3. find the home shard
        home_shard = self._shards.shard_for(keys[0])
        # 4. reject what cannot be parked
        if self._closed:
            raise PurgatoryClosed(self._name)
        check_ready(operation)
        lock = operation._op_user_lock
        reached = [NEW]  # the state that this thread has brought the operation to
        try:
            # 5. park, with the user's lock held
            if lock is None:
                completed = self._park(operation, home_shard, keys, reached)
            else:
                answer = call_with(lock, operation, self._park, operation, home_shard, keys, reached, wait=True)
                completed = bool(answer)
            if reached[0] == NEW:
                return False  # it had completed before, or is new again
            # 6. notify the observers
            if self._observers.any_parked and operation._op_state != IMMEDIATE:
                self._observers.notify("parked", operation)
            # 7. repeat a check that came while this thread had the turn
            if operation._op_recheck and operation._op_state == PARKED:
                operation.maybe_try_complete()
        except BaseException:
            # 8. after an exception the operation must not stay parked
            if reached[0] != NEW:
                operation.cancel()
                operation._op_remove()
            raise
        return completed

    def _park(
        self, operation: DelayedOperation, home_shard: Shard, keys: Sequence[Hashable], reached: list[int]
    ) -> bool:
        """Park the operation with the user's lock held. Returns whether a check here completed it."""
        # 1. arrive, or wait for the thread that checks the operation
        while not operation._op_arrive(home_shard, reached):
            if operation._op_home_shard is not NOWHERE:
                raise AlreadyParked(operation)
            if operation._op_state > PARKED:  # it had completed before
                return False
            reject_own_hook(operation)
            sleep(RETRY_SLEEP_S)  # another thread checks the operation
        # 2. the first check
        completed = operation._op_check_now(keys)
        if operation._op_state != ARRIVING:
            return completed
        # 3. take a place
        if self._places is not None and not self._find_place(operation, reached):
            return False
        try:
            # 4. watch under each key
            if self._keep_context:  # before another thread can find the operation
                operation._op_context = copy_context()
            home_shard.watch(operation, keys[0])
            for key in keys[1:]:
                if operation._op_state == ARRIVING:
                    self._shards.shard_for(key).watch(operation, key)
            # 5. the second check
            completed = operation._op_state == ARRIVING and operation._op_check_now(keys)
            if operation._op_state != ARRIVING:
                return completed
            # 6. add it to the timer, and park it
            self._start_waiting(operation, reached)
        finally:
            # 7. remove it if it is not parked
            if operation._op_state != PARKED:
                operation._op_remove()
        # 8. cancel it if the purgatory was closed meanwhile
        if self._closed and operation.cancel():
            raise PurgatoryClosed(self._name)
        return False

    def _find_place(self, operation: DelayedOperation, reached: list[int]) -> bool:
        """Take a place for the operation. False if it has an outcome. If this raises, it may be new again."""
        assert self._places is not None
        try:
            self._places.take(operation)
        except NO_PLACE:
            if operation._op_reset(reached):
                raise
            return False
        return True

    def _start_waiting(self, operation: DelayedOperation, reached: list[int]) -> None:
        """Add the operation to the timer, and take the step to parked."""
        if self._timer is None:
            set_deadline(operation)
            operation._op_finish_parking(reached)
            return
        try:
            # 1. add it to the timer
            operation._op_extended = False  # an extend() from here on may be too late for add(): see step 2
            self._timer.add(operation)
            # 2. take the step to parked, or add it again with the delay of an extend()
            while not operation._op_finish_parking(reached) and operation._op_state == ARRIVING:
                operation._op_extended = False
                if operation._task_withdraw():  # False if it is expiring already
                    self._timer.add(operation)
        except TimerClosed:
            # 3. a shutdown has closed the timer
            if not self._closed:
                raise
            if operation.cancel():  # a shutdown closed the timer, and did not find the operation
                raise PurgatoryClosed(self._name) from None

    def watching(self, key: Hashable) -> int:
        """How many operations a check of the key would look at. Raises :class:`UnhashableKey` if it has no hash."""
        watchers = self._shards.find(key)
        return 0 if watchers is None else len(watchers)

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in order of arrival.

        Call it after each event that might complete one, once the change is visible to other threads. After the
        shutdown it completes nothing, and logs ``checked_when_closed``.

        Args:
            key: the key.
            limit: stop after this number of completions, for an event that can satisfy only so many operations (one
                lock released, three items added). An operation whose ``lock=`` another thread holds does not count. Its
                check is repeated later and may complete it in addition.

        Returns:
            How many operations the checks of this call completed. One that is overdue and expires here does not count.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        if limit is not None:
            return self.check_and_complete_all([key], limit)
        # 1. find the key
        watchers = self._shards.find(key)
        completed = 0
        if not watchers:
            note_unwatched(self, key)
        else:
            try:
                # 2. check each operation under it
                for operation in watchers.operations():
                    if operation._op_state <= PARKED and operation.maybe_try_complete():
                        completed += 1
            except BaseException:
                # 3. after an interrupt the retrier makes the rest of the check
                retry_rest(self, (key,), None)
                raise
        # 4. log a check of a closed purgatory
        if self._closed and not completed:
            checked_when_closed(self._name)
        return completed

    def check_and_complete_all(self, keys: Iterable[Hashable], limit: int | None = None) -> int:
        """Check the operations parked under many keys, each operation once.

        Args:
            keys: any iterable of keys, but not a ``str`` or ``bytes``. They are checked in this order.
            limit: stop after this number of completions under all keys together, as in :meth:`check_and_complete`.

        Returns:
            How many operations this call completed.

        Raises:
            WatchKeysType: ``keys`` is a ``str`` or ``bytes``, or not iterable. Nothing was checked.
            UnhashableKey: a key has no hash. Nothing was checked.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        if limit is not None:
            checked_int("limit", limit, 1)
        given = checked_keys(keys)
        # 1. find all keys first: if one has no hash, nothing is checked
        lists = []
        for key in given:
            watchers = self._shards.find(key)
            if watchers is not None:
                lists.append(watchers)
            if not watchers:
                note_unwatched(self, key)
        completed = 0
        begun: Operation | None = None
        try:
            # 2. check each operation once, up to the limit
            for operation in _in_order(lists, limit):
                if operation._op_state <= PARKED:
                    begun = operation
                    completed += operation.maybe_try_complete()
                    begun = None
                    if completed == limit:
                        break
        except BaseException:
            # 3. after an interrupt the retrier makes the rest of the check
            completed += begun is not None and begun._op_state == SATISFIED  # a hook may have raised
            retry_rest(self, given, None if limit is None else limit - completed)
            raise
        # 4. log a check of a closed purgatory
        if self._closed and not completed:
            checked_when_closed(self._name)
        return completed


def checked_when_closed(name: str) -> None:
    """Log a check that found nothing after the shutdown began."""
    suppressed = throttle.admit("checked_when_closed", name)
    if suppressed is not None:
        log.info("checked_when_closed", purgatory=name, suppressed=suppressed)


def set_deadline(operation: DelayedOperation) -> None:
    """Set the deadline of an operation that no timer expires."""
    operation._task_deadline_ns = monotonic_ns() + operation._task_delay_ms * NS_PER_MS


if CORE is not None:
    Parking = native_class(Parking)  # type: ignore[misc]
