"""The sequence numbers that Spark reads, as runs: one query over all journals, if all of them are whole.

A mask for each 64 sequence numbers says which of them were read::

    rows 64, 65, 67, 67     mask 1101 of word 1: 3 different numbers in 4 rows, from 64 to 67: neither whole nor once

A journal is whole if its rows are as many as their different numbers, and as many as lie between the first number and
the last. Only of other journals, the runs are searched for, in a query of its own.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from purgatory.pipeline._rows.completeness import Run, runs_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame


def runs_of(frames: Mapping[str, DataFrame], last: Mapping[str, int]) -> list[Run]:
    """Return the runs of the rows of some journals.

    Args:
        frames: the rows of each journal.
        last: the last sequence number that is expected of each. Rows after it are left out.
    """
    numbered = [rows.selectExpr(f"{place} as journal", "seq") for place, rows in enumerate(frames.values())]
    words = (
        reduce(lambda one, other: one.union(other), numbered)
        .where("seq is not null")
        .groupBy("journal", F.shiftright("seq", 6))
        .agg(
            F.expr("bit_or(shiftleft(1L, cast(seq & 63 as int)))").alias("mask"),
            F.count("*").alias("n"),
            F.min("seq").alias("first"),
            F.max("seq").alias("end"),
        )
    )
    sums = words.groupBy("journal").agg(F.sum(F.bit_count("mask")), F.sum("n"), F.min("first"), F.max("end"))
    runs = []
    for place, different, count, first, end in sums.collect():
        name, rows = list(frames.items())[place]
        ends = [(first, end)]
        if not different == count == end - first + 1:
            ends = rows.select("seq").where("seq is not null").mapInArrow(_runs, "first long, last long").collect()
        upto = last.get(name, -1)
        runs += [Run(name, one, min(other, upto)) for one, other in ends if one <= upto]
    return runs


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    runs = runs_in(batches, "")
    columns = [pa.array((getattr(run, name) for run in runs), pa.int64()) for name in ("first", "last")]
    yield pa.RecordBatch.from_arrays(columns, ["first", "last"])
