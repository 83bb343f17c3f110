"""A stream's answers as a table that is not Spark's own: exactly once, by whatever library commits to it.

Spark repeats a batch that was interrupted, under the same number. Each batch is one transaction of the table, with the
stream and the batch's number in it. A number that the table has already is not written again. ::

    batch 7   ->  transaction (stream, 7): rows of batch 7
    killed, started again
    batch 7   ->  the table has (stream, 7): nothing is written
    batch 8   ->  transaction (stream, 8): rows of batch 8

Two drivers of one checkpoint may come to the same batch together. Both find that the table lacks it. The library must
then reject the second commit.

A stream is named by the id that Spark gives its query. The id is in the checkpoint, so it survives restarts.

A batch passes through the driver's memory on its way. Through Spark Connect, that is a process beside the server.

**Schemas.** A table keeps the columns that it has. A batch with a column that the table lacks adds it: older rows have
null there. A column that a batch lacks is null in its rows. A column of another type is an error. So a newer release
continues a table of an older one, and the other way around.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs

from purgatory.pipeline._spark.places import text_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen
class Compaction:
    """The result of a compaction: files before and after it, and how many old files were deleted."""

    before: int
    after: int
    deleted: int

    def __str__(self) -> str:
        return f"{self.before:,} files before, {self.after:,} after; {self.deleted:,} old files deleted"


@attrs.define
class TableSink(ABC):
    """A table to which batches are appended, each once."""

    table: str

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def last_batch(self, stream: str) -> int | None:
        """The number of the last batch that a stream has written. None if there is none."""

    @abstractmethod
    def commit(self, rows: pa.Table, stream: str, number: int) -> None:
        """Append rows and note the batch's number, both or neither, unless the table has changed meanwhile."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the latest version. Spark reads the Parquet files, so that it needs no jar."""


@attrs.define
class BatchWriter:
    """Writes a query's batches to a sink: for ``foreachBatch``."""

    sink: TableSink
    checkpoint: str
    _stream: str = attrs.field(default="", init=False)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch, unless the table has it."""
        rows = batch.toArrow()  # also of a batch that the table has: this is what commits the state of the query
        if not self._stream:  # Spark writes this file before the first batch
            self._stream = str(json.loads(text_of(batch.sparkSession, f"{self.checkpoint}/metadata"))["id"])
        last = self.sink.last_batch(self._stream)
        if last is None or last < number:
            self.sink.commit(rows, self._stream, number)


def sink_of(form: str, table: str) -> TableSink:
    """The sink of a format: ``delta`` (extra ``[delta]``) or ``iceberg`` (extra ``[iceberg]``)."""
    if form == "delta":
        from purgatory.pipeline._spark.delta import DeltaSink

        return DeltaSink(table)
    from purgatory.pipeline._spark.iceberg import IcebergSink

    return IcebergSink(table)
