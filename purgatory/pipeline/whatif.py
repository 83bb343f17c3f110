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

from purgatory.journal.records import TRACE
from purgatory.pipeline.pages.plan import plan
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.summaries import recorded
from purgatory.pipeline.summaries.choices import Grid, choose
from purgatory.pipeline.summaries.idle import purges
from purgatory.pipeline.summaries.output import written
from purgatory.pipeline.summaries.recorded import shards_sql
from purgatory.pipeline.summaries.wheels import wheels
from purgatory.pipeline.tables import queries

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from purgatory.pipeline.tables.engine import Engine


def waits_of_trace(good: DataFrame) -> DataFrame:
    """What every operation needed: `wait_us` is null where its needs were never met.

    Args:
        good: rows that can be true (`replay.judge`).
    """
    from pyspark.sql import functions as F

    from purgatory.pipeline.replay import needs

    waited = (F.col("ready") - F.col("arrival")).alias("wait_us")
    return needs(good).select("purgatory", "type", "arrival", "delay_ms", waited, "names")


def uses_of_trace(waits: DataFrame) -> DataFrame:
    """Each operation's wait under each of its keys, under the timeouts in use."""
    from pyspark.sql import functions as F

    from purgatory.pipeline.rows.validity import LONGEST_MS

    limit = F.least(F.greatest("delay_ms", F.lit(0)), F.lit(LONGEST_MS)) * 1000
    left = F.col("arrival") + F.least(F.coalesce("wait_us", limit), limit)
    key = F.explode("names").alias("key")
    return waits.select("purgatory", key, F.col("arrival").alias("from_us"), left.alias("to_us"))


def timeouts(waits: DataFrame, grid: Grid) -> DataFrame:
    """For each timeout of each type, exactly: who would expire, how long they would wait, how many would be parked.

    All that matters of a wait is which of the timeouts it outlasts. So the operations are summed up by that
    first, and it is these few sums that meet the timeouts.
    """
    from pyspark.sql import functions as F

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


def shards(keys: DataFrame, grid: Grid) -> DataFrame:
    """For each purgatory and number of shards: the busiest one's share of the watches, and the busiest key's."""
    keys.createOrReplaceTempView("uses")
    return keys.sparkSession.sql(shards_sql(grid, "pmod(xxhash64(key), 2147483647)"))


def whatif(
    spark: SparkSession | None,
    out: str,
    grid: Grid,
    *,
    trace: str | None = None,
    journal: str | None = None,
    allow_gaps: bool = False,
    between: Between = ALL,
    normal: Collection[str] = (),
) -> Path:
    """Write a table for each question, the choice as JSON, and a page; gives the page's path.

    Args:
        spark: a session; a journal is read in this process where there is none.
        out: the folder to write to.
        grid: the settings to try.
        trace: where a trace is, for exact answers.
        journal: where a journal is, for estimates.
        allow_gaps: go on where rows are missing.
        between: the range of time that is read.
        normal: types whose operations end by their deadline or a cancel as a rule: no timeout is advised for them.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if trace is not None:
        assert spark is not None
        results, missing = _of_trace(spark, trace, grid, allow_gaps=allow_gaps, between=between)
    else:
        assert journal is not None
        results, missing = _of_journal(spark, journal, grid, allow_gaps=allow_gaps, between=between)
    found = {name: written(folder / "tables" / name, table) for name, table in results.items()}
    chosen = choose({**found, "timeouts": [row for row in found["timeouts"] if row["type"] not in normal]}, grid)
    told_as = [attrs.asdict(each) for each in chosen]
    (folder / "choice.json").write_text(json.dumps(told_as, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "index.html"
    without = sorted({row["type"] for row in found["timeouts"]} & set(normal))
    text = plan(found, chosen, exact=trace is not None, missing=missing, without=without)
    path.write_text(text, encoding="utf-8")
    return path


def _of_trace(
    spark: SparkSession, trace: str, grid: Grid, *, allow_gaps: bool, between: Between
) -> tuple[dict[str, pa.Table], list[str]]:
    from purgatory.pipeline.replay import judge
    from purgatory.pipeline.rows.completeness import load_whole

    rows, missing = load_whole(spark, trace, TRACE, allow_gaps=allow_gaps, between=between)
    waits = waits_of_trace(judge(rows).rows).cache()
    found = {"timeouts": timeouts(waits, grid).toArrow(), **_settings(waits, uses_of_trace(waits), grid)}
    waits.unpersist()
    return found, missing


def _of_journal(
    spark: SparkSession | None, journal: str, grid: Grid, *, allow_gaps: bool, between: Between
) -> tuple[dict[str, pa.Table], list[str]]:
    engine: Engine
    if spark is None:
        from purgatory.pipeline.tables.local import Local

        engine = Local([journal], between)
    else:
        from purgatory.pipeline.tables.cluster import Cluster

        engine = Cluster(spark, [journal], between)
    try:
        unread = engine.open(allow_gaps=allow_gaps)
        missing = [*unread.damaged, *map(str, unread.gaps)]
        if spark is None:
            return recorded.results(engine, grid), missing
        estimate = recorded.timeouts(engine.query(queries.waits()), grid)
        waits = spark.sql(f"select created_us as arrival, delay_ms, {_WAITED} as wait_us from records")
        uses = spark.sql("select purgatory, key, created_us as from_us, finished_us as to_us from watches")
        return {"timeouts": estimate, **_settings(waits, uses.where("key is not null"), grid)}, missing
    finally:
        engine.close()


_WAITED = "case when outcome in ('immediate', 'satisfied') then wait_us end"


def _settings(waits: DataFrame, uses: DataFrame, grid: Grid) -> dict[str, pa.Table]:
    return {
        "wheels": wheels(waits, grid.ticks_ms, grid.wheel_sizes).toArrow(),
        "purges": purges(uses, sorted(set(grid.purge_intervals))).toArrow(),
        "shards": shards(uses, grid).toArrow(),
    }
