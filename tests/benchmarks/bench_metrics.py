"""
The cost of observation: the park and satisfy cycle without metrics, with the collector, and with histograms.

The collector reads counters when it is scraped and leaves the cycle alone. So that this is measured and not just said,
the second and the third case are scraped once in every run, the page rendered whole: a run is some 30 ms, and a real
scrape comes every 15 s or so, so the scrape itself is not in the cycle's time but stands in a table of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory, Observer
from purgatory.metrics import CallbackTime, ParkedTime, register, unregister
from tests.benchmarks.bench_purgatory import DELAY_MS, Ready
from tests.benchmarks.harness import Case, Table, compare

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["main"]


@contextlib.contextmanager
def _cycle(*observers: Observer, scraped: bool = True) -> Iterator[Run]:
    """Park under one key, then an event. The CPU time of the cycles, the scrape beside them left out."""
    registry = CollectorRegistry()
    if scraped:
        register(registry)
    with DelayedOperationPurgatory("bench", observers=observers) as purgatory:

        def run(n: int) -> float:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            keys = ["topic-0"]
            generate_latest(registry)
            start = time.thread_time()
            for _ in range(n):
                operation = Ready(DELAY_MS)
                park(operation, keys)
                operation.ready = True
                check("topic-0")
            return time.thread_time() - start

        yield run
    unregister(registry)


@contextlib.contextmanager
def _scrape(parked: int, keys: int) -> Iterator[Run]:
    """Render the page while a number of operations are parked under a number of keys, without those of other cases."""

    def run(n: int) -> float:
        registry = CollectorRegistry()
        register(registry)
        with DelayedOperationPurgatory("bench") as purgatory:
            for number in range(parked):
                purgatory.try_complete_else_watch(Ready(DELAY_MS), [number % keys])
            generate_latest(registry)
            start = time.thread_time()
            for _ in range(n):
                generate_latest(registry)
            seconds = time.thread_time() - start
            for operation in purgatory.operations():
                operation.cancel()
        unregister(registry)
        return seconds

    yield run


def main(*, quick: bool = False) -> Iterator[Table]:
    """The cycle, and then what a scrape takes."""
    scale = 0.3 if quick else 1.0
    yield compare(
        "park and satisfy, looked at",
        [
            Case("no metrics", lambda: _cycle(scraped=False), 8000),
            Case("collector registered and scraped", _cycle, 8000),
            Case("histograms of time parked as well", lambda: _cycle(ParkedTime()), 8000),
            Case("histograms of callback time as well", lambda: _cycle(ParkedTime(), CallbackTime()), 8000),
        ],
        rounds=7 if quick else 31,
        scale=scale,
        note="at most 1.03 with the collector; histograms cost an operation the same beside any cycle",
    )
    yield compare(
        "one scrape",
        [
            Case("nothing parked", lambda: _scrape(0, 1), 5),
            Case("100,000 operations under 100 keys", lambda: _scrape(100_000, 100), 3),
            Case("100,000 operations under 100,000 keys", lambda: _scrape(100_000, 100_000), 1),
        ],
        rounds=3 if quick else 9,
        unit="us",
    )
