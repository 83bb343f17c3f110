"""`purgatory pipeline replay`: the batch twin. The same answers from a whole trace at once, in SQL.

When does a key's level first reach what an operation needs? Put the key's events and the watches on it in
one order, by level from the highest down, events first among equals. Then for each watch the events before
it in that order are just those that reach its level, and the earliest of their instants is a running
minimum::

    key orders-3, by level:   event 9 @ 70   event 7 @ 40   watch 7   event 5 @ 20   watch 4
    running minimum of @:          70             40           40          20          20

Where a key was forgotten in between, not every event counts for every watch. `forgotten_keys` handles those few keys.

No state, no time, no loop: one sort by key. It is the yardstick for the stream, and, because what an
operation *needed* has nothing to do with the timeout that it had, it is also where what-if starts from.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import Window
from pyspark.sql import functions as F

from purgatory.journal.records import OPERATION
from purgatory.pipeline.rows.forgotten_keys import first_since, forgotten_keys
from purgatory.pipeline.rows.load import with_purgatory
from purgatory.pipeline.rows.reused_names import Judged, judge_names
from purgatory.pipeline.rows.validity import LONGEST_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judge(trace: DataFrame, keep_us: int | None = None) -> Judged:
    """A trace's rows told apart from those that can't be true (`reused_names`); looks at the trace at once.

    Args:
        trace: the rows.
        keep_us: how long a key keeps its level after the latest row that named it; None for ever.
    """
    trace = with_purgatory(trace)
    forgotten = forgotten_keys(trace, keep_us)
    return attrs.evolve(judge_names(trace, partial(answered, forgotten=forgotten)), forgotten=forgotten)


def needs(good: DataFrame, forgotten: DataFrame | None = None) -> DataFrame:
    """Each operation, and the instant at which all its needs were there (null: never).

    Spark leaves out columns that are not selected. So `type` and `names` (of the keys) cost nothing where unused.

    Args:
        good: rows that can be true (`judge`).
        forgotten: of the keys that were forgotten (`judge`).
    """
    parked = F.col("kind") == OPERATION
    # Both kinds from one scan, as one narrow row for each key: an event is what counts no keys.
    rows = good.select(
        F.when(parked, F.size("keys")).otherwise(0).alias("count"),
        F.unix_micros("ts").alias("at"),
        "purgatory",
        F.when(parked, F.col("operation")).alias("operation"),
        F.when(parked, F.col("delay_ms")).alias("delay_ms"),
        F.when(parked, F.coalesce("type", F.lit(""))).alias("type"),
        F.explode(F.arrays_zip("keys", "levels")).alias("pair"),
    ).select(
        F.col("pair.keys").alias("key"),
        F.col("pair.levels").alias("level"),
        *("purgatory", "count", "at", "operation", "delay_ms", "type"),
    )
    if forgotten is None:
        reached = _first(rows)
    else:
        marked = rows.join(forgotten, ["purgatory", "key"], "left").select(*rows.columns, "starts")
        since = first_since(marked.where("starts is not null"))
        reached = _first(marked.where("starts is null").drop("starts")).unionByName(since)
    missing = F.count_if(F.col("first").isNull())
    return (
        reached.where(F.col("count") > 0)
        # An operation's keys are rarely in one partition, so summing up before the shuffle would gain nothing, and cost
        # a hash table of all there are: a fifth of the time.
        .repartition("operation")
        # A row delivered twice is one operation: its doubles are alike. A name used again, later, is another.
        .groupBy("purgatory", "operation", F.col("at").alias("arrival"))
        .agg(
            F.min("delay_ms").alias("delay_ms"),
            F.min("type").alias("type"),
            F.max("count").alias("keys"),
            F.max("first").alias("latest"),
            missing.alias("missing"),
            F.collect_set("key").alias("names"),
        )
        .select(
            *("purgatory", "operation", "type", "arrival", "delay_ms", "keys", "names"),
            F.when(F.col("missing") == 0, F.greatest("latest", "arrival")).alias("ready"),
        )
    )


def _first(rows: DataFrame) -> DataFrame:
    """The rows of keys that were never forgotten, with the instant at which their level was first reached."""
    # Spark sorts by the first eight bytes of the first column, and compares rows whole where these are alike. A hash
    # parts nearly all, a purgatory's name none: a tenth of the stage.
    rows = rows.withColumn("hash", F.xxhash64("purgatory", "key"))
    downward = Window.partitionBy("hash", "purgatory", "key").orderBy(F.desc("level"), "count")
    event_at = F.when(F.col("count") == 0, F.col("at"))
    upto = downward.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.withColumn("first", F.min(event_at).over(upto)).drop("hash")


def replay(trace: DataFrame, keep_us: int | None = None) -> DataFrame:
    """Each operation's outcome and when it was finished."""
    found = judge(trace, keep_us)
    return answered(found.rows, found.forgotten)


def answered(good: DataFrame, forgotten: DataFrame | None = None) -> DataFrame:
    """The same from rows that can be true (`judge`), and the forgotten of keys that were forgotten."""
    delay_ms = F.least(F.greatest(F.col("delay_ms"), F.lit(0)), F.lit(LONGEST_MS))
    deadline = F.col("arrival") + delay_ms * 1000
    ready = F.col("ready")
    outcome = F.when(ready <= F.col("arrival"), "immediate").when(ready < deadline, "satisfied").otherwise("expired")
    return (
        needs(good, forgotten)
        .withColumn("outcome", outcome)
        .withColumn("finished_us", F.when(F.col("outcome") == "expired", deadline).otherwise(ready))
        .select(
            *("purgatory", "operation", "outcome"),
            F.timestamp_micros("arrival").alias("created"),
            F.timestamp_micros("finished_us").alias("finished"),
            (F.col("finished_us") - F.col("arrival")).alias("waited_us"),
            "delay_ms",
            "keys",
        )
    )
