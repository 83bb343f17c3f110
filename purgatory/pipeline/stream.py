"""``purgatory pipeline stream``: the purgatory as one streaming query, exactly once.

    trace rows -> malformed rows set apart -> one row per key, packed by bucket -> stage 1, by bucket of the key
    -> stage 2, by bucket of the operation -> Parquet, Delta, Iceberg or a table of Spark's catalog

It uses event time, Append mode and two chained stateful stages. The output is two tables, both partitioned by ``date``
(of the answer, in UTC): every operation once, and beside it (``_aside``) the late and malformed rows, with the reason.
``ended_well`` of an answer is whether the operation was answered, or expired although its type calls that a normal end.

The stages do not get the watermark column. Spark would drop late rows before the stages without a trace, and the query
reports them.

A batch has a fixed cost of about a second, plus the cost of its rows. So the query is for more operations than one
machine holds, not for answers within milliseconds. Use the embedded purgatory for those.

``answers_of`` connects other sources and sinks: it turns any streaming DataFrame with a trace's columns into answers.
It asks Spark nothing, so it may stand inside a declarative pipeline. ``apply_settings`` sets the session while such a
query is started::

    with apply_settings(spark, settings):
        query = answers_of(rows, settings).writeStream.outputMode("append")....start()

Buckets, partitions and ``keep_ms`` must not change while a checkpoint exists. The state has them, and a stage that
finds others in it fails. ``check_checkpoint`` finds out before the start.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from purgatory.journal.records import KEEP_KEYS_MS, TRACE
from purgatory.pipeline._rows.load import spark_schema
from purgatory.pipeline._rows.validity import TRACE_PROBLEM
from purgatory.pipeline._spark.errors import PlaceMissing, reporting
from purgatory.pipeline._spark.outputs import check_writable
from purgatory.pipeline._spark.places import check_output, exists, for_spark, is_table
from purgatory.pipeline._spark.queries import until_ended
from purgatory.pipeline._spark.session import ROCKSDB, STREAMING, STRICT, importable
from purgatory.pipeline._spark.sinks import ANSWERS, ASIDE, aside_of, sink_of, writer_of
from purgatory.pipeline._state.checkpoint_state import Fixed, check_settings, read_status
from purgatory.pipeline._state.processors import ANSWER, BETWEEN, PARKED, KeyStage, OperationStage
from purgatory.pipeline._state.wire import PACKED, row_packer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: The name under which a query's progress (``observedMetrics``) has the counts of a batch: ``answered``, ``late``,
#: ``malformed``, and by how many more or fewer are ``parked``.
METRICS: Final = "purgatory"

FORMATS: Final = ("parquet", "delta", "iceberg")
_at_least_one: Final = attrs.validators.ge(1)


@attrs.frozen(kw_only=True)
class StreamSettings:
    """How to run the query. Buckets, partitions and ``keep_ms`` are fixed by the checkpoint once it exists.

    The options of the command are parsed under the same names.
    """

    delay_ms: int = 5_000  # how late a row may be, by its own instant, behind the latest one seen
    buckets: int = attrs.field(default=16, validator=attrs.validators.in_([2**n for n in range(17)]))
    partitions: int = attrs.field(default=4, validator=_at_least_one)  # tasks of each stage
    keep_ms: int | None = KEEP_KEYS_MS  # how long a key keeps its level after a row has named it; None: forever
    files_per_batch: int = attrs.field(default=1_000, validator=_at_least_one)
    bytes_per_batch: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least_one))
    files_out: int = attrs.field(default=1, validator=_at_least_one)  # most files per batch and part
    trigger_s: float = 0.0  # minimum interval between the starts of batches
    format: str = attrs.field(default="parquet", validator=attrs.validators.in_(FORMATS))  # of the answers
    once: bool = False

    @property
    def fixed(self) -> Fixed:
        """What the state of a query fixes."""
        return Fixed(self.buckets, None if self.keep_ms is None else self.keep_ms * 1000)


def check_checkpoint(spark: SparkSession, checkpoint: str, settings: StreamSettings) -> None:
    """Compare the settings with those of the state in a checkpoint, if there is one.

    Raises:
        CheckpointDiffers: it was started with other settings, or by another version.
        PlaceUnusable: it cannot be read.
    """
    check_settings(spark, checkpoint, settings.fixed, min(settings.partitions, settings.buckets))


_GIVEN: Final = ("seq", "kind", "purgatory", "type", "operation", "keys", "delay_ms", "levels", "normal_ends")
_COUNTED: Final = {"done": "answered", "late": "late", "malformed": "malformed"}


def answers_of(rows: DataFrame, settings: StreamSettings) -> DataFrame:
    """The query, from a streaming DataFrame of trace rows to answers.

    Args:
        rows: from any source, with a trace's columns (``spark_schema(TRACE)``). Other columns are left out. ``seq`` may
            be null, because it is only shown.
        settings: buckets and ``keep_ms`` must not change while the query's checkpoint exists.

    Returns:
        Answers (``part`` is ``done``), and rows set aside (``late`` or ``malformed``).
    """
    timed = (
        rows.to(spark_schema(TRACE))  # a column that another program's trace lacks is null
        .withColumn("purgatory", F.coalesce("purgatory", F.lit("")))  # the one without a name
        .withColumn("reason", F.expr(TRACE_PROBLEM))
        # A malformed row must not move time: one dated far ahead would make every other row late.
        .withColumn("time", F.when(F.col("reason").isNull(), F.col("ts")))
        .withWatermark("time", f"{settings.delay_ms} milliseconds")
    )
    # A flush row has done its work with that. It can't be filtered out here: a filter would be pushed to before
    # the watermark.
    detail = F.to_json(F.struct("seq", "kind", "purgatory", "type", "operation", "keys", "ts", "delay_ms", "levels"))
    given = timed.select(
        *_GIVEN,
        *("reason", F.unix_micros("ts").alias("us")),
        F.when(F.col("reason").isNotNull(), detail).alias("detail"),
    )
    # Before each function that asks for the columns of its input, ``to`` says what they are. A schema as text would be
    # parsed by the server, which a declarative pipeline forbids.
    columns = StructType([spark_schema(TRACE)[name] for name in _GIVEN])
    columns = columns.add("reason", "string").add("us", "long").add("detail", "string")
    packed = given.to(columns).mapInArrow(row_packer(settings.buckets), from_arrow_schema(PACKED))
    between = packed.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=KeyStage(settings.fixed),
        outputStructType=from_arrow_schema(BETWEEN),
        outputMode="Append",
        timeMode="EventTime",
        eventTimeColumnName="at",
    )
    answered = (
        between.to(from_arrow_schema(BETWEEN))
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=OperationStage(settings.fixed),
            outputStructType=from_arrow_schema(ANSWER),
            outputMode="Append",
            timeMode="EventTime",
        )
    )
    counts = [F.count_if(F.col("part") == part).alias(name) for part, name in _COUNTED.items()]
    parked = F.sum(F.when(F.col("part") == PARKED, F.col("created_us")).otherwise(0)).alias("parked")
    instants = [F.timestamp_micros(f"{name}_us").alias(name) for name in ("created", "finished")]
    waited = (F.col("finished_us") - F.col("created_us")).alias("waited_us")
    observed = answered.observe(METRICS, *counts, parked).where(F.col("part") != PARKED)
    who = [F.col(name) for name in ("part", "purgatory", "type", "operation", "outcome")]
    rest = [F.col(name) for name in ("delay_ms", "keys", "ended_well", "reason", "detail")]
    dated = observed.select(*who, *instants, waited, *rest, F.current_timestamp().alias("ingested"))
    day = F.floor(F.unix_micros(F.coalesce("finished", "ingested")) / 86_400_000_000)
    return dated.withColumns({"date": F.date_from_unix_date(day.cast("int"))})


@contextmanager
def apply_settings(spark: SparkSession, settings: StreamSettings) -> Iterator[None]:
    """Set what a query needs while it is started. The query keeps it, and the session is restored."""
    importable(spark)
    wanted = {"spark.sql.shuffle.partitions": str(min(settings.partitions, settings.buckets))}
    if spark.conf.get("spark.sql.streaming.stateStore.providerClass") != ROCKSDB:
        wanted |= STREAMING
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def start(spark: SparkSession, source: str, out: str, checkpoint: str, settings: StreamSettings) -> StreamingQuery:
    """Start the query over a folder of sealed trace files, or over a table with a trace's columns.

    Raises:
        CheckpointDiffers: the checkpoint was started with other settings.
        OutputTaken: the output holds other files.
        PlaceMissing: there is no such source.
        PlaceUnusable: the output cannot be written, or the checkpoint cannot be read.
    """
    source = for_spark(source)
    if not exists(spark, source):
        raise PlaceMissing(source)
    if settings.format == "iceberg" and not is_table(out):
        raise ValueError(f"--out must be catalog.schema.table with --format iceberg, got {out!r}")
    if settings.format == "parquet":
        check_writable(spark, out)
    if not is_table(out):
        check_output(spark, out, settings.format)
    check_checkpoint(spark, checkpoint, settings)
    most = ("maxFilesPerTrigger", settings.files_per_batch)
    if settings.bytes_per_batch is not None:
        most = ("maxBytesPerTrigger", settings.bytes_per_batch)
    reader = spark.readStream.option(*most)
    if is_table(source):
        rows = reader.table(source)
    else:
        reader = reader.schema(spark_schema(TRACE)).option("pathGlobFilter", "trace-*.parquet").options(**STRICT)
        rows = reader.parquet(source)
    writer = (
        # As many files as are wanted, not one for each task of the last stage.
        answers_of(rows, settings)
        .repartition(settings.files_out)
        .writeStream.queryName("purgatory")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
    )
    every = f"{round(settings.trigger_s * 1000)} milliseconds"
    writer = writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime=every)
    with apply_settings(spark, settings):
        if settings.format == "parquet" and is_table(out):
            query = writer.partitionBy("part", "date").toTable(f"{out}_rows")
            _create_views(spark, out)
            return query
        return writer.foreachBatch(writer_of(settings.format, out, checkpoint)).start()


def _create_views(spark: SparkSession, out: str) -> None:
    """Answers and rows set aside as views of the one table that Spark's own sink writes."""
    for view, condition, columns in ((out, "part = 'done'", ANSWERS), (aside_of(out), "part <> 'done'", ASIDE)):
        names = ", ".join(name for name in columns if name != "batch")
        spark.sql(f"create or replace view {view} as select {names} from {out}_rows where {condition}")


