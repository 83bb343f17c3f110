"""The report's tables, as DataFrames from the walk's summaries (`walk`, `kernels`), in which groups may come twice.

`wasted` are the checks that didn't complete an operation. One that was satisfied needed one good check; one
that expired, none of its checks was good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory.journal.records import OUTCOMES
from purgatory.pipeline.kernels import GOOD

if TYPE_CHECKING:
    from collections.abc import Collection

LATENCY: Final = (
    "window_us long, purgatory string, type string, answered long, p50_ms double, p90_ms double, p99_ms double, "
    "p999_ms double, max_ms double"
)
PEAKS: Final = "purgatory string, peak long, at_us long"


def prepared(journal: DataFrame, window_s: int) -> DataFrame:
    """The journal with what most tables need."""
    created, finished = F.unix_micros("created"), F.unix_micros("finished")
    return journal.select(
        "purgatory",
        F.coalesce("type", F.lit("")).alias("type"),
        "keys",
        "outcome",
        "error",
        "delay_ms",
        "checks",
        created.alias("created_us"),
        finished.alias("finished_us"),
        (finished - created).alias("wait_us"),
        slot(finished, window_s * 1_000_000).alias("window_us"),
    )


def slot(instant: Column, width_us: int) -> Column:
    """The beginning of the slot that an instant lies in."""
    return instant - F.pmod(instant, F.lit(width_us))


def outcomes(counts: DataFrame) -> DataFrame:
    """Per window, purgatory and type: operations by outcome, expiry share, checks and the wasted ones, errors."""
    operations = F.col("operations")
    outcome = F.col("outcome")
    by_outcome = [F.sum(F.when(outcome == name, operations).otherwise(0)).alias(name) for name in OUTCOMES]
    # What completed operations leave behind under keys that nobody checked: the purge's work.
    debt = (
        F.when(outcome.isin("immediate", "cancelled"), 0)
        .when(outcome == "satisfied", F.col("watches") - operations)
        .otherwise(F.col("watches"))
    )
    return (
        counts.groupBy("window_us", "purgatory", "type")
        .agg(
            F.sum(operations).alias("operations"),
            *by_outcome,
            F.sum("checks").alias("checks"),
            F.sum(F.col("checks") - F.when(outcome.isin(*GOOD), operations).otherwise(0)).alias("wasted_checks"),
            F.sum("errors").alias("errors"),
            F.sum("waited_us").alias("waited_us"),
            F.max("delay_ms").alias("delay_ms"),
            F.sum(debt).alias("purge_debt"),
        )
        .withColumn("expiry_share", F.col("expired") / operations)
        .withColumn("window", F.timestamp_micros("window_us"))
    )


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
