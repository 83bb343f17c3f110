"""
How the purgatory's costs grow: with the operations parked, with the keys, with the watchers of one key.

A population is grown in one process, and at each size the cycle is measured on a key that the population doesn't use,
with the baseline in the same rounds. The effect of the processor's caches on any Python program shows in both.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.benchmarks.bench_purgatory import DELAY_MS, Ready, baseline
from tests.benchmarks.growth import by_population, collector, empty
from tests.benchmarks.harness import Case, Table, clock, compare, say

if TYPE_CHECKING:
    from tests.benchmarks.harness import Row, Run

__all__ = ["cycles", "grown", "hot_key", "main"]


def cycles(purgatory: DelayedOperationPurgatory[DelayedOperation], n: int) -> None:
    """Park and satisfy n times, under one key."""
    park, check, names = purgatory.try_complete_else_watch, purgatory.check_and_complete, ["topic-0"]
    for _ in range(n):
        operation = Ready(DELAY_MS)
        park(operation, names)
        operation.ready = True
        check("topic-0")


def grown(
    sizes: tuple[int, ...],
    *,
    per_key: int | None = 1,
    slug: str = "scale-parked",
    rounds: int = 15,
    scale: float = 1.0,
) -> Table:
    """The cycle beside a growing population, ``per_key`` operations under each key. All under one if None."""
    rows: list[Row] = []
    n = max(1, round(5_000 * scale))
    with DelayedOperationPurgatory[DelayedOperation]("bench") as purgatory, baseline() as run_baseline:
        parked, key = 0, ["group"]
        for size in sizes:
            for number in range(parked, size):
                if per_key is not None and number % per_key == 0:
                    key = [f"group-{number}"]
                purgatory.try_complete_else_watch(Ready(DELAY_MS), key)
            parked = size
            gc.collect()
            ours, least = [], []
            for turn in range(rounds + 1):
                start = clock()
                cycles(purgatory, n)
                between = clock()
                run_baseline(n)
                end = clock()
                if turn:
                    ours.append((between - start) / n * 1e9)
                    least.append((end - between) / n * 1e9)
            ratio = statistics.median([a / b for a, b in zip(ours, least, strict=True)])
            cycle_ns, baseline_ns = statistics.median(ours), statistics.median(least)
            rows.append((f"{size:,}", round(cycle_ns, 1), round(baseline_ns, 1), round(ratio, 2)))
        purgatory.shutdown("cancel")
    how = "all under one key" if per_key is None else "a key each" if per_key == 1 else f"{per_key} a key"
    title = f"scale: park -> satisfy by operations parked, {how}"
    return Table(title, ("parked", "ns", "baseline", "ratio"), tuple(rows), "ratio: to the baseline", slug)


@contextlib.contextmanager
def watched_by(number: int) -> Iterator[DelayedOperationPurgatory[Ready]]:
    """A purgatory with so many operations under "topic-0", which are cancelled in the end."""
    with DelayedOperationPurgatory[Ready]("bench") as purgatory:
        for _ in range(number):
            purgatory.try_complete_else_watch(Ready(DELAY_MS), ["topic-0"])
        yield purgatory
        purgatory.shutdown("cancel")


@contextlib.contextmanager
def crowded(watchers: int) -> Iterator[Run]:
    """Park under a key with many waiting operations, and complete by force: a check would look at all of them."""
    with watched_by(watchers) as purgatory:

        def run(n: int) -> None:
            park, names = purgatory.try_complete_else_watch, ["topic-0"]
            for _ in range(n):
                operation = Ready(DELAY_MS)
                park(operation, names)
                operation.force_complete()

        yield run


@contextlib.contextmanager
def check_unready(watchers: int) -> Iterator[Run]:
    """Checks of a key with many waiting operations, none of them ready. The unit is one operation looked at."""
    with watched_by(watchers) as purgatory:

        def run(n: int) -> float:
            times = max(1, n // watchers)
            start = clock()
            for _ in range(times):
                purgatory.check_and_complete("topic-0")
            return (clock() - start) / (times * watchers) * n

        yield run


@contextlib.contextmanager
def complete_all(watchers: int) -> Iterator[Run]:
    """One check completes many operations. The unit is one operation, parking not counted."""
    with DelayedOperationPurgatory("bench") as purgatory:

        def run(n: int) -> float:
            times = max(1, n // watchers)
            seconds = 0.0
            for _ in range(times):
                waiting = [Ready(DELAY_MS) for _ in range(watchers)]
                for operation in waiting:
                    purgatory.try_complete_else_watch(operation, ["topic-0"])
                    operation.ready = True
                start = clock()
                assert purgatory.check_and_complete("topic-0") == watchers
                seconds += clock() - start
            return seconds / (times * watchers) * n

        yield run


def hot_key(*, sizes: tuple[int, ...] = (1, 100, 10_000, 100_000), rounds: int = 15, scale: float = 1.0) -> list[Table]:
    """The cost of one key's many watchers."""
    join = [Case(f"{size:,}", functools.partial(crowded, size), 3_000) for size in sizes]
    look = [Case(f"{size:,}", functools.partial(check_unready, size), 30_000) for size in sizes]
    wake = [Case(f"{size:,}", functools.partial(complete_all, size), 10_000) for size in sizes]
    return [
        compare(
            "hot key: park one more and complete it, by watchers", join, rounds=rounds, scale=scale, slug="hot-join"
        ),
        compare("hot key: a check, by watcher that isn't ready", look, rounds=rounds, scale=scale, slug="hot-look"),
        compare("hot key: a check, by watcher that it completes", wake, rounds=rounds, scale=scale, slug="hot-wake"),
    ]


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("scale: calls")
    yield by_population((1_000, 10_000) if quick else ())
    yield empty(20 if quick else 300)
    yield collector(10_000 if quick else 1_000_000)
    say("scale: by operations parked")
    sizes = (0, 1_000, 10_000) if quick else (0, 1_000, 10_000, 100_000, 1_000_000, 3_000_000)
    most = () if quick else (10_000_000,)  # some 6 GB
    for per_key, slug, more in ((1, "scale-parked", ()), (1_000, "scale-keys", most), (None, "scale-one-key", ())):
        yield grown(sizes + more, per_key=per_key, slug=slug, rounds=rounds, scale=scale)
    say("scale: a hot key")
    yield from hot_key(sizes=(1, 100, 1_000) if quick else (1, 100, 10_000, 100_000), rounds=rounds, scale=scale)
