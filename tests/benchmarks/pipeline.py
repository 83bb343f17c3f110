"""``python -m tests.benchmarks.pipeline``: the pipeline at size, on local[2], without test flags.

Inputs are generated into var/bench-spark once and kept. Each figure is one run in a session that has done nothing but
read a small table, and includes writing the result. Beside the seconds stand the processor seconds of driver, JVM and
workers together: they say what it costs when the machine is busy, and two cores can't be quicker than half of them. The
load before a run says how much its seconds are worth: much above 0, they are mostly waiting for others.

- local: a report in one process, as a command.
- localreplay: a replay in one process, as a command.
- report, replay, stream, whatif: rows a second. The stream is compared with the batch twin, operation by operation.
- state: a stream that only parks. The output and the time of a batch as the parked operations grow.
- latency: a stream fed in real time. How long after its instant an answer can be read.

Results are kept by name, so that a part can be run again by itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from purgatory.journal.records import JOURNAL, KEEP_KEYS_MS, TRACE
from purgatory.pipeline import stream
from purgatory.pipeline._spark.session import session
from purgatory.pipeline._summaries.choices import Grid
from purgatory.pipeline._summaries.idle import PURGES, SPELLS, purge_counter
from purgatory.pipeline._summaries.wheels import COUNTED, WAITS, wheel_counter
from purgatory.pipeline._tables import answers
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.replay import replay
from purgatory.pipeline.report import report
from tests.benchmarks.harness import Row, Table, say, show, write_json
from tests.benchmarks.pipeline_state import latency, state
from tests.benchmarks.processor import processor
from tests.support import workloads
from tests.support.comparison import differences

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

HOME = Path("var/bench-spark")
CHUNK = 5_000_000
SIZES = {
    "local": [1_000_000, 10_000_000],
    "report": [10_000_000],
    "replay": [10_000_000],
    "localreplay": [1_000_000, 10_000_000],
    "stream": [1_000_000],
    "whatif": [200_000_000],
    "state": [4_000_000],
    "latency": [60_000],
}
RATES = ("local", "report", "replay", "localreplay", "stream", "whatif")
COLUMNS = ("what", "s", "per s", "processor s", "load before")


def _journal(rows: int) -> Path:
    folder = HOME / f"journal-{rows}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        following = 0
        for number, start in enumerate(range(0, rows, CHUNK)):
            table = workloads.journal(min(CHUNK, rows - start), seed=number + 1, seconds=14_400)
            following = workloads.write(folder, table, JOURNAL, files=4, first=following)
        (folder / "done").touch()
    return folder


def _trace(operations: int, files: int) -> Path:
    folder = HOME / f"trace-{operations}-{files}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        base = workloads.Workload(skew=0.6, keys=2_000, seconds=7_200, keys_per_operation=2, ahead=1)
        if operations <= CHUNK:
            workloads.place_trace(folder, attrs.evolve(base, operations=operations, events=operations), 1, files)
        else:  # in parts that fit into memory, each with keys and operations of its own
            following = 0
            for number, start in enumerate(range(0, operations, CHUNK)):
                count = min(CHUNK, operations - start)
                part = workloads.trace(attrs.evolve(base, operations=count, events=count), number + 1)
                following = workloads.write(folder, _renamed(part, f"{number}-"), TRACE, files=files, first=following)
            workloads.flush_after(folder, following)
        (folder / "done").touch()
    return folder


def _renamed(trace: pa.Table, prefix: str) -> pa.Table:
    def named(names: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(pa.scalar(prefix), names, "")

    operation = named(trace.column("operation").combine_chunks())
    keys = trace.column("keys").combine_chunks()
    keys = pa.ListArray.from_arrays(keys.offsets, named(keys.values))
    place = trace.schema.get_field_index
    trace = trace.set_column(place("operation"), "operation", operation)
    return trace.set_column(place("keys"), "keys", keys)


def _report(spark: SparkSession, rows: int) -> tuple[float, str]:
    source, out = _journal(rows), HOME / "out" / f"report-{rows}"
    return _timed(lambda: report(Cluster(spark, [str(source)]), out)), "rows"


def _local(_: SparkSession, rows: int) -> tuple[float, str]:
    source, out = _journal(rows), HOME / "out" / f"local-{rows}"
    command = [sys.executable, "-m", "purgatory", "pipeline", "report", "--engine", "local", "--out", str(out)]
    return _timed(lambda: subprocess.run([*command, "--journal", str(source)], check=True)), "rows, start included"  # noqa: S603


def _replay(spark: SparkSession, rows: int) -> tuple[float, str]:
    engine = Cluster(spark, [str(_trace(rows // 2, 8))], schema=TRACE)
    return _timed(lambda: replay(engine, str(HOME / "out" / "replay"), keep_us=KEEP_KEYS_MS * 1000)), "trace rows"


def _localreplay(_: SparkSession, rows: int) -> tuple[float, str]:
    source, out = _trace(rows // 2, 8), HOME / "out" / "replay-local"
    command = [sys.executable, "-m", "purgatory", "pipeline", "replay", "--engine", "local", "--out", str(out)]
    seconds = _timed(lambda: subprocess.run([*command, "--trace", str(source)], check=True))  # noqa: S603
    return seconds, "trace rows, start included"


def _stream(spark: SparkSession, rows: int) -> tuple[float, str]:
    source = _trace(rows // 2, 10)
    out, checkpoint = HOME / "out" / "stream", HOME / "out" / "checkpoint"
    for folder in (out, HOME / "out" / "stream_aside", checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    settings = stream.StreamSettings(buckets=16, files_per_batch=5, once=True)
    seconds = _timed(lambda: stream.run(spark, str(source), str(out), str(checkpoint), settings))
    columns = ("operation", "outcome", "finished")
    given = stream.answers(spark, str(out)).select(*columns)
    replay(Local([str(source)], schema=TRACE), str(HOME / "out" / "twin"), keep_us=KEEP_KEYS_MS * 1000)
    differ = differences(given, spark.read.parquet(str(HOME / "out" / "twin" / "answers")).select(*columns))
    say(f"stream: {given.count():,} operations, {differ} differ from the batch twin")
    return seconds, f"trace rows, {differ} differences from the batch twin"


def _whatif(spark: SparkSession, pairs: int) -> tuple[float, str]:
    grid = Grid(ticks_ms=(1, 2, 5, 10, 20), wheel_sizes=(10, 20, 64, 128))
    source = _trace(pairs // 20, 8)
    engine = Cluster(spark, [str(source)], schema=TRACE)
    engine.open(allow_gaps=False)
    answers.prepare(engine)
    engine.keep("waits", answers.WAITS)
    engine.view("uses", answers.USES)
    spark.table("waits").count()
    started = time.perf_counter()
    engine.query(answers.timeouts(grid.timeouts_ms))
    say(f"whatif: timeouts in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    engine.apply(purge_counter(grid.purge_intervals), SPELLS, PURGES, "purgatory")
    say(f"whatif: purge intervals in {time.perf_counter() - started:.1f} s")
    seconds = _timed(lambda: engine.apply(wheel_counter(grid.ticks_ms, grid.wheel_sizes), WAITS, COUNTED))
    engine.close()
    return seconds, "operation-configurations"


_spent = 0.0


def _timed(work: Callable[[], object]) -> float:
    """The seconds that it takes. The processor's go to ``_spent``."""
    global _spent  # noqa: PLW0603  (one measurement at a time)
    before, started = processor(), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    _spent = processor() - before
    return seconds


