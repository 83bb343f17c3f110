"""What a stream's state and checkpoint cost as the parked grow, and how long answers take.

*State*: operations on two keys each, with deadlines days away and levels that never come, parked batch by batch. After
each batch: the bytes that the batch left in the checkpoint, the bytes of the state itself (the newest changelog or
snapshot of each partition has all buckets that the batch touched, which is all of them), and what the batch took.

*Latency*: a file of fresh rows put in place each half second. An answer's latency runs from its own instant to the end
of the batch after which it can be read; the watermark's delay is part of it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.records import TRACE
from purgatory.pipeline import gen, stream
from tests.benchmarks.harness import Table, percentile, say

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

STEPS = 8
DELAY_MS = 1_000
EVERY_S = 0.5
WARM_BATCHES = 6


def state(spark: SparkSession, home: Path, operations: int) -> Table:
    """Park so many, an eighth a batch."""
    trace, out, checkpoint = (home / f"state-{name}" for name in ("trace", "out", "checkpoint"))
    for folder in (trace, out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    shape = gen.Workload(operations=operations, events=1, seconds=600, keys=20_000, delays_ms=(86_400_000,))
    shape = attrs.evolve(shape, unreachable=2 * shape.keys_per_operation, keys_per_operation=2)
    gen.write(trace, gen.trace(shape), TRACE, files=STEPS)
    settings = stream.StreamSettings(delay_ms=100, buckets=64, files_per_batch=1, once=True)
    query = stream.start(spark, str(trace), str(out), str(checkpoint), settings)
    written, batch = [], 0
    while query.isActive:
        if (checkpoint / "commits" / str(batch)).exists():
            written.append(_bytes(checkpoint / "state"))
            batch += 1
        time.sleep(0.02)
    query.awaitTermination()
    written += [_bytes(checkpoint / "state")] * (len(query.recentProgress) - len(written))
    rows, parked, before = [], 0, 0
    for progress, total in zip(query.recentProgress, written, strict=True):
        if not progress["numInputRows"]:
            continue
        parked += progress["numInputRows"]
        took = progress["durationMs"]
        commit = sum(part["commitTimeMs"] for part in progress["stateOperators"])
        rows.append((parked, round((total - before) / 1e6, 2), took["triggerExecution"], took["addBatch"], commit))
        before = total
    say(f"state: {parked:,} operations parked, {_bytes(out):,} bytes of answers")
    columns = ("parked", "MB written", "ms", "ms of it in the stages", "ms commit, all tasks")
    note = "Two keys each, 64 buckets, all touched in every batch. The first batch also starts up."
    return Table("state and checkpoint, batch by batch", columns, tuple(rows), note, "pipeline-state")


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # cleaned up meanwhile
            continue
    return total


def latency(spark: SparkSession, home: Path, operations: int) -> Table:
    """Feed so many in a minute, in real time, and see when each answer can be read."""
    trace, out, checkpoint = (home / f"latency-{name}" for name in ("trace", "out", "checkpoint"))
    for folder in (trace, out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    seconds = 60
    shape = gen.Workload(operations=operations, events=operations, seconds=seconds, delays_ms=(500, 1_000, 5_000))
    table = gen.trace(shape)
    offset = pa.scalar(gen.START_MS * 1000)
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
    following = gen.write(folder, rows, TRACE, files=1, first=first)
    os.utime(max(folder.glob("trace-*"), key=lambda path: path.name))  # dated by when it came, not by what it follows
    return following


def _waits(out: Path, since: float) -> list[float]:
    """Seconds from the instant of each answer to when the sink's log named its file."""
    waits: list[float] = []
    for log in (out / "_spark_metadata").iterdir():
        if not log.name.isdigit():
            continue
        at = log.stat().st_mtime
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            if "part=done" in path:
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
