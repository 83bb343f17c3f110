"""`purgatory pipeline stream`: the purgatory as one streaming query, exactly once.

    trace rows -> malformed told apart -> a row for each key, packed by bucket -> stage 1 by bucket of the key
    -> stage 2 by bucket of the operation -> Parquet

Event time, Append, two chained stateful stages. The output is one table, partitioned by `part`: `done`
(every operation once), `late` and `malformed` (rows set aside, with the reason). Read it through Spark
(`answers` below), which goes by the sink's own
log: a file that a killed run left behind is no part of the output, though it lies in the folder.

The watermark column is left out of what the stages get, on purpose: Spark would drop late rows in front of
them without a trace, and we want to say which they were.

State costs what is parked; a batch costs a fixed part of a second. So this is for more operations than one
machine holds, not for answers within milliseconds: those belong in the embedded purgatory.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import functions as F

from purgatory.journal.records import TRACE
from purgatory.pipeline.load import spark_schema, trace_problem
from purgatory.pipeline.packed import PACKED, packing
from purgatory.pipeline.processors import ANSWER, BETWEEN, KeyStage, OperationStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_BUCKETS: Final = 16


@attrs.frozen(kw_only=True)
class StreamSettings:
    """How to run the query. Buckets and partitions are fixed by the checkpoint once it exists."""

    delay_ms: int = 5_000  # how late a row may be, by its own instant, behind the latest one seen
    buckets: int = attrs.field(default=DEFAULT_BUCKETS, validator=attrs.validators.in_([2**n for n in range(17)]))
    partitions: int | None = None  # tasks of each stage; None for as many as there are cores
    files_per_batch: int = 1_000
    once: bool = False


def answers_of(rows: DataFrame, settings: StreamSettings) -> DataFrame:
    """The query, from a streaming DataFrame of trace rows to answers."""
    problem = trace_problem()
    timed = (
        rows.withColumn("reason", problem)
        # What is malformed must not move time: one row dated far ahead would make every other row late.
        .withColumn("time", F.when(F.col("reason").isNull(), F.col("ts")))
        .withWatermark("time", f"{settings.delay_ms} milliseconds")
    )
    # A flush row has done its work with that. It can't be filtered out here: a filter would be pushed to before
    # the watermark.
    detail = F.to_json(F.struct("seq", "kind", "purgatory", "operation", "keys", "ts", "delay_ms", "levels"))
    packed = timed.select(
        *("seq", "kind", "purgatory", "operation", "keys", "delay_ms", "levels", "reason"),
        F.unix_micros("ts").alias("us"),
        F.when(F.col("reason").isNotNull(), detail).alias("detail"),
    ).mapInArrow(packing(settings.buckets), PACKED)
    between = packed.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=KeyStage(settings.buckets),
        outputStructType=BETWEEN,
        outputMode="Append",
        timeMode="EventTime",
        eventTimeColumnName="at",
    )
    answered = between.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=OperationStage(),
        outputStructType=ANSWER,
        outputMode="Append",
        timeMode="EventTime",
    )
    return answered.select(
        "part",
        "operation",
        "outcome",
        F.timestamp_micros("created_us").alias("created"),
        F.timestamp_micros("finished_us").alias("finished"),
        (F.col("finished_us") - F.col("created_us")).alias("waited_us"),
        "reason",
        "detail",
    )


@contextmanager
def _partitioned(spark: SparkSession, settings: StreamSettings) -> Iterator[None]:
    """For a query that is started within: each batch costs a task and a store for each partition of each stage."""
    name = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(name))
    cores = min(settings.buckets, spark.sparkContext.defaultParallelism)
    spark.conf.set(name, settings.partitions or max(1, cores))
    try:
        yield
    finally:
        spark.conf.set(name, before)


def start(spark: SparkSession, source: str, out: str, checkpoint: str, settings: StreamSettings) -> StreamingQuery:
    """Start the query over a folder of sealed trace files."""
    rows = (
        spark.readStream.schema(spark_schema(TRACE))
        .option("maxFilesPerTrigger", settings.files_per_batch)
        .option("pathGlobFilter", "trace-*.parquet")
        .parquet(source)
    )
    writer = (
        answers_of(rows, settings)
        .writeStream.queryName("purgatory")
        .outputMode("append")
        .format("parquet")
        .partitionBy("part")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime="0 seconds")
    with _partitioned(spark, settings):
        return writer.start()


def answers(spark: SparkSession, out: str) -> DataFrame:
    """What the stream has answered so far, by the sink's log."""
    return spark.read.parquet(out)


def run(spark: SparkSession, source: str, out: str, checkpoint: str, settings: StreamSettings) -> dict[str, float]:
    """Run until stopped, or, `once`, until the input is used up; gives counts."""
    started = time.monotonic()
    query = start(spark, source, out, checkpoint, settings)
    query.awaitTermination()
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    return {"rows": rows, "batches": len(query.recentProgress), "seconds": time.monotonic() - started}
