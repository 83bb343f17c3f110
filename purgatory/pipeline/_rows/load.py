"""A folder as a DataFrame: sealed Parquet through Spark's own reader, the rest through Arrow.

The JVM reads sealed segments. The driver reads the open ones (one or two) and adds their rows, without those that a
sealed segment already has. So a report of a journal works while it is written.

``runs_of`` gives the sequence numbers that Spark reads, for ``completeness``: one query over all journals, if all of
them are whole. A mask for each 64 sequence numbers says which of them were read::

    rows 64, 65, 67, 67     mask 1101 of word 1: 3 different numbers in 4 rows, from 64 to 67: neither whole nor once

A journal is whole if its rows are as many as their different numbers, and as many as lie between the first number and
the last. Only of other journals, the runs are searched for, in a query of its own.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records.folder import check_kind
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._rows.completeness import Run, runs_in
from purgatory.pipeline._spark.places import for_spark, frame_of, is_folder, is_table
from purgatory.pipeline._spark.session import STRICT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from purgatory.journal.records import Schema


def spark_schema(schema: Schema) -> StructType:
    """The columns of a folder, as Spark sees them."""
    return from_arrow_schema(arrow_schema(schema))


def load(
    spark: SparkSession, folder: str, schema: Schema, *, damaged: list[str] | None = None, between: Between = ALL
) -> DataFrame:
    """Every row of a journal's or trace's folder.

    Args:
        spark: the session.
        folder: where it is. Spark alone reads an address (``s3a://...``) or a table.
        schema: which of the two it holds.
        damaged: if given, segments that cannot be read are noted here and left out.
        between: segments that hold no row of this range of time are left out.

    Raises:
        JournalMissing: there is no segment.
        JournalDamaged: a segment can't be read.
        JournalFormat: the folder holds the other kind, or what a newer program wrote.
    """
    columns = spark_schema(schema)
    reader = spark.read.schema(columns).options(**STRICT)
    if is_table(folder):
        return spark.table(folder).to(columns)
    if not is_folder(folder):  # a store that only Spark reaches: sealed segments alone
        return reader.parquet(folder)
    check_kind(Path(folder), schema)
    whole: list[str] = []
    rest: list[pa.RecordBatch] = []
    between.each(Path(folder), schema, lambda path, _: whole.append(for_spark(str(path))), rest.extend, damaged=damaged)
    frames = [reader.parquet(*whole)] if whole else []
    if rest or not frames:
        frames.append(frame_of(spark, pa.Table.from_batches(rest, arrow_schema(schema))))
    return reduce(DataFrame.unionByName, frames)


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
