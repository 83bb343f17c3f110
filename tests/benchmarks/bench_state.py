"""The cost of the stream's state outside Spark: the cost of an arrival by the number of parked operations.

A bucket of each stage is filled with operations of two keys each. Then batches of a few arrivals come, as they do, each
batch with the bucket loaded from its agenda and saved again: the leaves that it touches are read and written.
The garbage collector goes over what is made of it, and over all modules that a Python worker of Spark's has imported.
So these are imported here, too, and the cost is measured with the collector at work and while it pauses, as the stages
let it.
"""

from __future__ import annotations

import gc
import random
import statistics
from typing import TYPE_CHECKING

import pandas as pd  # noqa: F401  # what a worker holds
import pyspark.sql  # noqa: F401

from purgatory.pipeline._state.state_machines import KeyCore, OperationCore
from tests.benchmarks.harness import Row, Table, clock
from tests.support.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from purgatory.pipeline._state.state_machines import Hit, Open, Watch

__all__ = ["arrivals", "main"]

NOW = 1_767_225_600_000_000  # in microseconds, as instants are: small numbers would be packed in fewer bytes
LATER = NOW + 10**15
ARRIVALS = 20


class _Bucket:
    """A bucket of each stage, kept as it is in Spark: as bytes."""

    def __init__(self, operations: int) -> None:
        self._rng = random.Random(1)
        self._keys = operations
        self._at = NOW
        self._stores = Memory(), Memory(), Memory()
        self._agendas: tuple[bytes | None, bytes | None] = (None, None)
        found: tuple[list[Open], list[Hit]] = ([], [])
        for _ in range(2):  # first into the inbox, then out of it
            found = self.keys(self.watches(operations))
        self.operations(*found)

    def share(self, keys: int) -> None:
        """Draw from a number of keys."""
        self._keys = keys

    def next_batch(self) -> None:
        """Let the rows that came be decided on with the next call of ``keys``."""
        self._at += 1

    @property
    def bytes(self) -> tuple[int, int]:
        """The state of each stage."""
        agendas = [len(agenda or b"") for agenda in self._agendas]
        leaves = [sum(map(len, store.values())) for store in self._stores]
        return agendas[0] + leaves[0] + leaves[1], agendas[1] + leaves[2]

    def watches(self, operations: int) -> list[Watch]:
        """Rows of operations on two keys each, which wait."""
        self._at += 1
        found: list[Watch] = []
        for _ in range(operations):
            name = f"op-{self._rng.randrange(10**9):09d}"
            keys = (f"orders-{self._rng.randrange(self._keys):07d}" for _ in range(2))
            found += [
                (self._at, name, n, 2, key, NOW, LATER, 7, 0, None if n else ("Fetch", 2, 1_000))
                for n, key in enumerate(keys)
            ]
        return found

    def keys(self, watches: list[Watch]) -> tuple[list[Open], list[Hit]]:
        """A batch of stage 1: takes rows, decides on those of the batch before."""
        core = KeyCore(self._agendas[0], *self._stores[:2])
        core.watches(watches)
        found = core.advance(self._at - 1)
        _ = core.next_us
        self._agendas = (core.agenda, self._agendas[1])
        return found

    def operations(self, opened: list[Open], hits: list[Hit]) -> None:
        """A batch of stage 2."""
        core = OperationCore(self._agendas[1], self._stores[2])
        core.settle(opened, hits, NOW)
        _ = core.next_us
        self._agendas = (self._agendas[0], core.agenda)


def _cost(bucket: _Bucket, *, collected: bool) -> tuple[float, float]:
    """Seconds of a batch of each stage."""
    (gc.enable if collected else gc.disable)()
    try:
        watches = bucket.watches(ARRIVALS)
        started = clock()
        found = bucket.keys(watches)
        between = clock()
        bucket.operations(*found)
        return between - started, clock() - between
    finally:
        gc.enable()


def arrivals(operations: int, *, rounds: int = 30) -> Iterator[Row]:
    """Of each stage: an operation's bytes, and an arrival's time."""
    bucket = _Bucket(operations)
    kept = bucket.bytes
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for collected, found in times.items():
            found.append(_cost(bucket, collected=collected))
    for stage, name in enumerate(("stage 1, the keys", "stage 2, the operations")):
        working, paused = (statistics.median(one[stage] for one in times[on]) / ARRIVALS * 1e6 for on in (True, False))
        yield f"{name}, {operations:,} parked", round(kept[stage] / operations, 1), round(paused), round(working)


def parking(operations: int, *, rounds: int) -> Row:
    """An operation's time in each stage, where many come at once into an empty bucket. Rows wait one batch."""
    times: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        bucket = _Bucket(0)
        bucket.share(operations)
        watches = bucket.watches(operations)
        gc.disable()
        try:
            started = clock()
            bucket.keys(watches)
            taken = clock()
            bucket.next_batch()
            found = bucket.keys([])
            decided = clock()
            bucket.operations(*found)
            times.append((taken - started, decided - taken, clock() - decided))
        finally:
            gc.enable()
    each = [round(statistics.median(one) / operations * 1e6, 1) for one in zip(*times, strict=True)]
    return (f"{operations:,} at once", *each, round(sum(each), 1))


def keys(batches: int) -> Iterator[Row]:
    """A thousand new keys a batch, an event each: the bytes that are left, kept for good and for a hundred batches."""
    for keep, said in ((None, "for ever"), (100 * _STEP, "100 batches")):
        stores: tuple[Memory, Memory] = (Memory(), Memory())
        agenda: bytes | None = None
        for batch in range(batches):
            core = KeyCore(agenda, *stores, keep_us=keep)
            core.events((NOW + batch * _STEP, f"produce\0session-{batch * 1_000 + n:09d}", 1) for n in range(1_000))
            core.advance(NOW + batch * _STEP)
            agenda = core.agenda
        left = len(agenda or b"") + sum(map(len, stores[0].values()))
        named, kept = 1_000 * batches, core.kept
        yield f"{batches:,} batches, {said}", left, round(left / named, 1), round(left / kept, 1)


_STEP = 1_000_000


def main(*, quick: bool) -> Iterator[Table]:
    """The tables of an arrival's cost, and of parking many at once."""
    sizes, rounds = ((1_000, 10_000), 5) if quick else ((1_000, 10_000, 100_000), 30)
    rows = tuple(row for size in sizes for row in arrivals(size, rounds=rounds))
    columns = ("a bucket of", "bytes an operation", "us an arrival", "us, collector at work")
    note = f"Two keys each, {ARRIVALS} arrivals a batch."
    yield Table("the stream's state", columns, rows, note, "state")
    columns = ("a thousand new keys a batch, kept", "bytes", "bytes a key ever named", "bytes a key kept")
    rows = tuple(row for batches in ((200,) if quick else (200, 400, 800)) for row in keys(batches))
    yield Table("keys that come and go", columns, rows, "An event each, then never named again.", "state-keys")
    sizes = (1_000, 4_000) if quick else (1_000, 4_000, 15_000)
    rows = tuple(parking(n, rounds=rounds) for n in sizes)
    stages = ("into an empty bucket", "us, taken in", "us, decided on", "us, opened", "us an operation")
    yield Table("parking at once", stages, rows, "Two keys each.", "state-parking")
