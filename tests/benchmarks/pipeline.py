"""`python -m tests.benchmarks.pipeline`: report, replay, stream and what-if at size, on local[2], without test flags.

Inputs are generated into var/bench-spark once and kept. Each figure is one run in a session that has done nothing but
read a small table, and includes writing the result.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import structlog

from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline import gen, stream
from purgatory.pipeline.load import load
from purgatory.pipeline.replay import replay
from purgatory.pipeline.report import report
from purgatory.pipeline.session import session
from purgatory.pipeline.verify import differences, place_trace
from purgatory.pipeline.whatif import Grid, waits_of_trace, wheels
from tests.benchmarks.harness import Table, say, show, write_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path("var/bench-spark")
CHUNK = 5_000_000
NAMES = ("report", "replay", "stream", "whatif")


def _journal(rows: int) -> Path:
    folder = HOME / f"journal-{rows}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        following = 0
        for number, start in enumerate(range(0, rows, CHUNK)):
            table = gen.journal(min(CHUNK, rows - start), seed=number + 1, seconds=14_400)
            following = gen.write(folder, table, JOURNAL, files=4, first=following)
        (folder / "done").touch()
    return folder


def _trace(operations: int, files: int) -> Path:
    folder = HOME / f"trace-{operations}-{files}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        base = gen.Workload(skew=0.6, keys=2_000, seconds=7_200, keys_per_operation=2, ahead=1)
        shape = attrs.evolve(base, operations=operations, events=operations)
        place_trace(folder, shape, 1, files)
        (folder / "done").touch()
    return folder


def _report(spark: SparkSession, rows: int) -> tuple[int, float, str]:
    source = _journal(rows)
    started = time.perf_counter()
    report(spark, str(source), str(HOME / "out" / f"report-{rows}"))
    return rows, time.perf_counter() - started, "rows"


def _replay(spark: SparkSession, rows: int) -> tuple[int, float, str]:
    source = _trace(rows // 2, 8)
    started = time.perf_counter()
    replay(load(spark, str(source), TRACE)).write.mode("overwrite").parquet(str(HOME / "out" / "replay"))
    return rows, time.perf_counter() - started, "trace rows"


def _stream(spark: SparkSession, rows: int) -> tuple[int, float, str]:
    source = _trace(rows // 2, 10)
    out, checkpoint = HOME / "out" / "stream", HOME / "out" / "checkpoint"
    for folder in (out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    settings = stream.StreamSettings(buckets=16, files_per_batch=4, once=True)
    counts = stream.run(spark, str(source), str(out), str(checkpoint), settings)
    columns = ("operation", "outcome", "finished")
    given = stream.answers(spark, str(out)).where("part = 'done'").select(*columns)
    differ = differences(given, replay(load(spark, str(source), TRACE)).select(*columns))
    say(f"stream: {given.count():,} operations, {differ} differ from the batch twin; {counts}")
    return rows, counts["seconds"], f"trace rows, {differ} differences from the batch twin"


def _whatif(spark: SparkSession, pairs: int) -> tuple[int, float, str]:
    grid = Grid(ticks_ms=(1, 2, 5, 10, 20), wheel_sizes=(10, 20, 64, 128))
    operations = pairs // 20
    source = _trace(operations, 8)
    waits = waits_of_trace(load(spark, str(source), TRACE)).cache()
    waits.count()
    started = time.perf_counter()
    wheels(waits, grid).collect()
    seconds = time.perf_counter() - started
    waits.unpersist()
    return operations * 20, seconds, "operation-configurations"


def main(argv: list[str] | None = None) -> int:
    """Measure; prints a table and keeps it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipeline", description=__doc__)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--rows", type=int, action="append", help="of the report and the replay (default 10 million)")
    parser.add_argument("--stream-rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=200_000_000)
    parser.add_argument("--json", type=Path, default=Path("var/bench-spark.json"))
    options = parser.parse_args(argv)
    started = time.perf_counter()
    spark = session("bench", {"spark.master": "local[2]", "spark.driver.memory": "6g"})
    spark.range(10).count()
    say(f"session: {time.perf_counter() - started:.1f} s")
    rows = []
    for name in options.only or NAMES:
        sizes = {"stream": [options.stream_rows], "whatif": [options.pairs]}.get(name, options.rows or [10_000_000])
        for size in sizes:
            count, seconds, unit = globals()[f"_{name}"](spark, size)
            say(f"{name} {count:,}: {seconds:.1f} s")
            rows.append((f"{name}, {count:,} {unit}", round(seconds, 1), round(count / seconds)))
    table = Table("the pipeline on local[2]", ("what", "s", "per s"), tuple(rows), slug="pipeline")
    show(table)
    write_json([table], options.json)
    spark.stop()
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main())
