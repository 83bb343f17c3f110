"""Checks of many keys, and checks with a limit.

An operation under several of the keys is checked once, under the first of them. So an event on 100 keys that share 20
operations makes 20 checks in place of 2,000. If a check is interrupted, the retrier makes the rest of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from purgatory._core.errors import WatchKeysType, checked_int
from purgatory._core.outcome import NEW, PARKED, SATISFIED

if TYPE_CHECKING:
    from purgatory._core.operation import Operation
    from purgatory._core.parking import Parking
    from purgatory._core.shard import Shard
    from purgatory._core.watchers import Watchers

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
    """Note a check that found no operation under the key, once the purgatory asks for it."""
    note = parking._note_unwatched
    if note is not None:
        note(key)


def check_keys(parking: Parking, keys: Iterable[Hashable], limit: int | None) -> int:
    """Check the operations under the keys until ``limit`` were completed. Returns how many this thread completed."""
    if limit is not None:
        checked_int("limit", limit, 1)
    given = checked_keys(keys)
    # 1. find all keys first: if one has no hash, nothing is checked
    found = []
    for key in given:
        watchers = parking._shards.find(key)
        if watchers is not None:
            found.append(watchers)
        if not watchers:
            note_unwatched(parking, key)
    completed = 0
    begun: Operation | None = None
    try:
        # 2. check each operation once, up to the limit
        for operation in _in_order(found, limit):
            if operation._op_state <= PARKED:
                begun = operation
                completed += operation.maybe_try_complete()
                begun = None
                if completed == limit:
                    break
    except BaseException:
        # 3. after an interrupt the retrier makes the rest of the check
        completed += begun is not None and begun._op_state == SATISFIED  # a hook may have raised
        retry_rest(parking, given, None if limit is None else limit - completed)
        raise
    return completed


def _in_order(found: Iterable[Watchers], limit: int | None) -> Iterator[Operation]:
    """The operations under the keys, each once. A key is read when it is reached, with a limit its first part first."""
    seen: set[Operation] = set()
    for watchers in found:
        for most in (None,) if limit is None else (FIRST_PART, None):
            for operation in watchers.operations(most):
                if operation not in seen:
                    seen.add(operation)
                    yield operation