def answers(spark: SparkSession, out: str, form: str = "parquet") -> DataFrame:
    """The answers of a stream so far, or with ``aside_of(out)`` the rows that it set aside.

    Args:
        spark: the session.
        out: the output of the stream.
        form: its format. A Delta table is recognized in any case.

    Raises:
        PlaceMissing: nothing has been written.
        PlaceUnusable: this session cannot read there.
    """
    with reporting(out):
        if form != "iceberg" and is_table(out):
            rows = spark.table(out)
        elif form == "parquet" and exists(spark, f"{out}/_delta_log"):
            rows = sink_of("delta", out).read(spark)
        else:
            rows = sink_of(form, for_spark(out)).read(spark)
        _ = rows.schema  # looks now
    return rows


@attrs.frozen
class Progress:
    """The state of a query after a batch."""

    batch: int
    rows: int  # of this batch, as are the next three
    answered: int
    late: int
    malformed: int
    parked: int  # operations, after this batch
    state_bytes: int
    seconds: float
    watermark: datetime | None  # operations whose deadline is earlier have expired; None: no row has come yet

    @classmethod
    def of(cls, progress: Any, parked: int) -> Progress:
        """From Spark's report of a batch, and the number of operations that were parked before it."""
        row = progress["observedMetrics"].get(METRICS)
        row = {} if row is None else row.asDict()
        if "schema" in row:  # through Spark Connect
            row = dict(zip((field["name"] for field in row["schema"]["fields"]), row["values"], strict=True))
        counts = {name: row.get(name) or 0 for name in (*_COUNTED.values(), "parked")}
        parked += counts.pop("parked")
        state = sum(part["customMetrics"].get("rocksdbSstFileSize", 0) for part in progress["stateOperators"])
        took = progress["durationMs"].get("triggerExecution", 0) / 1000
        watermark = datetime.fromisoformat(progress.get("eventTime", {}).get("watermark", "1970-01-01T00:00:00Z"))
        return cls(
            progress["batchId"],
            sum(source["numInputRows"] for source in progress["sources"]),
            **counts,
            parked=parked,
            state_bytes=state,
            seconds=took,
            watermark=watermark if watermark.timestamp() else None,
        )

    def __str__(self) -> str:
        aside = f"{self.late:,} late, {self.malformed:,} malformed"
        rest = f"{self.parked:,} parked, {self.state_bytes / 1e6:.1f} MB of state files"
        when = "no watermark yet"
        if self.watermark is not None:
            lag_s = (datetime.now(UTC) - self.watermark).total_seconds()
            when = f"watermark {self.watermark:%Y-%m-%dT%H:%M:%S}Z, {lag_s:,.0f} s behind the clock"
        work = f"{self.rows:,} rows, {self.answered:,} answered, {aside}"
        return f"batch {self.batch}: {work}; {rest}; {when}; {self.seconds:.1f} s"


def run(
    spark: SparkSession,
    source: str,
    out: str,
    checkpoint: str,
    settings: StreamSettings,
    *,
    on_progress: Callable[[Progress], object] | None = None,
) -> dict[str, float]:
    """Run until stopped, or, with ``once``, until the input is used up. Return counts.

    Args:
        spark: a session.
        source: a folder of sealed trace files.
        out: the place of the answers.
        checkpoint: the place of the query's progress.
        settings: see the class.
        on_progress: called with each batch's progress.
    """
    started = time.monotonic()
    before = read_status(spark, checkpoint).parked if exists(spark, f"{checkpoint}/metadata") else 0
    rows, batches, parked, last = 0, 0, before, -1
    with closing(until_ended(lambda: start(spark, source, out, checkpoint, settings))) as looks:
        for query in looks:
            for progress in query.recentProgress:
                if progress["batchId"] <= last or "addBatch" not in progress["durationMs"]:
                    continue  # reported already, or a report that there is nothing to do
                last = progress["batchId"]
                each = Progress.of(progress, parked)
                rows, batches, parked = rows + each.rows, batches + 1, each.parked
                if on_progress is not None:
                    on_progress(each)
    return {"rows": rows, "batches": batches, "seconds": time.monotonic() - started}
