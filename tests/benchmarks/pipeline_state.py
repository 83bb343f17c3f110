"""The cost of a stream's state and checkpoint as the parked operations grow, and the time of answers.

*State*: operations on two keys each, with deadlines days away and levels that never come, parked a quarter of a million
a batch, and beside them, at the start, in the middle and at the end, batches of a thousand. After each batch: its time,
the processor seconds of driver, JVM and workers, and the bytes that it left in the checkpoint. Rows are decided on in
the batch after the one that they come with, so of several small batches only the inner ones count.

*Latency*: a file of fresh rows put in place each half second. An answer's latency runs from its own instant to the end
of the batch after which it can be read. The watermark's delay is part of it.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.records import TRACE
from purgatory.pipeline import stream
from tests.benchmarks.harness import Table, percentile, say
from tests.benchmarks.processor import processor
from tests.support import workloads

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

STEP = 250_000
FEW = 1_000
DELAY_MS = 1_000
EVERY_S = 0.5
WARM_BATCHES = 6


def state(spark: SparkSession, home: Path, operations: int) -> Table:
    """Park a number of operations, and some at a time beside them."""
    trace, out, checkpoint = (home / f"state-{name}" for name in ("trace", "out", "checkpoint"))
    for folder in (trace, out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    steps = _parked(trace, operations)
    settings = stream.StreamSettings(delay_ms=100, buckets=64, files_per_batch=1, once=True)
    query = stream.start(spark, str(trace), str(out), str(checkpoint), settings)
    after, batch = [(processor(), 0)], 0
    while query.isActive:
        if (checkpoint / "commits" / str(batch)).exists():
            after.append((processor(), _bytes(checkpoint / "state")))
            batch += 1
        time.sleep(0.02)
    query.awaitTermination()
    rows, parked = [], 0
    for index, (progress, count) in enumerate(zip(query.recentProgress, steps, strict=False)):
        parked += count
        inner = 0 < index < len(steps) - 1 and steps[index - 1] == count == steps[index + 1]
        if inner and index + 1 < len(after):
            (spent, written), (spent_then, written_then) = after[index], after[index + 1]
            took = progress["durationMs"]["triggerExecution"] / 1000
            written_mb = round((written_then - written) / 1e6, 2)
            rows.append((parked, count, round(took, 2), round(spent_then - spent, 2), written_mb))
    say(f"state: {parked:,} operations parked, {_bytes(out):,} bytes of answers")
    columns = ("parked", "arriving", "s", "processor s", "MB written")
    return Table("a batch, by what is parked", columns, tuple(rows), "Two keys each, 64 buckets.", "pipeline-state")


def _parked(folder: Path, operations: int) -> list[int]:
    """A file a batch. Gives the number of operations of each."""
    large, small = [STEP] * max(3, operations // STEP), [FEW] * 5
    steps = [*small, *large[: len(large) // 2], *small, *large[len(large) // 2 :], *small]
    following = 0
    for number, count in enumerate(steps):
        shape = workloads.Workload(
            operations=count, events=1, seconds=60, keys=operations // 4, delays_ms=(864_000_000,)
        )
        shape = attrs.evolve(shape, unreachable=2 * shape.keys_per_operation, keys_per_operation=2)
        table = workloads.trace(shape, number + 1)
        names = pa.array([f"op-{number}-{n}" for n in range(len(table))])
        table = table.set_column(table.schema.get_field_index("operation"), "operation", names)
        instants = table.column("ts").cast(pa.int64()).to_numpy() + number * 61_000_000
        following = workloads.write(folder, _dated(table, instants), TRACE, files=1, first=following)
        newest = max(folder.glob("trace-*"), key=lambda path: path.name)
        os.utime(newest, (number, number))  # to be read in this order
    return steps


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # cleaned up meanwhile
            continue
    return total


def latency(spark: SparkSession, home: Path, operations: int) -> Table:
    """Feed a number per minute, in real time, and see when each answer can be read."""
    trace, out, checkpoint = (home / f"latency-{name}" for name in ("trace", "out", "checkpoint"))
    for folder in (trace, out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    seconds = 60
    shape = workloads.Workload(operations=operations, events=operations, seconds=seconds, delays_ms=(500, 1_000, 5_000))
    table = workloads.trace(shape)
    offset = pa.scalar(workloads.START_MS * 1000)
    instants = pa.compute.subtract(table.column("ts").cast(pa.int64()), offset).to_numpy()
    trace.mkdir(parents=True)
    settings = stream.StreamSettings(delay_ms=DELAY_MS, buckets=16)
    query = stream.start(spark, str(trace), str(out), str(checkpoint), settings)
    first, step = 0, 0
    while query.isActive and len(query.recentProgress) < WARM_BATCHES:  # no answers of these rows are wanted
        rows = table.slice(0, 100)
        names = pa.array([f"warm-{step}-{number}" for number in range(len(rows))])
        rows = rows.set_column(table.schema.get_field_index("operation"), "operation", names)
        first = _feed(trace, _dated(rows, np.full(len(rows), time.time() * 1e6)), first)
        step += 1
        time.sleep(EVERY_S)
    started = time.time()
    for step in range(1, round(seconds / EVERY_S) + 1):
        begin, end = np.searchsorted(instants, [(step - 1) * EVERY_S * 1e6, step * EVERY_S * 1e6])
        time.sleep(max(0.0, started + step * EVERY_S - time.time()))
        if end > begin:
            first = _feed(trace, _dated(table.slice(begin, end - begin), instants[begin:end] + started * 1e6), first)
    query.processAllAvailable()
    query.stop()
    batches = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]][-40:]
    waits = _waits(out, started)
    shares = [(f"p{round(share * 100)}", round(percentile(waits, share), 2)) for share in (0.5, 0.9, 0.99, 1.0)]
    rows_out = (*shares, ("a batch, median", round(percentile(batches, 0.5) / 1000, 2)))
    note = f"{len(waits):,} answers, {operations * 2 // seconds:,} rows a second, --delay {DELAY_MS / 1000:.0f}s."
    return Table("answer latency of the stream", ("", "s"), rows_out, note, "pipeline-latency")


def _dated(rows: pa.Table, instants: Any) -> pa.Table:
    ts = pa.array(instants.astype(np.int64)).cast(pa.timestamp("us", "UTC"))
    place = rows.schema.get_field_index("ts")
    return rows.set_column(place, rows.schema.field("ts"), ts)


def _feed(folder: Path, rows: pa.Table, first: int) -> int:
    following = workloads.write(folder, rows, TRACE, files=1, first=first)
    os.utime(max(folder.glob("trace-*"), key=lambda path: path.name))  # dated by when it came, not by what it follows
    return following


def _waits(out: Path, since: float) -> list[float]:
    """Seconds from the instant of each answer to when its batch's folder got its name."""
    waits: list[float] = []
    for path in out.glob("commit=*/date=*/*.parquet"):
        at = path.parents[1].stat().st_ctime
        found = pq.ParquetFile(path).read(["operation", "finished"])
        finished = found.column("finished").cast(pa.int64()).to_numpy()
        unit = {"ns": 1e9, "us": 1e6, "ms": 1e3}[found.schema.field("finished").type.unit]
        names = found.column("operation").to_pylist()
        waits += [
            at - instant / unit
            for name, instant in zip(names, finished, strict=True)
            if not name.startswith("warm") and instant / unit >= since
        ]
    return waits
