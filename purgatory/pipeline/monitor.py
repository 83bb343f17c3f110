"""`purgatory pipeline monitor`: windowed outcomes and percentiles over a journal while it is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from purgatory.journal.records import OUTCOMES
from purgatory.journal.records.normal import CANCELLED, EXPIRED
from purgatory.pipeline.rows.validity import JOURNAL_PROBLEM
from purgatory.pipeline.source import PurgatoryDataSource
from purgatory.pipeline.spark import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def windows(journal: DataFrame, window_s: int, delay_s: int) -> DataFrame:
    """Per window, purgatory and type: operations by outcome, median and 99th percentile of the wait, and failures.

    The expiry share is of the operations that expired although their records do not call that a normal end. `failed`
    counts these, and the cancelled operations whose records do not call that one.
    """
    wait = (F.unix_micros("finished") - F.unix_micros("created")) / 1000
    answered = F.when(F.col("outcome").isin("immediate", "satisfied"), wait)
    counts = [F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES]
    is_normal = F.coalesce(F.contains("normal_ends", "outcome"), F.lit(False))
    failed = [
        F.count_if((F.col("outcome") == name) & ~is_normal).alias(f"{name}_failed") for name in (EXPIRED, CANCELLED)
    ]
    rows = journal.where(F.expr(JOURNAL_PROBLEM).isNull()).withWatermark("finished", f"{delay_s} seconds")
    return (
        rows.groupBy(F.window("finished", f"{window_s} seconds"), "purgatory", "type")
        .agg(
            F.count("*").alias("operations"),
            *counts,
            *failed,
            F.percentile_approx(answered, [0.5, 0.99], 10_000).alias("p"),
        )
        .select(
            F.col("window.start").alias("window"),
            "purgatory",
            "type",
            "operations",
            *OUTCOMES,
            (F.col("expired_failed") / F.col("operations")).alias("expiry_share"),
            F.col("p")[0].alias("p50_ms"),
            F.col("p")[1].alias("p99_ms"),
            (F.col("expired_failed") + F.col("cancelled_failed")).alias("failed"),
        )
    )


def start(
    spark: SparkSession,
    journal: str,
    out: str | None,
    checkpoint: str | None,
    *,
    window_s: int = 10,
    delay_s: int = 5,
    once: bool = False,
    allow_gaps: bool = False,
) -> StreamingQuery:
    """Start the query. A folder gets each window once it is complete, the console gets it as it changes.

    Raises:
        OutputTaken: the output belongs to another checkpoint.
    """
    if out is not None:
        places.check_output(spark, out, "parquet", f"{checkpoint}/metadata")
    spark.dataSource.register(PurgatoryDataSource)
    where = "url" if journal.startswith(("http://", "https://")) else "path"
    source = spark.readStream.format("purgatory").option(where, journal).option("allowGaps", str(allow_gaps)).load()
    writer = windows(source, window_s, delay_s).writeStream.queryName("monitor")
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if out is None:
        writer = writer.outputMode("update").format("console").option("truncate", "false")
    else:
        writer = writer.outputMode("append").format("parquet").option("path", out)
    trigger = {"availableNow": True} if once else {"processingTime": "2 seconds"}
    return writer.trigger(**trigger).start()
