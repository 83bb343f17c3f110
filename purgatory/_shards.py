"""The shards of a purgatory, as one: which of them a key belongs to, who waits, what came and went.

Nothing here waits for anybody for long, and looking changes nothing. A shard's lock is taken to read its counters, one
shard after the other; whoever waits under a key is copied in one step. So every figure is exact for its own moment, and
two figures need not be of the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from purgatory._errors import unhashable
from purgatory._outcome import CANCELLED, EXPIRED, FORCED, IMMEDIATE, PARKED, SATISFIED
from purgatory._snapshot import Totals

if TYPE_CHECKING:
    from purgatory._operation import Operation
    from purgatory._watchers import WatcherList, Watchers

__all__ = ["Shards"]


class Shards:
    """A row of :class:`WatcherList`.

    Args:
        count: how many.
        make: makes one.
    """

    __slots__ = ("_count", "_row")

    def __init__(self, count: int, make: Callable[[], WatcherList]) -> None:
        self._count = count
        self._row = tuple(make() for _ in range(count))

    def of(self, key: Hashable) -> WatcherList:
        """The shard that a key belongs to.

        Raises:
            UnhashableKey: the key has no hash.
        """
        try:
            return self._row[hash(key) % self._count]
        except TypeError:
            raise unhashable([key]) from None

    def find(self, key: Hashable) -> Watchers | None:
        """Who waits under a key; None if nobody is known to.

        Raises:
            UnhashableKey: the key has no hash.
        """
        try:  # of(), without the call: every check comes here
            shard = self._row[hash(key) % self._count]
        except TypeError:
            raise unhashable([key]) from None
        return shard.find(key)

    def __iter__(self) -> Iterator[WatcherList]:
        return iter(self._row)

    def __len__(self) -> int:
        return self._count

    def walk(self) -> Iterator[Watchers]:
        """The watchers of every key, those that nobody waits under included; a shard at a time."""
        for shard in self._row:
            yield from shard.watchers()

    def keys(self) -> int:
        """How many keys are known, those that nobody waits under included."""
        return sum(len(shard.by_key) for shard in self._row)

    def watched(self) -> int:
        """How many entries the watch lists have: one an operation and key."""
        return sum(map(len, self.walk()))

    def operations(self) -> list[Operation]:
        """The operations that wait, or are just arriving: each once, in no particular order."""
        found: dict[Operation, None] = {}
        for watchers in self.walk():
            found.update(dict.fromkeys(watchers.operations()))
        return [operation for operation in found if operation._state <= PARKED]

    def answering(self) -> int:
        """How many operations have an outcome, and hooks that have not ended."""
        return sum(shard.answering() for shard in self._row)

    def totals(self) -> Totals:
        """Operations since the start, by outcome. Costs the same whatever is parked."""
        parked, extended, checks, left = 0, 0, 0, [0] * 8
        for shard in self._row:
            came, moved, looked, went = shard.counts()
            parked += came
            extended += moved
            checks += looked
            left = [before + number for before, number in zip(left, went, strict=True)]
        return Totals(
            parked=parked,
            immediate=left[IMMEDIATE],
            satisfied=left[SATISFIED],
            expired=left[EXPIRED],
            cancelled=left[CANCELLED],
            forced=left[FORCED],
            checks=checks,
            extended=extended,
        )
