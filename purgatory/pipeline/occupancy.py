"""How many operations were parked, over time: sums of +1 and -1, never a join of intervals.

Each operation is an arrival and a departure. Summed by slot, a running sum over *slots* gives the level at
each slot's end, and the time-weighted mean follows from the same sums: in a slot that ends at E, an arrival
at t adds E - t, a departure takes E - t away, and what was there at the start adds the whole slot. ::

    slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9:   area = 2*10 + (10-4) - (10-9) =
    25, mean 2.5

Slots in which nothing happened have no row; they are filled in between with the level before them. So the
area under the curve is exactly the sum of all waits, which is checked. (The exact peak: `exact`.)
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_MAX_FILL: Final = 1_000_000


def occupancy(slots: DataFrame, width_us: int) -> DataFrame:
    """Per purgatory and slot: the level at its end (`close`), its time-weighted mean, arrivals and departures."""
    width = F.lit(width_us).cast("long")
    net = F.col("arrived") - F.col("left")
    sums = slots.groupBy("purgatory", "slot_us").agg(
        *(F.sum(name).alias(name) for name in ("arrived", "left", "moved_us"))
    )
    in_order = Window.partitionBy("purgatory").orderBy("slot_us")
    levels = sums.withColumn("close", F.sum(net).over(in_order)).withColumn(
        "area_us", (F.col("close") - net) * width + F.col("moved_us")
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
        F.when(own, F.col("left")).otherwise(0).alias("left"),
        area.cast("long").alias("area_us"),
    )
