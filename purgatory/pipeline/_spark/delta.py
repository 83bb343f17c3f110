"""A Delta table, by ``deltalake``: without a jar and without a JVM. Compacted in place. Needs the extra ``[delta]``.

The number of a stream's last batch is a *transaction identifier* of the table's log. ``deltalake`` rejects a commit if
another one has written the same identifier since the table was read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from purgatory.pipeline._spark.errors import PlaceMissing, PlaceUnusable
from purgatory.pipeline._spark.sinks import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.define
class DeltaSink(TableSink):
    """A Delta table at a path or an address."""

    _version: DeltaTable | None = attrs.field(default=None, init=False)

    def last_batch(self, stream: str) -> int | None:
        """The number of the last batch that a stream has written. None if there is none."""
        try:
            self._version = DeltaTable(self.table)
        except TableNotFoundError:
            return None
        return self._version.transaction_version(stream)

    def commit(self, rows: pa.Table, stream: str, number: int) -> None:
        """Append rows and note the batch's number, to the version of the table that ``last_batch`` has read."""
        if self._version is None:  # fails if another driver has created it
            self._version = DeltaTable.create(self.table, rows.schema, mode="error", partition_by=["date"])
        # The merge of schemas alone would turn a column of another type into text.
        pa.unify_schemas([pa.schema(self._version.schema()), rows.schema], promote_options="permissive")
        properties = CommitProperties(app_transactions=[Transaction(stream, number)])
        write_deltalake(self._version, rows, mode="append", schema_mode="merge", commit_properties=properties)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the latest version."""
        table = DeltaTable(self.table) if DeltaTable.is_deltatable(self.table) else None
        if table is None or not (files := table.file_uris()):
            raise PlaceMissing(self.table)
        return spark.read.option("basePath", table.table_uri).option("mergeSchema", "true").parquet(*files)


def compact(place: str, *, retention_s: float) -> str:
    """Merge the small files of a table, and delete the files that were replaced longer than ``retention_s`` ago.

    Until then, these files stay for readers of an older version. May run beside the stream and beside readers: each of
    these is a transaction of its own.

    Returns:
        how many files there were before and after, and how many were deleted.

    Raises:
        PlaceUnusable: it is not a Delta table.
    """
    if not DeltaTable.is_deltatable(place):
        raise PlaceUnusable(place, "it is not a Delta table; run the stream with --format delta")
    table = DeltaTable(place)
    before = len(table.file_uris())
    table.optimize.compact()
    hours = math.ceil(retention_s / 3600)
    deleted = table.vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=False)
    after = len(DeltaTable(place).file_uris())
    return f"{before:,} files before, {after:,} after; {len(deleted):,} old files deleted"
