"""Three ways to the same answers, compared by operation: ``python -m tests.support.comparison [WORKLOAD ...]``.

The library on a manual clock, the streaming query and the replay share no code but the record format. Each runs on the
same seeded workloads. An operation counts as different if its outcome or the instant of its outcome differs, or if it
is missing or there twice. Rows that the stream set aside as late or malformed are left out for the other two as well,
and are counted.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import functions as F

from purgatory.journal.records import EVENT, JOURNAL, KEEP_KEYS_MS, OPERATION, TRACE
from purgatory.pipeline import stream
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._rows.validity import TRACE_PROBLEM
from purgatory.pipeline._spark.session import session
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.replay import replay
from tests.support import workloads
from tests.support.rehearsal import rehearse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPARED: Final = ("purgatory", "operation", "outcome", "finished")


@attrs.frozen
class Comparison:
    """One workload: the comparisons made, and the number of differences."""

    workload: str
    operations: int
    late: int
    malformed: int
    stream_differs: int
    library_differs: int

    @property
    def differences(self) -> int:
        """The sum of both."""
        return self.stream_differs + self.library_differs


def verify(
    spark: SparkSession, workload: str, folder: Path, *, operations: int, seed: int = 1, files: int = 6
) -> Comparison:
    """Generate a workload in a folder, answer it in three ways, and compare."""
    if folder.exists():
        shutil.rmtree(folder)
    shape = attrs.evolve(workloads.WORKLOADS[workload], operations=operations, events=2 * operations)
    workloads.place_trace(folder / "trace", shape, seed, files)
    settings = stream.StreamSettings(
        delay_ms=5_000, buckets=4, files_per_batch=1, once=True, keep_ms=shape.keep_keys_ms
    )
    stream.run(spark, str(folder / "trace"), str(folder / "answers"), str(folder / "checkpoint"), settings)
    aside = _aside(spark, folder / "answers_aside").cache()
    clean = on_time(load(spark, str(folder / "trace"), TRACE), aside)
    workloads.write(folder / "clean", clean.orderBy("seq").toArrow(), TRACE, files=1)
    replay(Local([str(folder / "clean")], schema=TRACE), str(folder / "replay"), keep_us=settings.fixed.keep_us)
    twin = _comparable(spark.read.parquet(str(folder / "replay" / "answers"))).cache()
    library = rehearsed(spark, folder / "clean", folder / "journal", shape.keep_keys_ms)
    streamed = _comparable(stream.answers(spark, str(folder / "answers")))
    parts = {row["part"]: row["count"] for row in aside.groupBy("part").count().collect()}
    return Comparison(
        workload,
        twin.count(),
        parts.get("late", 0),
        parts.get("malformed", 0),
        differences(streamed, twin.select(*streamed.columns)),
        differences(library, twin),
    )


def _aside(spark: SparkSession, place: Path) -> DataFrame:
    """The rows that a stream set aside. There is no folder if there are none."""
    return (
        stream.answers(spark, str(place)) if place.exists() else spark.createDataFrame([], "part string, detail string")
    )


def on_time(trace: DataFrame, aside: DataFrame) -> DataFrame:
    """The rows of a trace that the stream did not set aside."""
    seq = F.get_json_object("detail", "$.seq").cast("long").alias("seq")
    late = aside.where("part = 'late'").select(seq)
    good = F.expr(TRACE_PROBLEM).isNull() & F.col("kind").isin(OPERATION, EVENT)
    return trace.where(good).join(F.broadcast(late), "seq", "left_anti")


def rehearsed(spark: SparkSession, trace: Path, journal: Path, keep_ms: int = KEEP_KEYS_MS) -> DataFrame:
    """The library's answers, from the journal that it wrote."""
    rehearse(trace, journal, keep_ms=keep_ms)
    return _comparable(load(spark, str(journal), JOURNAL))


def differences(one: DataFrame, other: DataFrame) -> int:
    """How many operations are not the same, once each, in both."""
    more, fewer = one.exceptAll(other), other.exceptAll(one)
    name = [column for column in ("purgatory", "operation") if column in one.columns]
    return more.select(*name).unionByName(fewer.select(*name)).distinct().count()


def _comparable(answers: DataFrame) -> DataFrame:
    return answers.select(*(name for name in _COMPARED if name in answers.columns))


def main() -> int:
    """Compare the workloads that are named, or all, of 2,000 operations each. 0 if there is no difference."""
    spark = session("comparison", {"spark.sql.shuffle.partitions": "2"})
    different = 0
    for name in sys.argv[1:] or workloads.WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            found = verify(spark, name, Path(folder) / "run", operations=2_000)
        sys.stdout.write(f"{found}\n")
        different += found.differences
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
