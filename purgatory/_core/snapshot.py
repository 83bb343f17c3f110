"""Frozen values: the totals and a snapshot of a purgatory, and the report of its shutdown."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic

import attrs

from purgatory._core.subclasses import OperationT


@attrs.frozen
class Totals:
    """The number of operations since the purgatory was created, by outcome.

    Attributes:
        parked: those that were not completed at once.
        checks: calls of ``try_complete``, counted when the operation gets its outcome.
        extended: how often ``extend`` moved a deadline.
        expired_normally: the part of ``expired`` whose type names the expiry in ``normal_ends``.
        cancelled_normally: the part of ``cancelled`` whose type names the cancellation there.
    """

    parked: int
    immediate: int
    satisfied: int
    expired: int
    cancelled: int
    forced: int
    checks: int
    extended: int = 0
    expired_normally: int = 0
    cancelled_normally: int = 0

    @property
    def started(self) -> int:
        """Operations that the purgatory accepted, parked or completed at once."""
        return self.parked + self.immediate

    @property
    def completed(self) -> int:
        """Operations that completed, for any reason. Cancelled ones did not."""
        return self.immediate + self.satisfied + self.expired + self.forced

    @property
    def waiting(self) -> int:
        """Operations that are parked now. Not exact for those that leave while the shards are counted."""
        return max(0, self.parked - self.satisfied - self.expired - self.cancelled - self.forced)


@attrs.frozen
class PurgatorySnapshot:
    """A purgatory at one moment. The numbers are read one after the other, so they need not add up.

    Attributes:
        name: the purgatory's name.
        broker_id: the ``broker_id`` that was given.
        parked: operations that wait.
        watched: entries in the watch lists: one per operation and key.
        keys: keys under which operations wait.
        idle_keys: known keys under which no operation waits.
        delayed: parked operations that will expire.
        capacity: ``max_parked``.
        forgotten_keys: idle keys that were forgotten, by a purge or because there were too many.
        oldest_age_ms: how long the oldest parked operation has waited. None if none waits.
        largest_keys: the keys with the most entries, and the number of these.
        wheel_occupancy: the timer's pending tasks by level of its wheel. Empty if the timer has no statistics.
        totals: operations by outcome.
        callback_errors: the number of exceptions that callbacks raised, by the name of the hook.
        rejected: operations that got no place.
        missed_checks: waits of ``wait_for`` that expired although their predicate was true, and no check came.
        closed: whether the purgatory was shut down.
        tenants: the tenants with the most parked operations: tenant, number parked, number rejected.
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
    missed_checks: int = 0


@attrs.frozen
class ShutdownReport(Generic[OperationT]):
    """What happened to the operations in a shutdown.

    Attributes:
        name: the purgatory's name.
        drain: the ``drain`` of the shutdown.
        satisfied: operations that completed by themselves while the shutdown waited.
        expired: operations that expired during the shutdown, by it or by themselves.
        cancelled: operations that were removed uncompleted. The caller must answer them.
        stuck: operations whose ``lock=`` was taken until the timeout. They are still open. After you release the lock,
            call ``maybe_try_complete`` of each, which expires it. ``AsyncPurgatory`` does this by itself.
        elapsed_ms: how long the shutdown took.
        running: how many settled operations had hooks that still ran at the timeout, or tasks that were not woken yet.
    """

    name: str
    drain: str
    satisfied: int
    expired: int
    cancelled: tuple[OperationT, ...]
    stuck: tuple[OperationT, ...]
    elapsed_ms: float
    running: int = 0

    @property
    def timed_out(self) -> bool:
        """Whether operations are stuck, or hooks still ran at the timeout. Their threads may still be there."""
        return bool(self.stuck or self.running)
