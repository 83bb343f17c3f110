"""What one may ask a purgatory while it works: who it is, who waits, what came and went.

Nothing here waits for anybody for long, and nothing is changed. A shard's lock is taken to read its counters, one shard
after the other; whoever waits under a key is copied in one step. So every figure is exact for its own moment, and two
figures need not be of the same one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from purgatory._errors import unhashable, whole
from purgatory._operation import DelayedOperation
from purgatory._snapshot import PurgatorySnapshot, Totals, take_snapshot
from purgatory._watchers import CANCELLED, EXPIRED, FORCED, IMMEDIATE, OPEN, SATISFIED, WatcherList, Watchers

if TYPE_CHECKING:
    from purgatory._audience import Audience
    from purgatory._graveyard import Graveyard
    from purgatory._room import Room
    from timer import Driver, Timer

__all__ = ["Looking", "OperationT"]

OperationT = TypeVar("OperationT", bound=DelayedOperation)


class Looking(Generic[OperationT]):
    """The part of :class:`~purgatory.DelayedOperationPurgatory` that only looks."""

    __slots__ = ()

    _name: str
    _broker_id: int
    _closed: bool
    _timer: Timer | None
    _driver: Driver | None
    _room: Room | None
    _audience: Audience
    _graveyard: Graveyard
    _shards: list[WatcherList]
    _shard_count: int

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return self._name

    @property
    def broker_id(self) -> int:
        """As it was given."""
        return self._broker_id

    @property
    def timer(self) -> Timer | None:
        """The timer; None if operations don't expire."""
        return self._timer

    @property
    def driver(self) -> Driver | None:
        """The thread that drives the timer, if it is this purgatory's."""
        return self._driver

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down."""
        return self._closed

    @property
    def capacity(self) -> int | None:
        """``max_parked``."""
        return None if self._room is None else self._room.limit

    @property
    def rejected(self) -> int:
        """How many operations were refused because ``max_parked`` waited."""
        return 0 if self._room is None else self._room.rejected

    @property
    def parked(self) -> int:
        """How many operations wait."""
        return self.totals().waiting

    @property
    def watched(self) -> int:
        """How many entries the watch lists have: one an operation and key, finished ones not yet cleared included."""
        return sum(len(watchers) for shard in self._shards for watchers in list(shard.by_key.values()))

    @property
    def num_delayed(self) -> int:
        """How many operations wait for their expiry."""
        return self.parked if self._timer is not None else 0

    def totals(self) -> Totals:
        """Operations since the start, by outcome. Costs the same whatever is parked."""
        parked, checks, left = 0, 0, [0] * 6
        for shard in self._shards:
            with shard.lock:
                parked += len(shard.waiting) - shard.ahead + sum(shard.left[SATISFIED:])
                checks += shard.checks
                for outcome, number in enumerate(shard.left):
                    left[outcome] += number
        return Totals(
            parked=parked,
            immediate=left[IMMEDIATE],
            satisfied=left[SATISFIED],
            expired=left[EXPIRED],
            cancelled=left[CANCELLED],
            forced=left[FORCED],
            checks=checks,
        )

    def operations(self) -> list[OperationT]:
        """The operations that wait: a copy, in no particular order."""
        found: dict[DelayedOperation, None] = {}
        for shard in self._shards:
            found.update(dict.fromkeys(shard.operations()))
        return [operation for operation in found if operation._outcome == OPEN]  # type: ignore[misc]

    def operations_for_key(self, key: Hashable) -> list[OperationT]:
        """The operations that wait under a key, in order of arrival: a copy."""
        watchers = self._find(key)
        if watchers is None:
            return []
        found = [operation for operation in watchers.copy().values() if operation is not None]
        return [operation for operation in found if operation._outcome == OPEN]  # type: ignore[misc]

    def watching(self, key: Hashable) -> int:
        """How many entries there are under a key: what a check of it may have to look at."""
        watchers = self._find(key)
        return 0 if watchers is None else len(watchers)

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, as a frozen value. Walks every key, a shard at a time, and no operation.

        Args:
            largest: how many of the largest keys to name.
        """
        return take_snapshot(self, whole("largest", largest, 0))

    def _find(self, key: Hashable) -> Watchers | None:
        try:
            return self._shards[hash(key) % self._shard_count].by_key.get(key)
        except TypeError:
            raise unhashable([key]) from None
