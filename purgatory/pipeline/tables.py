"""The report's tables, each a DataFrame from the journal's. No Python runs per row.

`wait_us` is how long an operation was in; `wasted` are the checks that didn't complete it. An operation
that was satisfied needed one good check; one that expired, none of its checks was good.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory.journal.records import OUTCOMES

_GOOD: Final = ("immediate", "satisfied")
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)


def prepared(journal: DataFrame, window_s: int) -> DataFrame:
    """The journal with what most tables need."""
    created, finished = F.unix_micros("created"), F.unix_micros("finished")
    good = F.col("outcome").isin(*_GOOD)
    return journal.select(
        "purgatory",
        "type",
        "keys",
        "outcome",
        "error",
        "delay_ms",
        "checks",
        created.alias("created_us"),
        finished.alias("finished_us"),
        (finished - created).alias("wait_us"),
        (F.col("checks") - F.when(good, 1).otherwise(0)).alias("wasted"),
        slot(finished, window_s * 1_000_000).alias("window_us"),
    )


def slot(instant: Column, width_us: int) -> Column:
    """The beginning of the slot that an instant lies in."""
    return instant - F.pmod(instant, F.lit(width_us))


def outcomes(rows: DataFrame) -> DataFrame:
    """Per window, purgatory and type: operations by outcome, expiry share, checks and the wasted ones, errors."""
    counts = [F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES]
    return (
        rows.groupBy("window_us", "purgatory", "type")
        .agg(
            F.count("*").alias("operations"),
            *counts,
            F.sum("checks").alias("checks"),
            F.sum("wasted").alias("wasted_checks"),
            F.count("error").alias("errors"),
            F.sum("wait_us").alias("waited_us"),
            F.max("delay_ms").alias("delay_ms"),
            # What completed operations leave behind under keys that nobody checked: the purge's work.
            F.sum(
                F.when(F.col("outcome") == "immediate", 0)
                .when(F.col("outcome") == "cancelled", 0)
                .when(F.col("outcome") == "satisfied", F.size("keys") - 1)
                .otherwise(F.size("keys"))
            ).alias("purge_debt"),
        )
        .withColumn("expiry_share", F.col("expired") / F.col("operations"))
        .withColumn("window", F.timestamp_micros("window_us"))
    )


def latency(rows: DataFrame) -> DataFrame:
    """Exact percentiles of the wait of answered operations, in milliseconds, per window, purgatory and type."""
    wanted = F.percentile(F.col("wait_us") / 1000, list(PERCENTILES))
    names = ("p50", "p90", "p99", "p999")
    return (
        rows.where(F.col("outcome").isin(*_GOOD))
        .groupBy("window_us", "purgatory", "type")
        .agg(F.count("*").alias("answered"), wanted.alias("p"), (F.max("wait_us") / 1000).alias("max"))
        .select(
            F.timestamp_micros("window_us").alias("window"),
            "window_us",
            "purgatory",
            "type",
            "answered",
            *(F.col("p")[i].alias(f"{name}_ms") for i, name in enumerate(names)),
            F.col("max").alias("max_ms"),
        )
    )


def hot_keys(rows: DataFrame, top: int = 20) -> DataFrame:
    """The most used keys of each purgatory, exactly, with their share and how much of it expired or was wasted."""
    counts = (
        rows.select("purgatory", F.explode("keys").alias("key"), "outcome", "wasted")
        .groupBy("purgatory", "key")
        .agg(
            F.count("*").alias("operations"),
            F.count_if(F.col("outcome") == "expired").alias("expired"),
            F.sum("wasted").alias("wasted_checks"),
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


def expiries(rows: DataFrame, top: int = 12) -> DataFrame:
    """Where and when operations expired: counts by window, for the keys of each type that expire most."""
    counts = (
        rows.where(F.col("outcome") == "expired")
        .select("purgatory", "type", F.explode_outer("keys").alias("key"), "window_us")
        .groupBy("purgatory", "type", "key", "window_us")
        .agg(F.count("*").alias("expired"))
    )
    by_key = Window.partitionBy("purgatory", "type", "key")
    ranked = counts.withColumn("of_key", F.sum("expired").over(by_key))
    order = Window.partitionBy("purgatory", "type").orderBy(F.desc("of_key"), "key")
    return (
        ranked.withColumn("rank", F.dense_rank().over(order))
        .where(F.col("rank") <= top)
        .withColumn("window", F.timestamp_micros("window_us"))
    )
