"""Which rows of a trace are operations of their own, where names are used more than once.

An operation is known by its purgatory and a name, as long as it is open (`records`). A second row with that name is
the same row once more, or comes after the answer and is another operation, or it can't be true::

    op-1 arrives at 10, is answered at 40
    op-1 again, at 10, with the same needs     delivered twice: one operation
    op-1 again, at 25                          set aside: the name of an operation that is open
    op-1 again, at 40 or later                 another operation

Which of these it is depends on when the first was answered, so the rows in question are answered first, each by
itself as if it had a name of its own, and then gone through in order, name by name. They are few, or none: one pass
over the trace, by a hash of the name, finds the names for which there are rows that differ.

Rejected: taking the first row of a name and dropping the rest (which is first depends on how they are delivered), and
deciding it in the pass that answers all operations (a sort of everything, for what hardly ever happens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pandas as pd
from pyspark.sql import functions as F

from purgatory.journal.records import EVENT, FLUSH, OPERATION
from purgatory.pipeline.rows.load import trace_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

IN_USE: Final = "the name of an operation that is still open"


@attrs.frozen
class Judged:
    """A trace's rows told apart: those to be answered, and those that can't be true, with the reason."""

    rows: DataFrame
    malformed: DataFrame
    forgotten: DataFrame | None = None  # of the keys that were forgotten, if any may have been


def judge_names(trace: DataFrame, answer: Callable[[DataFrame], DataFrame]) -> Judged:
    """Set aside what can't be true: rows that are malformed by themselves, and those that use a name that is in use.

    Looks at the whole trace at once.

    Args:
        trace: the rows.
        answer: gives operations without shared names their `finished`, as `replay` does.
    """
    judged = trace.withColumn("reason", trace_problem())
    malformed = judged.where("reason is not null")
    good = judged.where((F.col("kind") != FLUSH) & F.col("reason").isNull()).drop("reason")
    operations = good.where(F.col("kind") == OPERATION).select(
        *("seq", "kind", "purgatory", "operation", "type", "keys", "ts", "delay_ms", "levels"),
        F.xxhash64("purgatory", "operation").alias("name"),
        F.xxhash64("ts", "delay_ms", "keys", "levels").alias("print"),
    )
    # A name has one row, as a rule: summing up before the shuffle would gain nothing, and cost a hash table of all.
    named = operations.select("name", "print").repartition("name")
    prints = named.groupBy("name").agg(F.min("print").alias("low"), F.max("print").alias("high"))
    shared = prints.where("low != high").select("name").cache()
    if shared.isEmpty():
        return Judged(good, malformed)
    rows = operations.join(F.broadcast(shared), "name").cache()
    apart = rows.withColumn("operation", F.col("seq").cast("string")).drop("name", "print")
    events = good.where(F.col("kind") == EVENT)
    answers = answer(apart.unionByName(events)).select(
        F.col("operation").cast("long").alias("seq"), F.unix_micros("finished").alias("finished")
    )
    in_question = rows.select("seq", "purgatory", "operation", F.unix_micros("ts").alias("at"), "print")
    refused = (
        in_question.join(answers, "seq")
        .groupBy("purgatory", "operation")
        .applyInPandas(_refused, "seq long")  # a name has a few rows, and what becomes of one depends on the last
        .cache()
    )
    refused.count()
    mark = F.broadcast(refused)
    in_use = good.join(mark, "seq", "left_semi").withColumn("reason", F.lit(IN_USE))
    return Judged(good.join(mark, "seq", "left_anti"), malformed.unionByName(in_use))


def _refused(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one name that came while an operation had it."""
    found = []
    holder = None
    for row in rows.sort_values(["at", "seq"]).itertuples(index=False):
        if holder is not None and (row.at, row.print) == (holder.at, holder.print):
            continue  # the holder's own row once more
        if holder is not None and (row.at == holder.at or row.at < holder.finished):
            found.append(row.seq)
        else:
            holder = row
    return pd.DataFrame({"seq": pd.Series(found, dtype="int64")})
