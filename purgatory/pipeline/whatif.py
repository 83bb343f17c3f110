"""`purgatory pipeline whatif`: try settings out on what has happened.

What an operation needed has nothing to do with the settings it ran under. So from a trace every other timeout's outcome
follows exactly; from a journal it does up to the timeout in use, and not beyond (see `advice`). Timeouts are tried for
each purgatory's types, the timer's settings for all together, the others by purgatory. Four questions, four ways:

- *timeouts*: expiry share, mean wait, mean parked (waits summed over the span, which is what memory is paid
  for), from the operations summed up by how many of the timeouts they outlast.
- *the wheel*: the levels used and the entries put again, in closed form (`wheels`).
- *purging*: how many keys would be forgotten although they are wanted again, and how many remembered while nobody
  waits under them (`idle`).
- *shards*: the share of the busiest one, against the busiest key's own share, which no number of shards can
  undercut.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline.pages.plan import plan
from purgatory.pipeline.replay import judge, needs
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.rows.completeness import load_whole
from purgatory.pipeline.rows.load import LONGEST_MS, journal_problem
from purgatory.pipeline.summaries import advice
from purgatory.pipeline.summaries.choices import Grid, choose
from purgatory.pipeline.summaries.groups import groups, numbers
from purgatory.pipeline.summaries.idle import purges
from purgatory.pipeline.summaries.output import written
from purgatory.pipeline.summaries.wheels import wheels
from purgatory.pipeline.tables import queries
from purgatory.pipeline.tables.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def waits_of_trace(good: DataFrame) -> DataFrame:
    """What every operation needed: `wait_us` is null where its needs were never met.

    Args:
        good: rows that can be true (`replay.judge`).
    """
    waited = (F.col("ready") - F.col("arrival")).alias("wait_us")
    return needs(good).select("purgatory", "type", "arrival", "delay_ms", waited, "names")


def uses_of_trace(waits: DataFrame) -> DataFrame:
    """Each operation's wait under each of its keys, under the timeouts in use."""
    limit = F.least(F.greatest("delay_ms", F.lit(0)), F.lit(LONGEST_MS)) * 1000
    left = F.col("arrival") + F.least(F.coalesce("wait_us", limit), limit)
    key = F.explode("names").alias("key")
    return waits.select("purgatory", key, F.col("arrival").alias("from_us"), left.alias("to_us"))


def timeouts(waits: DataFrame, grid: Grid) -> DataFrame:
    """For each timeout of each type, exactly: who would expire, how long they would wait, how many would be parked.

    All that matters of a wait is which of the timeouts it outlasts. So the operations are summed up by that
    first, and it is these few sums that meet the timeouts.
    """
    spark = waits.sparkSession
    tried = sorted(set(grid.timeouts_ms))
    configs = spark.createDataFrame(list(enumerate(tried)), "place int, timeout_ms long")
    wait, limit = F.col("wait_us"), F.col("timeout_ms") * 1000
    outlasted = sum((F.when(wait < F.lit(t * 1000), 0).otherwise(1) for t in tried), F.lit(0))
    sums = waits.groupBy("purgatory", "type", outlasted.alias("outlasted")).agg(
        F.count("*").alias("n"),
        F.sum(F.coalesce(wait, F.lit(0))).alias("waited"),
        F.min("arrival").alias("first"),
        F.max("arrival").alias("last"),
    )
    late = F.col("outlasted") > F.col("place")
    spent = F.when(late, F.col("n") * limit).otherwise(F.col("waited"))
    return (
        sums.crossJoin(F.broadcast(configs))
        .groupBy("purgatory", "type", "timeout_ms")
        .agg(
            F.sum("n").alias("operations"),
            F.sum(F.when(late, F.col("n")).otherwise(0)).alias("expired"),
            (F.sum(spent) / F.sum("n") / 1000).alias("mean_wait_ms"),
            (F.sum(spent) / (F.max("last") - F.min("first") + 1)).alias("mean_parked"),
        )
        .withColumn("expiry_share", F.col("expired") / F.col("operations"))
        .orderBy("purgatory", "type", "timeout_ms")
    )


