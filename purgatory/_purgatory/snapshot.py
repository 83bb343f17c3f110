"""Frozen values that say how a purgatory stands, and how it ended."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic

import attrs

from purgatory._operations.operation_type import OperationT

__all__ = ["PurgatorySnapshot", "ShutdownReport", "Totals"]


@attrs.frozen
class Totals:
    """Operations since the purgatory was made, by outcome.

    Attributes:
        parked: those that were not completed at once.
        checks: calls of ``try_complete``, counted when the operation leaves.
        extended: how often a deadline was put off.
    """

    parked: int
    immediate: int
    satisfied: int
    expired: int
    cancelled: int
    forced: int
    checks: int
    extended: int = 0

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
        """Operations parked and not gone. One that leaves while the shards are counted may be missing from both."""
        return max(0, self.parked - self.satisfied - self.expired - self.cancelled - self.forced)


@attrs.frozen
class PurgatorySnapshot:
    """A purgatory as it was at one moment.

    Each figure is exact; taken one after the other while the purgatory works, they need not add up.

    Attributes:
        name: the purgatory's name.
        broker_id: as it was given.
        parked: operations that wait.
        watched: entries in watch lists: one an operation and key.
        keys: keys that somebody waits under.
        delayed: parked operations that will expire.
        capacity: ``max_parked``.
        idle_keys: keys that nobody waits under and that are remembered all the same, for the next who comes.
        forgotten_keys: idle keys that were forgotten, by a purge or because more were idle than may be.
        oldest_age_ms: how long the operation that has waited longest has; None if none waits.
        largest_keys: the keys with the most entries, and how many.
        wheel_occupancy: the timer's pending tasks by level of its wheel; empty if the timer doesn't tell.
        totals: operations by outcome.
        callback_errors: what hooks raised, counted by hook.
        rejected: operations refused because the purgatory was full.
        closed: whether it was shut down.
        tenants: those with the most operations parked: whose, how many, and how many were refused.
    """

    name: str
    broker_id: int
    parked: int
    watched: int
    keys: int
    delayed: int
    capacity: int | None
    idle_keys: int
    forgotten_keys: int
    oldest_age_ms: float | None
    largest_keys: tuple[tuple[Hashable, int], ...]
    wheel_occupancy: tuple[int, ...]
    totals: Totals
    callback_errors: dict[str, int]
    rejected: int
    closed: bool
    tenants: tuple[tuple[Hashable, int, int], ...] = ()


@attrs.frozen
class ShutdownReport(Generic[OperationT]):
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
    cancelled: tuple[OperationT, ...]
    stuck: tuple[OperationT, ...]
    elapsed_ms: float
