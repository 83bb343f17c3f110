"""The report's tables of outcomes and of keys, from the walk's summaries (`walk`, `kernels`).

Outcomes are few and counted on the driver. Of keys there may be any number, so they stay with Spark, in rows
of which several may be about the same key; what is kept of them is small again.

`wasted` are the checks that didn't complete an operation. One that was satisfied needed one good check; one
that expired, none of its checks was good.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory.journal.records import OUTCOMES
from purgatory.pipeline.grouped import dated
from purgatory.pipeline.kernels import GOOD

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from purgatory.pipeline.findings import Row

LATENCY: Final = pa.schema(
    [
        *(("window_us", pa.int64()), ("purgatory", pa.string()), ("type", pa.string()), ("answered", pa.int64())),
        *(("p50_ms", pa.float64()), ("p90_ms", pa.float64()), ("p99_ms", pa.float64()), ("p999_ms", pa.float64())),
        ("max_ms", pa.float64()),
    ]
)
PEAKS: Final = pa.schema([("purgatory", pa.string()), ("peak", pa.int64()), ("at_us", pa.int64())])
_ORDER: Final = ("purgatory", "type", "window_us", "slot_us", "wait_ms", "target", "rank")
_GROUP: Final = ("window_us", "purgatory", "type")


def outcomes(counts: pa.Table) -> pa.Table:
    """Per window, purgatory and type: operations by outcome, expiry share, checks and the wasted ones, errors."""
    outcome, operations = counts.column("outcome"), counts.column("operations")
    watches, nothing = counts.column("watches"), pa.scalar(0, pa.int64())
    good = pc.is_in(outcome, value_set=pa.array(GOOD))
    # What completed operations leave behind under keys that nobody checked: the purge's work.
    spared = pc.is_in(outcome, value_set=pa.array(["immediate", "cancelled"]))
    one = pc.if_else(pc.equal(outcome, "satisfied"), operations, nothing)
    parts = {
        "operations": operations,
        **{name: pc.if_else(pc.equal(outcome, name), operations, nothing) for name in OUTCOMES},
        "checks": counts.column("checks"),
        "wasted_checks": pc.subtract(counts.column("checks"), pc.if_else(good, operations, nothing)),
        "errors": counts.column("errors"),
        "waited_us": counts.column("waited_us"),
        "delay_ms": counts.column("delay_ms"),
        "purge_debt": pc.if_else(spared, nothing, pc.subtract(watches, one)),
    }
    how = [(name, "max" if name == "delay_ms" else "sum") for name in parts]
    table = pa.table({**{name: counts.column(name) for name in _GROUP}, **parts})
    found = table.group_by(_GROUP, use_threads=False).aggregate(how).rename_columns([*_GROUP, *parts])
    share = pc.divide(found.column("expired").cast(pa.float64()), found.column("operations"))
    return dated(found.append_column("expiry_share", share), "window")


def hot_keys(keys: DataFrame, top: int = 20, expiry_normal: Collection[str] = ()) -> DataFrame:
    """The most used keys of each purgatory, exactly, with their share and how much of it expired or was wasted.

    Expiries of the types `expiry_normal` aren't counted as such.
    """
    failed = F.col("expired_us").isNotNull() & ~F.col("type").isin(*expiry_normal)
    counts = (
        keys.where(F.col("key").isNotNull())
        .groupBy("purgatory", "key")
        .agg(
            F.sum("operations").alias("operations"),
            F.sum(F.when(failed, F.col("operations")).otherwise(0)).alias("expired"),
            F.sum("wasted_checks").alias("wasted_checks"),
        )
    )
    whole = Window.partitionBy("purgatory")
    ranked = counts.select(
        "*",
        F.row_number().over(whole.orderBy(F.desc("operations"), "key")).alias("rank"),
        (F.col("operations") / F.sum("operations").over(whole)).alias("share"),
        F.count("*").over(whole).alias("keys"),
    )
    return ranked.where(F.col("rank") <= top).withColumn("skew", F.col("share") * F.col("keys"))


def expiries(keys: DataFrame, top: int = 12) -> DataFrame:
    """Where and when operations expired: counts by window, for the keys of each type that expire most."""
    counts = (
        keys.where(F.col("expired_us").isNotNull())
        .groupBy("purgatory", "type", "key", F.col("expired_us").alias("window_us"))
        .agg(F.sum("operations").alias("expired"))
    )
    by_key = Window.partitionBy("purgatory", "type", "key")
    ranked = counts.withColumn("of_key", F.sum("expired").over(by_key))
    order = Window.partitionBy("purgatory", "type").orderBy(F.desc("of_key"), "key")
    return (
        ranked.withColumn("rank", F.dense_rank().over(order))
        .where(F.col("rank") <= top)
        .withColumn("window", F.timestamp_micros("window_us"))
    )


def written(folder: Path, table: pa.Table) -> list[Row]:
    """The table as Parquet, and its rows for the page."""
    order = [(name, "ascending") for name in _ORDER if name in table.column_names]
    table = table.sort_by(order) if order else table
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet", compression="zstd")
    rows: list[Row] = table.to_pylist()
    return rows
