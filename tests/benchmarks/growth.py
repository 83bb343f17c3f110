"""
What grows with the operations parked: the garbage collector's pause, snapshots, scrapes, listings, checks with a limit.

One population is grown in one process. Each row is one call, each column one size, and the slope is that of the row's
line on logarithmic scales: 0 for a call that does not grow, 1 for one that grows as the population does.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory._core.snapshot import visit
from purgatory.metrics import register, unregister
from tests.benchmarks.bench_purgatory import DELAY_MS, Ready
from tests.benchmarks.harness import Row, Table
from timer import SystemTimer, SystemTimerReaper

__all__ = ["by_population", "collector", "empty"]

#: The sizes, and the memory that must be free for each.
SIZES = {100_000: 0, 1_000_000: 2 << 30, 5_000_000: 6 << 30}


def by_population(sizes: tuple[int, ...] = ()) -> Table:
    """What calls cost beside a population of operations with a key each, and under one key."""
    sizes = sizes or tuple(size for size, least in SIZES.items() if _free_bytes() > least)
    cells: dict[str, list[float]] = {}
    registry = CollectorRegistry()
    with DelayedOperationPurgatory[DelayedOperation]("bench") as own, DelayedOperationPurgatory("bench 2") as shared:
        register(registry)
        gc.disable()  # the pause is measured once per size. Filling would run dozens of collections
        try:
            parked = 0
            for size in sizes:
                _park(own, parked, size, lambda number: [f"group-{number}"])
                parked = size
                rows: dict[str, Callable[[], object]] = {
                    "snapshot()": own.snapshot,
                    "one scrape": lambda: generate_latest(registry),
                    "watched": lambda: own.watched,
                    "operations()": own.operations,
                }
                for name, call in rows.items():
                    cells.setdefault(f"{name}, ms", []).append(_best_ms(call))
                step_ms = _longest_step_ms(visit(chunk, 0) for chunk in own._shards.keys_in_chunks())  # noqa: SLF001
                cells.setdefault("snapshot(): the longest step, ms", []).append(step_ms)
                cells.setdefault("the collector's pause, ms", []).append(_best_ms(gc.collect, 1))
            own.shutdown("cancel")
            _limited(shared, sizes, cells)
        finally:
            gc.enable()
            unregister(registry)
        shared.shutdown("cancel")
    table = [(name, *(round(value, 3) for value in values), _slope(sizes, values)) for name, values in cells.items()]
    columns = ("call", *(f"{size:,}" for size in sizes), "slope")
    note = "slope 0: does not grow; 1: grows as the population does"
    return Table("scale: calls by operations parked, a key each", columns, tuple(table), note, "scale-calls")


def empty(count: int = 300) -> Table:
    """An empty purgatory: its creation, its shutdown and its memory."""
    gc.collect()  # what the tables before left must not be collected in this one
    rows: list[Row] = []
    with SystemTimerReaper("bench", SystemTimer()) as shared:
        for name, timer in (("with a shared timer", shared), ("with its own timer and thread", None)):
            for number in (10, count):  # the first are not measured
                start = time.process_time()
                made = [DelayedOperationPurgatory("bench", timer=timer) for _ in range(number)]
                between = time.process_time()
                for each in made:
                    each.shutdown()
                end = time.process_time()
            tracemalloc.start()
            made = [DelayedOperationPurgatory("bench", timer=timer) for _ in range(20)]
            size = tracemalloc.get_traced_memory()[0] / len(made)
            tracemalloc.stop()
            for each in made:
                each.shutdown()
            rows.append((name, (between - start) / count * 1e6, (end - between) / count * 1e6, round(size)))
    note = "reach: 50 us and 10 kB; the stack of a thread is not counted"
    return Table("scale: an empty purgatory", ("case", "create, us", "shut down, us", "bytes"), tuple(rows), note)


def collector(size: int = 1_000_000) -> Table:
    """The collector's pauses while a population grows, and what a service can do about them."""
    rows: list[Row] = []
    least_s = 0.0
    ways: tuple[tuple[str, Callable[[], None], Callable[[], None] | None], ...] = (
        ("no collector", gc.disable, None),
        ("default thresholds", lambda: None, None),
        ("gc.set_threshold(50_000, 10, 10)", lambda: gc.set_threshold(50_000, 10, 10), None),
        ("gc.collect(1) and gc.freeze() each 50,000 operations", lambda: None, _freeze),
    )
    for name, prepare, between in ways:
        pauses: list[float] = []
        thresholds = gc.get_threshold()
        with DelayedOperationPurgatory[DelayedOperation]("bench") as purgatory, _noted_pauses(pauses):
            prepare()
            start = time.thread_time()
            for begin in range(0, size, 50_000):
                _park(purgatory, begin, min(begin + 50_000, size), lambda number: [f"group-{number}"])
                if between is not None:
                    between()
            spent_s = time.thread_time() - start
            gc.set_threshold(*thresholds)
            gc.enable()
            gc.unfreeze()
            purgatory.shutdown("cancel")
        del purgatory  # with its report, which holds the operations
        gc.collect()
        least_s = least_s or spent_s
        rows.append((name, round(spent_s / least_s, 2), len(pauses), round(max(pauses, default=0.0) * 1000, 1)))
    title = f"scale: the garbage collector while {size:,} operations are parked, a key each"
    return Table(title, ("case", "CPU ratio", "full collections", "longest, ms"), tuple(rows), "", "scale-collector")


def _freeze() -> None:
    gc.collect(1)
    gc.freeze()


@contextlib.contextmanager
def _noted_pauses(pauses: list[float]) -> Iterator[None]:
    """Append the seconds of each full collection."""
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.thread_time()
        elif info["generation"] == 2:  # noqa: PLR2004  # the oldest
            pauses.append(time.thread_time() - started)

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)


def _limited(
    purgatory: DelayedOperationPurgatory[DelayedOperation], sizes: tuple[int, ...], cells: dict[str, list[float]]
) -> None:
    """A check with a limit of a key under which nothing is ready, beside one without."""
    parked = 0
    for size in sizes:
        _park(purgatory, parked, size, lambda _: ["one"])
        parked = size
        all_ms = _best_ms(lambda: purgatory.check_and_complete("one"))
        limited_ms = _best_ms(lambda: purgatory.check_and_complete("one", limit=1))
        cells.setdefault("a check of one key of all, ms", []).append(all_ms)
        cells.setdefault("the same with limit=1, ms", []).append(limited_ms)
        cells.setdefault("operations() of one key of all, ms", []).append(_best_ms(purgatory.operations))


def _park(
    purgatory: DelayedOperationPurgatory[DelayedOperation], start: int, end: int, keys: Callable[[int], list[str]]
) -> None:
    for number in range(start, end):
        purgatory.try_complete_else_watch(Ready(DELAY_MS), keys(number))


def _best_ms(call: Callable[[], object], times: int = 3) -> float:
    """The least CPU time of a few calls."""
    best = math.inf
    for _ in range(times):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best * 1000


def _longest_step_ms(steps: Iterable[object]) -> float:
    """The longest of some steps, between which other threads can run, by CPU time, because the machine is shared."""
    longest, before = 0.0, time.thread_time()
    for _ in steps:
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest * 1000


def _slope(sizes: tuple[int, ...], values: list[float]) -> float | None:
    if len(sizes) < 2 or min(values[0], values[-1]) <= 0:
        return None
    return round(math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0]), 2)


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known here
        return 3 << 30