def _with_earlier(path: Path, table: Table) -> list[Table]:
    """What earlier runs measured and this one didn't, and the table."""
    if not path.exists():
        return [table]
    earlier = [
        Table(**{**old, "columns": tuple(old["columns"]), "rows": tuple(map(tuple, old["rows"]))})
        for old in json.loads(path.read_text(encoding="utf-8"))["tables"]
    ]
    if table.slug == "pipeline":
        fresh = {row[0] for row in table.rows}
        same = [old for old in earlier if old.slug == table.slug and old.columns == table.columns]
        kept = [row for old in same for row in old.rows if row[0] not in fresh]
        table = attrs.evolve(table, rows=tuple(sorted((*kept, *table.rows), key=_place)))
    return [*(old for old in earlier if old.slug != table.slug), table]


def _place(row: Row) -> tuple[int, int]:
    name, _, size = str(row[0]).partition(", ")
    return RATES.index(name), int(size.split(" ")[0].replace(",", ""))


def main(argv: list[str] | None = None) -> int:
    """Measure. Prints a table and keeps it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipeline", description=__doc__)
    parser.add_argument("--only", choices=SIZES, action="append")
    parser.add_argument("--rows", type=int, action="append", help="in place of the default size; may be repeated")
    parser.add_argument("--json", type=Path, default=Path("var/bench-spark.json"))
    options = parser.parse_args(argv)
    plan = [(name, size) for name in options.only or SIZES for size in options.rows or SIZES[name]]
    if len(plan) > 1:  # a process each: a JVM that has run something is a quicker one
        for name, size in plan:
            one = ["--only", name, "--rows", str(size), "--json", str(options.json)]
            subprocess.run([sys.executable, "-m", "tests.benchmarks.pipeline", *one], check=True)  # ourselves  # noqa: S603
        return 0
    ((name, size),) = plan
    load_before = round(os.getloadavg()[0], 1)
    started = time.perf_counter()
    spark = session("bench", {"spark.master": "local[2]", "spark.driver.memory": "6g"})
    spark.range(10).count()
    say(f"session: {time.perf_counter() - started:.1f} s; load {load_before}")
    if name in RATES:
        seconds, unit = globals()[f"_{name}"](spark, size)
        row = (f"{name}, {size:,} {unit}", round(seconds, 1), round(size / seconds), round(_spent, 1), load_before)
        table = Table("the pipeline on local[2]", COLUMNS, (row,), slug="pipeline")
    else:
        table = {"state": state, "latency": latency}[name](spark, HOME / "out", size)
    show(table)
    spark.stop()
    write_json(_with_earlier(options.json, table), options.json)
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main())
