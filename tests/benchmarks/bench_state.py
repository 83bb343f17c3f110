"""What the stream's state costs outside Spark: a bucket read, looked at and written, as in each batch that touches it.

The garbage collector goes over what is made of it, and over all modules that a Python worker of Spark's has imported.
So these are imported here, too, and the cost is measured with the collector at work and while it pauses, as the stages
let it.
"""

from __future__ import annotations

import gc
import statistics
from typing import TYPE_CHECKING

import pandas as pd  # noqa: F401  # what a worker holds
import pyspark.sql  # noqa: F401

from purgatory.pipeline.cores import KeyCore, OperationCore
from tests.benchmarks.harness import Table, clock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["buckets", "main"]

LATER = 10**15
NOW = 10**9
SMALLEST_S = 0.2


def _filled(operations: int) -> tuple[KeyCore, OperationCore]:
    """A bucket of each stage in which so many operations of two keys each wait."""
    names = [f"op-{number:09d}" for number in range(operations)]
    keys = KeyCore()
    keys.watches(
        (at, name, n, 2, f"orders-{at % 300:05d}", NOW, LATER) for at, name in enumerate(names) for n in (0, 1)
    )
    keys.advance(NOW)
    done = OperationCore()
    done.opened((name, 2, at, LATER) for at, name in enumerate(names))
    return keys, done


def _batch(kind: type[KeyCore | OperationCore], data: bytes) -> None:
    core = kind.load(data)
    if isinstance(core, KeyCore):
        core.advance(NOW)
    else:
        core.settle(NOW, ())
    _ = core.next_us
    core.dump()


def _cost(kind: type[KeyCore | OperationCore], data: bytes, *, collected: bool) -> float:
    """Seconds of a batch, over as many as take long enough for full collections to come in their due share."""
    (gc.enable if collected else gc.disable)()
    try:
        started, count = clock(), 0
        while clock() - started < SMALLEST_S:
            _batch(kind, data)
            count += 1
        return (clock() - started) / count
    finally:
        gc.enable()


def buckets(operations: int = 10_000, *, rounds: int = 7) -> Table:
    """A bucket of each stage: its bytes, and the time of a batch, an operation."""
    rows = []
    for core in _filled(operations):
        data = core.dump()
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for collected, found in times.items():
                found.append(_cost(type(core), data, collected=collected))
        working, paused = (statistics.median(times[collected]) / operations * 1e6 for collected in (True, False))
        name = "stage 1, the keys" if isinstance(core, KeyCore) else "stage 2, the operations"
        rows.append(
            (name, round(len(data) / operations, 1), round(paused, 2), round(working, 2), round(working / paused, 2))
        )
    columns = ("a bucket of", "bytes", "us", "us, collector at work", "ratio")
    return Table(
        f"the stream's state, {operations:,} operations a bucket", columns, tuple(rows), "An operation.", "state"
    )


def main(*, quick: bool) -> Iterator[Table]:
    """The table of a bucket's cost."""
    yield buckets(rounds=2 if quick else 7)
