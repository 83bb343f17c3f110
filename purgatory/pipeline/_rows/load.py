"""A folder as a DataFrame: sealed Parquet through Spark's own reader, the rest through Arrow.

The JVM reads sealed segments. The driver reads the open ones (one or two) and adds their rows, without those that a
sealed segment already has. So a report of a journal works while it is written.

``completeness`` checks whether all rows are there.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records.folder import check_kind
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._spark.names import for_spark, is_folder, is_table
from purgatory.pipeline._spark.places import frame_of
from purgatory.pipeline._spark.session import STRICT

if TYPE_CHECKING:
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
