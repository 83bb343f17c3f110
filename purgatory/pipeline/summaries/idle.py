"""What another `purge_interval` would have done: which keys would have been forgotten, and made anew.

A key that nobody waits under is remembered for a while, as it may be wanted again. How long is a question of how many
others fall idle after it: beyond a limit (`purge_interval`, or as many as there are keys in use), the one that has been
idle longest is forgotten. So no history needs to be played through. A key that falls idle and is wanted again has been
forgotten in between just if the limit's number of others, or more, fell idle meanwhile::

    limit 2     a idle . b idle . a wanted       one other fell idle: a is remembered
                a idle . b idle . c idle . a     two others did: a is forgotten, and made anew

One search in the instants at which keys fell idle answers that for every such spell and every limit. (The library
looks at a key that is in use again before it comes to the next, so it forgets a little later than this says.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from purgatory.pipeline.walks.kernels import Numbers

NEVER: Final = 2**62
_SUMS: Final = (
    "purgatory string, purge_interval long, keys long, in_use double, parked long, made long, anew long, "
    "anew_share double, idle_at_most long"
)


def spells(uses: DataFrame) -> DataFrame:
    """Each time that nobody waits under a key: since when, until when (null: to the end), and its first use.

    Args:
        uses: an operation's wait under a key: `purgatory`, `key`, `from_us`, `to_us`.
    """
    key = Window.partitionBy("purgatory", "key")
    order = key.orderBy("from_us")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = uses.select(
        "purgatory",
        F.max("to_us").over(so_far).alias("idle_us"),
        F.lead("from_us").over(order).alias("again_us"),
        F.min("from_us").over(key).alias("first_us"),
    )
    return ends.where("again_us is null or again_us >= idle_us")


def forgetting(idle: Numbers, again: Numbers, limit: int) -> tuple[int, int]:
    """Of these spells, after how many the key had to be made anew, and how many keys were idle at most.

    Args:
        idle: since when nobody waits.
        again: until when; `NEVER` for good.
        limit: so many keys may be idle.
    """
    noted = np.sort(idle)
    others = np.searchsorted(noted, again, side="left") - np.searchsorted(noted, idle, side="right")
    forgotten = others >= limit
    ends = np.concatenate([idle, again[again < NEVER]])
    order = np.argsort(ends, kind="stable")
    level = np.cumsum(np.where(order < len(idle), 1, -1))
    return int(np.count_nonzero(forgotten & (again < NEVER))), min(limit, int(level.max(initial=0)))


def purges(uses: DataFrame, intervals: Sequence[int]) -> DataFrame:
    """For each purgatory and purge interval: how many keys are made, and made anew after they had been forgotten."""
    counts = uses.groupBy("purgatory").agg(F.count("*").alias("parked"), F.countDistinct("key").alias("keys"))
    joined = spells(uses).join(F.broadcast(counts), "purgatory")
    return (
        joined.groupBy("purgatory")
        .applyInPandas(_trying(tuple(intervals)), _SUMS)
        .orderBy("purgatory", "purge_interval")
    )


def _trying(intervals: tuple[int, ...]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def try_them(found: pd.DataFrame) -> pd.DataFrame:
        idle = found["idle_us"].to_numpy(np.int64)
        again = found["again_us"].fillna(NEVER).to_numpy(np.int64)
        first, last = found["first_us"].to_numpy(np.int64), again == NEVER
        busy = int((idle - first)[last].sum()) - int((again - idle)[~last].sum())
        in_use = busy / max(1, int(idle.max() - first.min()))
        keys, parked = int(found["keys"].iloc[0]), int(found["parked"].iloc[0])
        rows: list[dict[str, Any]] = []
        for interval in intervals:
            anew, most = forgetting(idle, again, max(interval, round(in_use)) if interval else 0)
            row = {"purgatory": found["purgatory"].iloc[0], "purge_interval": interval, "keys": keys, "in_use": in_use}
            row |= {"parked": parked, "made": keys + anew, "anew": anew, "anew_share": anew / parked}
            rows.append({**row, "idle_at_most": most})
        return pd.DataFrame(rows)

    return try_them
