"""Frozen values that say how a purgatory stands, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import attrs

from purgatory._watchers import OPEN
from timer import NS_PER_MS, SystemTimer, SystemTimerReaper

if TYPE_CHECKING:
    from purgatory._looking import Looking
    from purgatory._operation import DelayedOperation

__all__ = ["PurgatorySnapshot", "ShutdownReport", "Totals", "take_snapshot"]


@attrs.frozen
class Totals:
    """Operations since the purgatory was made, by outcome.

    Attributes:
        parked: those that were not completed at once.
        checks: calls of ``try_complete``, counted when the operation leaves.
    """

    parked: int
    immediate: int
    satisfied: int
    expired: int
    cancelled: int
    forced: int
    checks: int

    @property
    def started(self) -> int:
        """Operations given to the purgatory and accepted."""
        return self.parked + self.immediate

    @property
    def completed(self) -> int:
        """Operations that completed, however they did."""
        return self.immediate + self.satisfied + self.expired + self.forced

    @property
    def waiting(self) -> int:
        """Operations parked and not gone. An operation may complete a moment before it is counted as parked."""
        return max(0, self.parked - self.satisfied - self.expired - self.cancelled - self.forced)


@attrs.frozen
class PurgatorySnapshot:
    """A purgatory as it was at one moment.

    Each figure is exact; taken one after the other while the purgatory works, they need not add up.

    Attributes:
        name: the purgatory's name.
        broker_id: as it was given.
        parked: operations that wait.
        watched: entries in watch lists, those of finished operations that were not cleared away yet included.
        keys: keys with at least one entry.
        delayed: parked operations that will expire.
        capacity: ``max_parked``.
        purged: entries of finished operations dropped by purges.
        purge_debt: entries of finished operations known to be in watch lists.
        oldest_age_ms: how long the operation that has waited longest has; None if none waits.
        largest_keys: the keys with the most entries, and how many.
        wheel_occupancy: the timer's pending tasks by level of its wheel; empty if the timer doesn't tell.
        totals: operations by outcome.
        callback_errors: what hooks raised, counted by hook.
        rejected: operations refused because the purgatory was full.
        closed: whether it was shut down.
    """

    name: str
    broker_id: int
    parked: int
    watched: int
    keys: int
    delayed: int
    capacity: int | None
    purged: int
    purge_debt: int
    oldest_age_ms: float | None
    largest_keys: tuple[tuple[Hashable, int], ...]
    wheel_occupancy: tuple[int, ...]
    totals: Totals
    callback_errors: dict[str, int]
    rejected: int
    closed: bool


@attrs.frozen
class ShutdownReport:
    """How a purgatory ended.

    Attributes:
        name: the purgatory's name.
        drain: the policy.
        satisfied: operations that completed by themselves while the shutdown waited.
        expired: operations that expired during the shutdown, by it or by themselves.
        cancelled: operations taken out uncompleted: the caller's to answer.
        stuck: operations whose lock somebody held until the patience ran out; they are still open.
        elapsed_ms: how long the shutdown took.
    """

    name: str
    drain: str
    satisfied: int
    expired: int
    cancelled: tuple[DelayedOperation, ...]
    stuck: tuple[DelayedOperation, ...]
    elapsed_ms: float


def take_snapshot(purgatory: Looking[Any], largest: int) -> PurgatorySnapshot:
    """The purgatory as it is now, naming the ``largest`` keys. Walks every key, a shard at a time."""
    watched = keys = 0
    sizes: list[tuple[int, Hashable]] = []
    oldest_ns: int | None = None
    for shard in purgatory._shards:
        for watchers in list(shard.by_key.copy().values()):
            cells = watchers.copy()
            if not cells:
                continue
            watched += len(cells)
            keys += 1
            sizes.append((len(cells), watchers.key))
            for operation in cells.values():
                if operation is not None and operation._outcome == OPEN and operation._deadline_ns:
                    # In order of arrival: the first that is open has waited longest under this key.
                    created_ns = operation.added_ns
                    oldest_ns = created_ns if oldest_ns is None else min(oldest_ns, created_ns)
                    break
        if len(sizes) > largest:
            sizes.sort(key=_by_size)
            del sizes[largest:]
    sizes.sort(key=_by_size)
    timer = purgatory._timer.timer if isinstance(purgatory._timer, SystemTimerReaper) else purgatory._timer
    totals = purgatory.totals()
    now_ns = timer.now_ns() if isinstance(timer, SystemTimer) else time.monotonic_ns()
    return PurgatorySnapshot(
        name=purgatory._name,
        broker_id=purgatory._broker_id,
        parked=totals.waiting,
        watched=watched,
        keys=keys,
        delayed=totals.waiting if timer is not None else 0,
        capacity=purgatory.capacity,
        purged=purgatory._graveyard.purged,
        purge_debt=purgatory._graveyard.debt,
        oldest_age_ms=None if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / NS_PER_MS),
        largest_keys=tuple((key, size) for size, key in sizes),
        wheel_occupancy=timer.statistics().occupancy if isinstance(timer, SystemTimer) else (),
        totals=totals,
        callback_errors=purgatory._audience.errors(),
        rejected=purgatory.rejected,
        closed=purgatory._closed,
    )


def _by_size(entry: tuple[int, Hashable]) -> int:
    return -entry[0]