def timeouts_of_journal(waits: pa.Table, grid: Grid) -> pa.Table:
    """The same from a journal's counts of waits (`Walk.waits`): an estimate, and none beyond what was observed."""
    rows = []
    for (purgatory, kind), every in groups(advice.survival(waits), ("purgatory", "type"), "wait_ms"):
        operations, curve = int(numbers(every, "left").sum()), advice.known(every)
        wait_ms, survival = numbers(curve, "wait_ms"), curve.column("survival").to_numpy()
        for timeout in sorted(set(grid.timeouts_ms)):
            upto = int(np.searchsorted(wait_ms, timeout, side="right"))
            known = len(wait_ms) > 0 and int(wait_ms[-1]) >= timeout
            share = (float(survival[upto - 1]) if upto else 1.0) if known else None
            row = {"purgatory": purgatory, "type": kind, "timeout_ms": timeout, "operations": operations}
            rows.append({**row, "expiry_share": share})
    columns = [("purgatory", pa.string()), ("type", pa.string()), ("timeout_ms", pa.int64())]
    columns += [("operations", pa.int64()), ("expiry_share", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema(columns))


def shards(keys: DataFrame, grid: Grid) -> DataFrame:
    """For each purgatory and number of shards: the busiest one's share of the watches, and the busiest key's."""
    spark = keys.sparkSession
    configs = spark.createDataFrame([(n,) for n in grid.shards], "shards long")
    counts = keys.groupBy("purgatory", "key").agg(F.count("*").alias("n"))
    placed = counts.crossJoin(F.broadcast(configs)).withColumn("shard", F.pmod(F.xxhash64("key"), F.col("shards")))
    loads = placed.groupBy("purgatory", "shards", "shard").agg(F.sum("n").alias("n"), F.max("n").alias("key"))
    return (
        loads.groupBy("purgatory", "shards")
        .agg((F.max("n") / F.sum("n")).alias("busiest_shard"), (F.max("key") / F.sum("n")).alias("busiest_key"))
        .orderBy("purgatory", "shards")
    )


def whatif(
    spark: SparkSession,
    out: str,
    grid: Grid,
    *,
    trace: str | None = None,
    journal: str | None = None,
    allow_gaps: bool = False,
    between: Between = ALL,
) -> Path:
    """Write a table for each question, the choice as JSON, and a page; gives the page's path."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if trace is not None:
        rows, missing = load_whole(spark, trace, TRACE, allow_gaps=allow_gaps, between=between)
        good = judge(rows).rows
        waits = waits_of_trace(good).cache()
        by_timeout, exact = timeouts(waits, grid).toArrow(), True
        uses = uses_of_trace(waits)
    else:
        assert journal is not None
        loaded, missing = load_whole(spark, journal, JOURNAL, allow_gaps=allow_gaps, between=between)
        records = loaded.where(journal_problem().isNull())
        arrival = F.unix_micros("created")
        waits = records.select(
            *("purgatory", F.coalesce("type", F.lit("")).alias("type")),
            arrival.alias("arrival"),
            "delay_ms",
            F.when(F.col("outcome").isin("immediate", "satisfied"), F.unix_micros("finished") - arrival).alias(
                "wait_us"
            ),
        ).cache()
        engine = Cluster(spark, [journal], between)
        engine.open(allow_gaps=allow_gaps)
        by_timeout, exact = timeouts_of_journal(engine.query(queries.waits()), grid), False
        engine.close()
        uses = records.select("purgatory", F.explode("keys").alias("key"), arrival.alias("from_us"), _us("finished"))
    results = {
        "timeouts": by_timeout,
        "wheels": wheels(waits, grid.ticks_ms, grid.wheel_sizes).toArrow(),
        "purges": purges(uses, sorted(set(grid.purge_intervals))).toArrow(),
        "shards": shards(uses, grid).toArrow(),
    }
    found = {name: written(folder / "tables" / name, table) for name, table in results.items()}
    waits.unpersist()
    chosen = choose(found, grid)
    told_as = [attrs.asdict(each) for each in chosen]
    (folder / "choice.json").write_text(json.dumps(told_as, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "index.html"
    path.write_text(plan(found, chosen, exact=exact, missing=missing), encoding="utf-8")
    return path


def _us(name: str) -> Column:
    return F.unix_micros(name).alias("to_us")
