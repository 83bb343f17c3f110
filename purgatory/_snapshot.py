"""Frozen values that say how a purgatory stands, and how it ended."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation

__all__ = ["PurgatorySnapshot", "ShutdownReport", "Totals"]


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
        oldest_age_ms: how long the operation that has waited longest has; None if none waits, or without a timer.
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
        expired: operations that were expired by the shutdown, before their time.
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
