"""Which timeout would do: survival analysis, because a timeout hides what it cut off.

An operation that expired at 500 ms says only that it needed *more* than 500 ms. Leaving it out makes waits
look shorter than they are; counting it as 500 ms too. The Kaplan-Meier estimate uses exactly what it says:
at each wait t, of those still waiting (`at_risk`), the share that was answered at t leaves; those that
expired, were cancelled or forced leave without having been answered, and from then on are in nobody's
denominator. ::

    S(t) = product over waits w <= t of (1 - answered(w) / at_risk(w))      share that needs more than t

S(t) is the share that would expire under a timeout of t. Beyond the longest timeout that anybody was
given the journal knows nothing: a target that isn't reached by then gets no number, but the survival at the
end of what is known.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

TARGETS: Final = (0.1, 0.05, 0.01, 0.001)
_LEAST: Final = 1e-12


def survival(rows: DataFrame) -> DataFrame:
    """S(t) for each purgatory and type at every wait that occurred, in whole milliseconds (rounded up)."""
    wait = F.ceil(F.greatest(F.col("wait_us"), F.lit(0)) / 1000).alias("wait_ms")
    return curve(rows.select("purgatory", "type", wait, "outcome", F.lit(1).alias("operations")))


def curve(left: DataFrame) -> DataFrame:
    """The curve of each purgatory and type from counts of those that left, by wait and outcome."""
    by = ("purgatory", "type")
    answered = F.when(F.col("outcome").isin("immediate", "satisfied"), F.col("operations")).otherwise(0)
    counted = left.groupBy(*by, "wait_ms").agg(F.sum(answered).alias("answered"), F.sum("operations").alias("left"))
    in_order = Window.partitionBy(*by).orderBy("wait_ms")
    upto = in_order.rowsBetween(Window.unboundedPreceding, 0)
    step = F.greatest(1 - F.col("answered") / F.col("at_risk"), F.lit(_LEAST))
    # Those at risk are all less those before: a sum over the rows that follow would be done anew for each row.
    whole = F.sum("left").over(Window.partitionBy(*by))
    return (
        counted.withColumn("at_risk", whole - F.sum("left").over(upto) + F.col("left"))
        .withColumn("survival", F.exp(F.sum(F.log(step)).over(upto)))
        .withColumn("survival", F.when(F.col("survival") < _LEAST * 10, 0.0).otherwise(F.col("survival")))
        .withColumn("answered_share", F.sum("answered").over(upto) / whole)
    )


def advice(curve: DataFrame) -> DataFrame:
    """For each purgatory, type and target: the shortest timeout whose expiry share stays at or below the target.

    `timeout_ms` is null where the waits observed don't reach that far; `known_to_ms` and `survival_there`
    say how far they do.
    """
    targets = F.explode(F.array(*(F.lit(t) for t in TARGETS))).alias("target")
    by = ("purgatory", "type")
    return (
        curve.select("*", targets)
        .groupBy(*by, "target")
        .agg(
            F.min(F.when(F.col("survival") <= F.col("target"), F.col("wait_ms"))).alias("timeout_ms"),
            F.max("wait_ms").alias("known_to_ms"),
            F.min("survival").alias("survival_there"),
            F.sum("left").alias("operations"),
        )
        .withColumn("identified", F.col("timeout_ms").isNotNull())
    )
