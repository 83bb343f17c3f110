"""All shards of a purgatory: which of them a key belongs to, which operations wait, and the totals.

A shard is made when the first operation is parked under one of its keys. So an empty purgatory is small, and a check of
an unknown key makes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Final

from purgatory._core.errors import unhashable
from purgatory._core.outcome import CANCELLED, EXPIRED, FORCED, IMMEDIATE, NEW, OUTCOMES, PARKED, SATISFIED
from purgatory._core.snapshot import Totals

if TYPE_CHECKING:
    from purgatory._core.operation import DelayedOperation
    from purgatory._core.shard import Shard
    from purgatory._core.watchers import Watchers

#: How many keys are read before another thread may run.
CHUNK: Final = 2048
#: More shards do not help: each has a place in a table from the start.
MOST_SHARDS: Final = 1_048_576


class Shards:
    """Up to ``count`` shards of a purgatory. ``make`` makes one when it is needed."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[], Shard]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, Shard] = {}

    def shard_for(self, key: Hashable) -> Shard:
        """The shard that a key belongs to. It is made if it does not exist."""
        try:
            number = hash(key) % self._count
        except TypeError as error:
            raise unhashable([key], error) from None
        shard = self._made.get(number)
        if shard is None:
            shard = self._made.setdefault(number, self._make())  # another thread may have made it first
        return shard

    def find(self, key: Hashable) -> Watchers | None:
        """The watchers of a key, or None if the key is not known."""
        try:
            shard = self._made.get(hash(key) % self._count)
        except TypeError as error:
            raise unhashable([key], error) from None
        return None if shard is None else shard.find(key)

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._made.values()))  # a copy, because another thread may make one meanwhile

    def __len__(self) -> int:
        return self._count

    def walk(self) -> Iterator[Watchers]:
        """The watchers of every key, idle keys included, one shard after the other."""
        for shard in self:
            yield from shard.watchers()

    def keys_in_chunks(self) -> Iterator[list[Watchers]]:
        """The watchers of every key, at most :data:`CHUNK` at a time."""
        for shard in self:
            watchers = shard.watchers()
            for start in range(0, len(watchers), CHUNK):
                yield watchers[start : start + CHUNK]

    def iter_operations(self) -> Iterator[DelayedOperation]:
        """The operations that wait or are arriving, one key after the other. Each is yielded under its first key."""
        for watchers in self.walk():
            for operation in watchers.operations():
                if NEW < operation._op_state <= PARKED and operation._op_watches[0] is watchers:
                    yield operation

    def completing(self) -> int:
        """The number of operations whose hooks have not ended, although they have an outcome."""
        return sum(shard.completing for shard in self)

    def totals(self) -> Totals:
        sums = [0] * (3 + len(OUTCOMES) + 2)
        for shard in self:
            sums = [total + number for total, number in zip(sums, shard.counts(), strict=True)]
        parked, extended, checks, *outcomes, expired_normally, cancelled_normally = sums
        return Totals(
            parked=parked,
            immediate=outcomes[IMMEDIATE],
            satisfied=outcomes[SATISFIED],
            expired=outcomes[EXPIRED],
            cancelled=outcomes[CANCELLED],
            forced=outcomes[FORCED],
            checks=checks,
            extended=extended,
            expired_normally=expired_normally,
            cancelled_normally=cancelled_normally,
        )
