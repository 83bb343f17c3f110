"""The shards of a purgatory, as one: which of them a key belongs to, who waits, what came and went.

An operation is put under its keys here, all of them in one loop, as each may be of another shard (the header of
``purgatory._keys.watchers`` says why that is safe).

Nothing here waits for anybody for long, and looking changes nothing. A shard's gate is passed to read its counters, one
shard after the other; whoever waits under a key is copied in one step. So every figure is exact for its own moment, and
two figures need not be of the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from purgatory._events.outcome import ARRIVING, CANCELLED, EXPIRED, FORCED, IMMEDIATE, PARKED, SATISFIED
from purgatory._purgatory.snapshot import Totals
from purgatory._support.errors import unhashable

if TYPE_CHECKING:
    from purgatory._keys.watchers import WatcherList, Watchers
    from purgatory._operations.operation import Operation

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

    def watch(self, operation: Operation, home: WatcherList, keys: Sequence[Hashable]) -> None:
        """Put an operation under its keys, the first of which belongs to its home, until it is complete.

        Each is noted with the operation first, so that it is taken out again whatever strikes. Called by its parker
        alone; that of the native edition has its own.

        Raises:
            UnhashableKey: a key has no hash any more.
        """
        shard = home
        before: tuple[Watchers, ...] = ()
        for key in keys:
            if before:
                if operation._state != ARRIVING:
                    break
                try:  # of(), without the call
                    shard = self._row[hash(key) % self._count]
                except TypeError:
                    raise unhashable([key]) from None
            watchers = shard.find(key)
            if watchers is None:
                watchers = shard.make(key)
            operation._watches = watches = before + watchers.alone
            watchers[operation] = None
            if watchers.closed:
                # The key is being removed, or was. Behind the lock that is decided, and no other thread can be at it.
                watchers.pop(operation, None)
                with shard.lock:
                    watchers = shard.make(key)
                    shard.keep(watchers)
                    operation._watches = watches = before + watchers.alone
                    watchers[operation] = None
            before = watches

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
        return list(self.iter_operations())

    def iter_operations(self) -> Iterator[Operation]:
        """The same, one shard after the other: each operation is given by its home, the shard of its first key."""
        for shard in self._row:
            found: dict[Operation, None] = {}
            for watchers in shard.watchers():
                found.update(dict.fromkeys(watchers.operations()))
            for operation in found:
                if operation._home is shard and operation._state <= PARKED:
                    yield operation

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
