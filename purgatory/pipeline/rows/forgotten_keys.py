"""Levels that count no longer, for the batch twin: a key that no row has named for long is forgotten (`records`).

A key's rows, in order of their instants, fall into *spells*: within one no two neighbours are further apart than keys
are kept. What an operation may count on is what events have said since its own spell began::

    keys kept for 10    event 5 @ 20   watch @ 27 | watch @ 41   event 3 @ 44 | event 5 @ 60   watch @ 61
    spells begin at     20                        | 41                        | 60
    a watch for 5 is    -              there      | 60           -            | -              there

So of a key's events with a level or more, the first since the watch's spell began is wanted, not the first of all.
A trace that doesn't last as long as keys are kept has no second spell of any key, and most keys of most others haven't
either: those are left to the one sort by which `replay` answers. Of the rest each key is gone through by itself, from
its last event to its first, with a stack of those that no earlier one hides: the lowest level of the next spell on top.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from purgatory.journal.records import FLUSH
from purgatory.pipeline.rows.load import trace_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def forgotten_keys(trace: DataFrame, keep_us: int | None) -> DataFrame | None:
    """The keys that were forgotten at least once, and when they were named again: `purgatory`, `key`, `starts`.

    Looks at the instants of all rows at once; None if the trace is shorter than keys are kept.

    Args:
        trace: every row of it that is in time, also those whose name is in use: they name their keys, too.
        keep_us: how long a key keeps its level after the latest row that named it; None for ever.
    """
    if keep_us is None:
        return None
    good = trace.where(trace_problem().isNull() & (F.col("kind") != FLUSH))
    at = F.unix_micros("ts").alias("at")
    ((lasts,),) = good.select(at).agg(F.max("at") - F.min("at")).collect()
    if lasts is None or lasts <= keep_us:
        return None
    named = good.select("purgatory", F.explode("keys").alias("key"), at)
    before = F.lag("at").over(Window.partitionBy("purgatory", "key").orderBy("at"))
    again = named.withColumn("apart", F.col("at") - before).where(F.col("apart") > keep_us)
    return again.groupBy("purgatory", "key").agg(F.array_sort(F.collect_list("at")).alias("starts"))


def first_since(rows: DataFrame) -> DataFrame:
    """The watches of keys that were forgotten, with `first`, the instant at which what they need was there (or null).

    Args:
        rows: the events of those keys (their `count` is 0), their watches, and `starts` from `forgotten_keys`.
    """
    kept = rows.drop("starts").schema.add("first", "long")
    return rows.groupBy("purgatory", "key").applyInArrow(_first_since, kept)


def _first_since(rows: pa.Table) -> pa.Table:
    """The same of one key."""
    starts = rows.column("starts")[0].as_py()
    rows = rows.drop_columns("starts")
    at, level, count = (rows.column(name).to_numpy() for name in ("at", "level", "count"))
    is_event = count == 0
    came = np.lexsort((level, at))[::-1]
    came = came[is_event[came]]
    spell = np.searchsorted(starts, at, side="right")
    watches = np.flatnonzero(~is_event)
    watches = watches[np.argsort(-spell[watches], kind="stable")]
    first: list[int | None] = [None] * len(watches)
    hidden_below: list[int] = []  # levels, negated to be in order, of the events that no earlier one hides
    instants: list[int] = []
    events: list[tuple[Any, ...]] = list(
        zip(at[came].tolist(), level[came].tolist(), spell[came].tolist(), strict=True)
    )
    place = 0
    wanted = zip(spell[watches].tolist(), level[watches].tolist(), strict=True)
    for number, (since, need) in enumerate(wanted):
        while place < len(events) and events[place][2] >= since:
            instant, reached, _ = events[place]
            place += 1
            while hidden_below and -hidden_below[-1] <= reached:
                hidden_below.pop()
                instants.pop()
            hidden_below.append(-reached)
            instants.append(instant)
        found = bisect_right(hidden_below, -need) - 1
        first[number] = instants[found] if found >= 0 else None
    return rows.take(pa.array(watches)).append_column("first", pa.array(first, pa.int64()))
