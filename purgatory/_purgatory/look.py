"""Taking a snapshot: visit every key, one shard after the other, and look at its first operation."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TYPE_CHECKING

from purgatory._events.outcome import PARKED
from purgatory._purgatory.snapshot import PurgatorySnapshot
from timer import NS_PER_MS

if TYPE_CHECKING:
    from purgatory._events.observers import Observers
    from purgatory._keys.idle_keys import IdleKeys
    from purgatory._keys.watchers import Watchers
    from purgatory._limits.capacity import Capacity
    from purgatory._purgatory.shards import Shards
    from purgatory._threads.retrier import Retrier
    from timer import Timer

__all__ = ["overdue_ms", "take_snapshot"]


def take_snapshot(
    *,
    shards: Shards,
    idle_keys: IdleKeys,
    timer: Timer | None,
    now_ns: int,
    observers: Observers,
    capacity: Capacity | None,
    broker_id: int,
    closed: bool,
    largest: int,
) -> PurgatorySnapshot:
    """The purgatory as it is now, with the ``largest`` keys and tenants."""
    watched = keys = known = 0
    sizes: list[tuple[int, Hashable]] = []
    oldest_ns: int | None = None
    for shard in shards:
        for watchers in shard.watchers():
            known += 1
            size = len(watchers)
            if not size:
                continue
            watched += size
            keys += 1
            sizes.append((size, watchers.key))
            created_ns = _since(watchers)
            if created_ns is not None and (oldest_ns is None or created_ns < oldest_ns):
                oldest_ns = created_ns
        if len(sizes) > largest:
            sizes = heapq.nlargest(largest, sizes, key=_size)
    sizes.sort(key=_size, reverse=True)
    totals = shards.totals()
    statistics = None if timer is None else timer.statistics()
    return PurgatorySnapshot(
        name=observers.name,
        broker_id=broker_id,
        parked=totals.waiting,
        watched=watched,
        keys=keys,
        delayed=totals.waiting if timer is not None else 0,
        capacity=None if capacity is None else capacity.limit,
        idle_keys=known - keys,
        forgotten_keys=idle_keys.forgotten,
        oldest_age_ms=None if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / NS_PER_MS),
        largest_keys=tuple((key, size) for size, key in sizes),
        wheel_occupancy=() if statistics is None else statistics.occupancy,
        totals=totals,
        callback_errors=observers.errors(),
        rejected=0 if capacity is None else capacity.rejected,
        closed=closed,
        tenants=() if capacity is None else tuple(capacity.tenants()[:largest]),
    )


def overdue_ms(timer: Timer | None, retrier: Retrier) -> float:
    """Milliseconds that the most overdue parked operation is past its deadline; 0 if none is overdue.

    The cost does not depend on what is parked, because this looks only where an overdue operation can be: in a due
    bucket that was not taken, in the batch that runs, or with the retrier while other code holds its lock. An operation
    whose own ``try_complete`` hangs is reported as ``callback_slow`` instead.
    """
    if timer is None:
        return 0.0
    now_ns = timer.now_ns()
    late_ns = [now_ns - each.deadline_ns for each in retrier.waiting() if each._op_state == PARKED and each.deadline_ns]
    statistics = timer.statistics()
    if statistics is not None:
        if statistics.next_deadline_ms is not None:
            late_ns.append(round(-statistics.next_deadline_ms * NS_PER_MS))
        if statistics.running_since_ns is not None:
            late_ns.append(now_ns - statistics.running_since_ns)
    return float(max([0, *late_ns])) / NS_PER_MS


def _size(entry: tuple[int, Hashable]) -> int:
    return entry[0]


def _since(watchers: Watchers) -> int | None:
    """When the operation that has waited longest under a key was parked; None if all of them are leaving.

    The operations are in order of arrival. Usually the first one is parked, so only that one is copied.
    """
    most = 1
    while True:
        operations = watchers.head(most)
        for operation in operations:
            if operation._op_state == PARKED and operation._deadline_ns:
                return int(operation.created_ns)
        if len(operations) < most:
            return None
        most *= 8
