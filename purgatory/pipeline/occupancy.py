"""How many operations were parked, over time: sums of +1 and -1, never a join of intervals.

Each operation is an arrival and a departure. Summed by slot, a running sum over *slots* gives the level at
each slot's end, and the time-weighted mean follows from the same sums: in a slot that ends at E, an arrival
at t adds E - t, a departure takes E - t away, and what was there at the start adds the whole slot. ::

    slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9:   area = 2*10 + (10-4) - (10-9) =
    25, mean 2.5

Slots in which nothing happened have no row; they are filled in between with the level before them. So the
area under the curve is exactly the sum of all waits, which is checked.

The exact peak needs the order within a slot, but not within every slot: a slot whose start plus all its
arrivals stays below another slot's start or end can't hold the peak. Only events of the remaining few are
sorted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory.pipeline.tables import slot

_MAX_FILL = 1_000_000


def occupancy(rows: DataFrame, width_us: int) -> DataFrame:
    """Per purgatory and slot: the level at its end (`close`), its time-weighted mean, arrivals and departures."""
    events = _events(rows).withColumn("slot_us", slot(F.col("at"), width_us))
    width = F.lit(width_us).cast("long")
    left = F.col("slot_us") + width - F.col("at")
    sums = events.groupBy("purgatory", "slot_us").agg(
        F.sum("change").alias("net"),
        F.count_if(F.col("change") > 0).alias("arrived"),
        F.sum(F.col("change") * left).alias("moved_us"),
    )
    in_order = Window.partitionBy("purgatory").orderBy("slot_us")
    levels = sums.withColumn("close", F.sum("net").over(in_order)).withColumn(
        "area_us", (F.col("close") - F.col("net")) * width + F.col("moved_us")
    )
    following = F.coalesce(F.lead("slot_us").over(in_order), F.col("slot_us") + width)
    last = F.least(following - width, F.col("slot_us") + width * _MAX_FILL)
    filled = levels.withColumn("upto_us", last).withColumn(
        "filled_us", F.explode(F.sequence("slot_us", "upto_us", width))
    )
    own = F.col("filled_us") == F.col("slot_us")
    area = F.when(own, F.col("area_us")).otherwise(F.col("close") * width)
    return filled.select(
        "purgatory",
        F.timestamp_micros("filled_us").alias("slot"),
        F.col("filled_us").alias("slot_us"),
        "close",
        (area / width).alias("mean"),
        F.when(own, F.col("arrived")).otherwise(0).alias("arrived"),
        F.when(own, F.col("arrived") - F.col("net")).otherwise(0).alias("left"),
        area.cast("long").alias("area_us"),
    )


def peaks(rows: DataFrame, levels: DataFrame, width_us: int) -> DataFrame:
    """The exact peak of each purgatory and the instant at which it was first reached."""
    bounds = levels.select(
        "purgatory",
        "slot_us",
        (F.col("close") - F.col("arrived") + F.col("left")).alias("open"),
        "close",
        "arrived",
    ).withColumn("most", F.col("open") + F.col("arrived"))
    least = F.max(F.greatest("open", "close")).over(Window.partitionBy("purgatory"))
    candidates = bounds.withColumn("least", least).where("most >= least and arrived > 0")
    events = _events(rows).withColumn("slot_us", slot(F.col("at"), width_us))
    # At one instant, those who leave go first: the level between is one that nobody could have seen.
    in_order = Window.partitionBy("purgatory", "slot_us").orderBy("at", "change")
    inside = events.join(
        F.broadcast(candidates.select("purgatory", "slot_us", "open")), ["purgatory", "slot_us"]
    ).withColumn("level", F.col("open") + F.sum("change").over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
    best = inside.groupBy("purgatory").agg(
        F.max(F.struct(F.col("level"), (-F.col("at")).alias("earliest"))).alias("best")
    )
    return best.select(
        "purgatory",
        F.col("best.level").alias("peak"),
        F.timestamp_micros(-F.col("best.earliest")).alias("at"),
        (-F.col("best.earliest")).alias("at_us"),
    )


def _events(rows: DataFrame) -> DataFrame:
    """An arrival and a departure for each operation that was in for any time at all."""
    waited = rows.where(F.col("wait_us") > 0)
    both = F.array(
        F.struct(F.col("created_us").alias("at"), F.lit(1).alias("change")),
        F.struct(F.col("finished_us").alias("at"), F.lit(-1).alias("change")),
    )
    return waited.select("purgatory", F.explode(both).alias("e")).select("purgatory", "e.at", "e.change")
