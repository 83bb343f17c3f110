"""Checks of many keys at once, for an event that touches many keys.

An operation under several of the keys is checked once, under the first of them. So an event on 100 keys that share 20
operations makes 20 checks in place of 2,000.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from purgatory._support.errors import WatchKeysType, unhashable, whole

if TYPE_CHECKING:
    from purgatory._keys.watchers import Watchers
    from purgatory._operations.operation import Operation
    from purgatory._purgatory.shards import Shards

__all__ = ["check_keys", "checked_keys"]

#: How many operations a check with a limit copies from a key at first.
STRETCH: Final = 16


def checked_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The keys as a tuple.

    Raises:
        WatchKeysType: they are not an iterable of keys.
    """
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise WatchKeysType(keys)
    return tuple(keys)


def check_keys(shards: Shards, keys: Iterable[Hashable], limit: int | None) -> int:
    """Check the operations under the keys until ``limit`` were completed. Returns how many this thread completed."""
    if limit is not None:
        whole("limit", limit, 1)
    given = checked_keys(keys)
    try:
        once = dict.fromkeys(given)
    except TypeError:
        raise unhashable(given) from None
    rows = [watchers for key in once if (watchers := shards.find(key)) is not None]
    completed = 0
    try:
        for operation in _in_order(rows, all_at_once=limit is None):
            completed += bool(operation.maybe_try_complete())
            if completed == limit:
                break
    except BaseException:  # this thread is interrupted, so the retrier makes the checks that are still owed
        for watchers in rows:
            for operation in watchers.operations():
                operation._op_retry()
        raise
    return completed


def _in_order(rows: list[Watchers], *, all_at_once: bool) -> Iterator[Operation]:
    """The operations under the keys, each once. A key's are read when it is reached, all at once or in stretches."""
    seen: set[Operation] = set()
    for watchers in rows:
        fresh = watchers.operations() if all_at_once else watchers.head(2 * len(seen) + STRETCH)
        while fresh := [operation for operation in fresh if operation not in seen]:
            for operation in fresh:
                seen.add(operation)
                yield operation
            if all_at_once:
                break
            fresh = watchers.head(2 * len(seen) + STRETCH)  # checked operations that still wait stand at the head
