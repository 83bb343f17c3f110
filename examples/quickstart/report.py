"""
What came of it: outcomes and latencies, as figures to print or to test.

The outcomes are counted by the purgatories. Latencies are the clients' own, from asking to the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from examples.quickstart.operations import DelayedAppend, DelayedFetch, Request
from purgatory import Outcome, PurgatorySnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from examples.quickstart.load import Load

__all__ = ["PERCENTILES", "Line", "Report", "percentile", "summarise"]

PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` percent of the values don't exceed, or NaN if there are none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


@attrs.frozen
class Line:
    """One purgatory's operations, with latencies in the order of ``PERCENTILES``."""

    name: str
    asked: int
    immediate: int
    parked: int
    satisfied: int
    expired: int
    satisfied_ms: tuple[float, ...]
    expired_ms: tuple[float, ...]


@attrs.frozen
class Report:
    """A run, in figures.

    Attributes:
        lines: the purgatories'.
        snapshots: how the purgatories stood when the load ended, before they were shut down.
        answered_by_shutdown: clients who still waited then, and were answered.
        unanswered: clients who were never answered. There are none.
        answered_twice: clients who were answered more than once. There are none.
        broken_promises: satisfied appends whose record wasn't on all replicas at that moment. There are none.
    """

    lines: tuple[Line, ...]
    snapshots: tuple[PurgatorySnapshot, ...]
    answered_by_shutdown: int
    unanswered: int
    answered_twice: int
    broken_promises: int

    @property
    def asked(self) -> int:
        """All requests."""
        return sum(line.asked for line in self.lines)

    @property
    def holds(self) -> bool:
        """Whether every client got exactly one answer, and the right one."""
        return not (self.unanswered or self.answered_twice or self.broken_promises)


def _latencies(requests: Iterable[Request], outcomes: set[Outcome]) -> tuple[float, ...]:
    ordered = sorted(request.latency_ms for request in requests if request.outcome in outcomes)
    return tuple(percentile(ordered, share) for share in PERCENTILES.values())


def _line(snapshot: PurgatorySnapshot, requests: Sequence[Request]) -> Line:
    totals = snapshot.totals
    return Line(
        name=snapshot.name,
        asked=len(requests),
        immediate=totals.immediate,
        parked=totals.parked,
        satisfied=totals.satisfied,
        expired=totals.expired,
        satisfied_ms=_latencies(requests, {Outcome.SATISFIED}),
        expired_ms=_latencies(requests, {Outcome.EXPIRED}),
    )


def summarise(load: Load, snapshots: tuple[PurgatorySnapshot, ...], answered_by_shutdown: int) -> Report:
    """Put the figures of a finished run together."""
    appends = [request for request in load.requests if isinstance(request, DelayedAppend)]
    fetches = [request for request in load.requests if isinstance(request, DelayedFetch)]
    service = load.service
    return Report(
        lines=(_line(service.produce.snapshot(), appends), _line(service.fetch.snapshot(), fetches)),
        snapshots=snapshots,
        answered_by_shutdown=answered_by_shutdown,
        unanswered=sum(request.answered == 0 for request in load.requests),
        answered_twice=sum(request.answered > 1 for request in load.requests),
        broken_promises=sum(append.outcome is Outcome.SATISFIED and not append.committed for append in appends),
    )
