"""Snapshots of a purgatory, and reports of its shutdown, as frozen values.

A snapshot visits every key, in chunks so that other threads run in between, and reads the first operation of each.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Hashable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic

import attrs

from purgatory._core.implementation import CORE
from purgatory._core.outcome import PARKED, Totals
from purgatory._core.subclasses import OperationT
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory._core.purgatory import DelayedOperationPurgatory
    from purgatory._core.shards import Watchers
    from timer import Driver


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


def take_snapshot(purgatory: DelayedOperationPurgatory[Any], largest: int) -> PurgatorySnapshot:
    """The purgatory as it is now, with the ``largest`` keys and tenants."""
    known = keys = least = 0
    sizes: list[tuple[int, Hashable]] = []
    oldest_ns: int | None = None
    timer, places = purgatory.timer, purgatory._places
    now_ns = time.monotonic_ns() if timer is None else timer.now_ns()
    for chunk in purgatory._shards.keys_in_chunks():
        in_use, since_ns, large = visit(chunk, least)
        known += len(chunk)
        keys += in_use
        oldest_ns = min((each for each in (oldest_ns, since_ns) if each is not None), default=None)
        sizes = heapq.nlargest(largest, [*sizes, *large], key=itemgetter(0))
        least = 0 if len(sizes) < largest else sizes[-1][0] if sizes else sys.maxsize
    totals = purgatory.totals()
    statistics = None if timer is None else timer.statistics()
    tenants = [] if places is None else places.tenants()[:largest]
    return PurgatorySnapshot(
        name=purgatory.name,
        broker_id=purgatory.broker_id,
        parked=totals.waiting,
        watched=purgatory.watched,
        keys=keys,
        delayed=totals.waiting if timer is not None else 0,
        capacity=purgatory.capacity,
        idle_keys=known - keys,
        forgotten_keys=purgatory.forgotten_keys,
        oldest_age_ms=None if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / NS_PER_MS),
        largest_keys=tuple((key, size) for size, key in sizes),
        wheel_occupancy=() if statistics is None else statistics.occupancy,
        totals=totals,
        callback_errors=purgatory.callback_errors,
        rejected=purgatory.rejected,
        closed=purgatory.is_closed,
        tenants=tuple((tenant.name, tenant.held, tenant.rejected) for tenant in tenants),
        missed_checks=purgatory.missed_checks,
    )


def visit(chunk: Sequence[Watchers], least: int) -> tuple[int, int | None, list[tuple[int, Hashable]]]:
    """The number of keys in use, when the oldest operation was parked, and (size, key) of keys with over ``least``."""
    sizes = [(len(watchers), watchers.key) for watchers in chunk]
    since_ns = [created_ns for watchers in chunk if (created_ns := _since(watchers)) is not None]
    return (
        sum(size > 0 for size, _ in sizes),
        min(since_ns, default=None),
        [(size, key) for size, key in sizes if size > least],
    )


def overdue_ms(purgatory: DelayedOperationPurgatory[Any]) -> float:
    """Milliseconds that the most overdue parked operation is past its deadline. 0 if none is overdue.

    An overdue operation is in a due bucket that the timer has not dispatched, in the batch that runs, or with the
    retrier. So the cost does not depend on what is parked. If ``try_complete`` hangs, see ``callback_slow``.
    """
    timer = purgatory.timer
    if timer is None or not purgatory.parked:
        return 0.0
    now_ns = timer.now_ns()
    waiting = purgatory._retrier.waiting()
    late_ns = [now_ns - each.deadline_ns for each in waiting if each._op_state == PARKED and each.deadline_ns]
    statistics = timer.statistics()
    if statistics is not None:
        if statistics.next_deadline_ms is not None:
            late_ns.append(round(-statistics.next_deadline_ms * NS_PER_MS))
        if statistics.running_since_ns is not None:
            late_ns.append(now_ns - statistics.running_since_ns)
    return float(max([0, *late_ns])) / NS_PER_MS


def driver_of(purgatory: DelayedOperationPurgatory[Any]) -> Driver | None:
    """The thread that drives a purgatory's timer, the purgatory's own or another. None if no thread does."""
    timer = purgatory.timer
    return purgatory.driver or (None if timer is None else timer.driver)


def _since(watchers: Watchers) -> int | None:
    """When the operation that has waited longest under a key was parked. None if all of them have an outcome."""
    for most in (1, None):  # usually the first one is parked
        for operation in watchers.operations(most):
            if operation._op_state == PARKED and operation._task_deadline_ns:
                return int(operation.created_ns)
    return None


if not TYPE_CHECKING and CORE is not None:
    _pure = visit

    def visit(chunk: Sequence[Watchers], least: int) -> tuple[int, int | None, list[tuple[int, Hashable]]]:
        try:
            return CORE.visit(chunk, least)
        except OverflowError:  # the timer's clock is past 64 bits
            return _pure(chunk, least)
