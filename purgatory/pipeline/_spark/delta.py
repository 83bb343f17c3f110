"""A stream's answers as a Delta table: exactly once, and compacted in place. Needs the extra `[delta]`.

Spark repeats a batch that was interrupted, under the same number. Each batch is one transaction of the table, with the
stream and the batch's number in it. A number that the table has already is not written again. ::

    batch 7   ->  transaction (stream, 7): rows of batch 7
    killed, started again
    batch 7   ->  the table has (stream, 7): nothing is written
    batch 8   ->  transaction (stream, 8): rows of batch 8

A stream is named by the id that Spark gives its query. The id is in the checkpoint, so it survives restarts.

A batch passes through the driver's memory on its way. `deltalake` writes the table without a jar and without a JVM.
"""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from purgatory.pipeline._spark import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def append(table: str, checkpoint: str, batch: DataFrame, number: int) -> None:
    """Write a batch to a table, unless the table has it. For `foreachBatch`, with the first two arguments given."""
    rows = batch.toArrow()  # also of a batch that the table has: this is what commits the state of the query
    metadata = places.read(batch.sparkSession, f"{checkpoint}/metadata")
    assert metadata is not None, "Spark writes this file before the first batch"
    stream = str(json.loads(metadata)["id"])
    written = transaction_version(table, stream)
    if written is not None and written >= number:
        return
    properties = CommitProperties(app_transactions=[Transaction(stream, number)])
    write_deltalake(table, rows, mode="append", partition_by=["part"], commit_properties=properties)


@attrs.frozen
class Compaction:
    """The result of a compaction: files before and after it, and how many old files were deleted."""

    before: int
    after: int
    deleted: int

    def __str__(self) -> str:
        return f"{self.before:,} files before, {self.after:,} after; {self.deleted:,} old files deleted"


def is_table(place: str) -> bool:
    """Whether there is a Delta table at a place."""
    return DeltaTable.is_deltatable(place)


def transaction_version(table: str, stream: str) -> int | None:
    """The number of the last batch that a stream has written to a table. None if there is none."""
    try:
        return DeltaTable(table).transaction_version(stream)
    except TableNotFoundError:
        return None


def read(spark: SparkSession, table: str) -> DataFrame:
    """The rows of a table's latest version. Spark reads its Parquet files, so that no jar is needed."""
    files = DeltaTable(table).file_uris()
    return spark.read.option("basePath", places.qualified(spark, table)).parquet(*files)


def compact(table: str, *, retention: timedelta) -> Compaction:
    """Merge small files, and delete the files that were replaced longer than `retention` ago.

    Until then, these files stay for readers of an older version. May run beside the stream and beside readers: each of
    these is a transaction of its own.
    """
    delta = DeltaTable(table)
    before = len(delta.file_uris())
    delta.optimize.compact()
    deleted = delta.vacuum(
        retention_hours=math.ceil(retention / timedelta(hours=1)), enforce_retention_duration=False, dry_run=False
    )
    return Compaction(before, len(DeltaTable(table).file_uris()), len(deleted))
