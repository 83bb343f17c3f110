"""Checks of many keys, and checks with a limit.

An operation under several of the keys is checked once, under the first of them. So an event on 100 keys that share 20
operations makes 20 checks in place of 2,000.

**Interrupts.** If the thread of a check is interrupted, the retrier repeats the rest of the check, because no other
thread knows of the event. Without a limit it checks every operation again. With a limit it completes the rest of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from purgatory._events.outcome import NEW, PARKED, SATISFIED
from purgatory._support.errors import WatchKeysType, checked_int, unhashable

if TYPE_CHECKING:
    from purgatory._keys.watchers import Watchers
    from purgatory._operations.operation import Operation
    from purgatory._purgatory.parking import Parking
    from purgatory._purgatory.shards import Shards

__all__ = ["RestOfCheck", "check_keys", "checked_keys", "hand_over"]

#: How many operations a check with a limit copies from a key at first.
FIRST_CHUNK: Final = 16


class RestOfCheck:
    """For the retrier: the rest of an interrupted check with a limit. The retrier treats it as an operation.

    Args:
        parking: the purgatory.
        keys: the keys to check.
        limit: how many operations to complete.
    """

    __slots__ = ("_limit", "_op_home_shard", "_parking", "keys")

    #: It is never overdue.
    _op_state = NEW

    def __init__(self, parking: Parking, keys: Sequence[Hashable], limit: int) -> None:
        self._parking = parking
        self._limit = limit
        self._op_home_shard = parking._shards.shard_for(keys[0])
        self.keys = keys

    def maybe_try_complete(self) -> None:
        """Make the rest of the check. Called by the retrier."""
        self._parking.check_and_complete_all(self.keys, self._limit)


def hand_over(parking: Parking, keys: Sequence[Hashable], limit: int) -> None:
    """Pass the rest of a check with a limit to the retrier, if there is any."""
    if limit > 0 and keys:
        rest = RestOfCheck(parking, keys, limit)
        if rest._op_home_shard.retrier is not None:
            rest._op_home_shard.retrier.retry(rest)


def checked_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The keys as a tuple. Raises ``WatchKeysType`` if they are not an iterable of keys."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise WatchKeysType(keys)
    return tuple(keys)


def check_keys(parking: Parking, keys: Iterable[Hashable], limit: int | None) -> int:
    """Check the operations under the keys until ``limit`` were completed. Returns how many this thread completed."""
    if limit is not None:
        checked_int("limit", limit, 1)
    given = checked_keys(keys)
    known = _known_watchers(parking._shards, given)
    completed = 0
    begun: Operation | None = None
    try:
        for operation in _in_order(known, all_at_once=limit is None):
            if operation._op_state > PARKED:
                continue
            begun = operation
            completed += bool(operation.maybe_try_complete())
            begun = None
            if completed == limit:
                break
    except BaseException:
        if limit is not None:
            completed += begun is not None and begun._op_state == SATISFIED
            hand_over(parking, given, limit - completed)
            raise
        for watchers in known:
            for operation in watchers.operations():
                operation._op_retry()
        raise
    return completed


def _known_watchers(shards: Shards, keys: Sequence[Hashable]) -> list[Watchers]:
    """The watchers of those keys that are known, each once."""
    try:
        once = dict.fromkeys(keys)
    except TypeError as error:
        raise unhashable(keys, error) from None
    return [watchers for key in once if (watchers := shards.find(key)) is not None]


def _in_order(known: list[Watchers], *, all_at_once: bool) -> Iterator[Operation]:
    """The operations under the keys, each once. A key's are read when it is reached, all at once or in chunks."""
    seen: set[Operation] = set()
    for watchers in known:
        if all_at_once:
            fresh = [operation for operation in watchers.operations() if operation not in seen]
            seen.update(fresh)
            yield from fresh
        else:
            for chunk in _growing_chunks(watchers, seen):
                yield from chunk


def _growing_chunks(watchers: Watchers, seen: set[Operation]) -> Iterator[list[Operation]]:
    """The operations under a key in order of arrival, some at a time, for a caller that may not need all of them.

    Those in ``seen`` are left out. All that were yielded are added to it.
    """
    # Operations that were checked and still wait come first, so each round reads twice as many.
    while chunk := [each for each in watchers.head(2 * len(seen) + FIRST_CHUNK) if each not in seen]:
        yield chunk
        seen.update(chunk)
