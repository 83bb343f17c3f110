"""``purgatory pipeline monitor``: windowed outcomes and percentiles over a journal while it is being written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from purgatory.journal.records import OUTCOMES
from purgatory.journal.records.normal import CANCELLED, EXPIRED
from purgatory.pipeline._rows.validity import ANSWERED, JOURNAL_PROBLEM
from purgatory.pipeline._spark.outputs import check_writable
from purgatory.pipeline._spark.places import check_output, is_table
from purgatory.pipeline._spark.queries import until_ended
from purgatory.pipeline._spark.session import is_connect
from purgatory.pipeline._spark.sinks import BatchWriter, FolderSink, Part
from purgatory.pipeline.source import PurgatoryDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_COUNTS: Final = ", ".join(f"count_if(outcome = '{name}') as {name}" for name in OUTCOMES)
_FAILED: Final = ", ".join(
    f"count_if(outcome = '{name}' and not coalesce(contains(normal_ends, outcome), false)) as {name}_failed"
    for name in (EXPIRED, CANCELLED)
)


def windows(journal: DataFrame, window_s: int, delay_s: int) -> DataFrame:
    """Per window, purgatory and type: operations by outcome, median and 99th percentile of the wait, and failures.

    The expiry share is of the operations that expired although their records do not call that a normal end. ``failed``
    counts these, and the cancelled operations whose records do not call that one.
    """
    return journal.sparkSession.sql(
        f"""select window.start as window, purgatory, type, operations, {", ".join(OUTCOMES)},
            expired_failed / operations as expiry_share, p[0] as p50_ms, p[1] as p99_ms,
            expired_failed + cancelled_failed as failed
        from (
            select window(finished, '{window_s} seconds') as window, purgatory, type, count(*) as operations, {_COUNTS},
                {_FAILED}, percentile_approx(case when {ANSWERED}
                    then (unix_micros(finished) - unix_micros(created)) / 1000 end, array(0.5, 0.99), 10000) as p
            from {{journal}} where ({JOURNAL_PROBLEM}) is null
            group by window(finished, '{window_s} seconds'), purgatory, type) as counted""",
        journal=journal.withWatermark("finished", f"{delay_s} seconds"),
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
        OutputTaken: the output holds other files.
        PlaceUnusable: the output cannot be written.
        ValueError: there is no output, through Spark Connect.
    """
    if out is None and is_connect(spark):
        raise ValueError("--out must be given through Spark Connect: Spark's console is on the server")
    if out is not None:
        check_writable(spark, out)
    if out is not None and not is_table(out):
        check_output(spark, out, "parquet")
    spark.dataSource.register(PurgatoryDataSource)
    served = journal.startswith(("http://", "https://"))
    where = ("url", journal) if served else ("path", str(Path(journal).absolute()))  # a server has another folder
    source = spark.readStream.format("purgatory").option(*where).option("allowGaps", str(allow_gaps)).load()
    writer = windows(source, window_s, delay_s).writeStream.queryName("monitor")
    writer = writer.trigger(**({"availableNow": True} if once else {"processingTime": "2 seconds"}))
    if out is None:
        return writer.outputMode("update").format("console").option("truncate", "false").start()
    writer = writer.outputMode("append").option("checkpointLocation", str(checkpoint))
    if is_table(out):
        return writer.toTable(out)
    return writer.foreachBatch(BatchWriter([Part(FolderSink(out))], str(checkpoint))).start()


def run(spark: SparkSession, journal: str, out: str | None, checkpoint: str | None, **settings: Any) -> None:
    """Run until stopped, or, with ``once``, until the journal is used up. See ``start``."""
    with closing(until_ended(lambda: start(spark, journal, out, checkpoint, **settings))) as looks:
        for _ in looks:
            pass
