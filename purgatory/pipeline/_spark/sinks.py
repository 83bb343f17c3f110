"""Sinks of a query's batches: each batch is written once, whatever library or file system commits it.

Spark repeats a batch that was interrupted, under the same number. Each batch is committed as a whole, with the stream
and the batch's number. A number that the table has already is not written again. ::

    batch 7   ->  commit (stream, 7): rows of batch 7
    killed, started again
    batch 7   ->  the table has (stream, 7): nothing is written
    batch 8   ->  commit (stream, 8): rows of batch 8

Two drivers of one checkpoint may come to the same batch together. Both find that the table lacks it. The second commit
must then be rejected, or have no effect.

A stream is named by the id that Spark gives its query. The id is in the checkpoint, so it survives restarts.

Answers and rows set aside are two tables, so that each row of the first is an operation. A batch is committed to the
first table, then to the second. A driver that is killed in between repeats the batch, and finds it in the first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import attrs
from pyspark.sql import functions as F

from purgatory.pipeline._spark.outputs import file_system, hadoop_path
from purgatory.pipeline._spark.places import is_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: The columns of a stream's answers, and of the rows that it sets aside.
ANSWERS: Final = (
    *("purgatory", "type", "operation", "outcome", "created", "finished", "waited_us", "delay_ms", "keys"),
    *("ended_well", "ingested", "batch", "date"),
)
ASIDE: Final = ("part", "purgatory", "operation", "created", "reason", "detail", "ingested", "batch", "date")


@attrs.define
class Sink(ABC):
    """A table to which batches are appended, each once."""

    table: str

    @abstractmethod
    def write(self, rows: DataFrame, stream: str, number: int) -> None:
        """Append the rows of a batch, unless the table has them. The rows are computed in any case."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the latest version. Spark reads the Parquet files, so that it needs no jar."""


class TableSink(Sink):
    """A table of a library that commits Arrow tables. A batch passes through the driver's memory on its way.

    Through Spark Connect, that is a process beside the server.

    **Schemas.** A table keeps the columns that it has. A batch with a column that the table lacks adds it: older rows
    have null there. A column that a batch lacks is null in its rows. A column of another type is an error. So a newer
    release continues a table of an older one, and the other way around.
    """

    def write(self, rows: DataFrame, stream: str, number: int) -> None:
        table = rows.toArrow()
        last = self.last_batch(stream)
        if last is None or last < number:
            self.commit(table, stream, number)

    @abstractmethod
    def last_batch(self, stream: str) -> int | None:
        """The number of the last batch that a stream has written. None if there is none."""

    @abstractmethod
    def commit(self, rows: pa.Table, stream: str, number: int) -> None:
        """Append rows and note the batch's number, both or neither, unless the table has changed meanwhile."""


@attrs.define
class FolderSink(Sink):
    """Parquet files in a folder or a store: one folder per batch, which any tool can read by its path.

    The files of a batch are partitioned by ``date`` if there is such a column::

        var/answers/commit=5f0c...-7/date=2026-11-23/part-00000-...parquet

    Spark writes a batch aside, beside the output. Then the batch's folder is renamed to its name, at once and only if
    there is none. So a reader sees a batch whole or not at all, and the second of two drivers has no effect.
    """

    def write(self, rows: DataFrame, stream: str, number: int) -> None:
        out = self.table.rstrip("/")
        base = f"file://{Path(out).absolute()}" if is_folder(out) else out
        aside = (
            f"{base}_uncommitted/_{uuid4().hex}"  # the underscore hides it from readers, should it be moved into one
        )
        rows.write.partitionBy(*[name for name in rows.columns if name == "date"]).parquet(aside)
        _rename(rows.sparkSession, aside, f"{base}/commit={stream}-{number}")

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.option("mergeSchema", "true").parquet(self.table)


def _rename(spark: SparkSession, source: str, target: str) -> None:
    """Rename a folder, or delete it if the target exists."""
    if source.startswith("file:/"):
        source, target = source.removeprefix("file://"), target.removeprefix("file://")
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(source, target)  # noqa: PTH104  # fails if the target exists and is not empty
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            shutil.rmtree(source)
        return
    system = file_system(spark, target)
    here, there = hadoop_path(spark, source), hadoop_path(spark, target)
    system.mkdirs(there.getParent())
    if system.exists(there):
        system.delete(here, True)
    elif not system.rename(here, there):
        raise OSError(f"{source} could not be renamed to {target}")


@attrs.frozen
class Part:
    """The rows and columns of a batch that go to one sink."""

    sink: Sink
    condition: str = "true"
    columns: Sequence[str] = ("*",)


@attrs.define
class BatchWriter:
    """Writes a query's batches to sinks: for ``foreachBatch``."""

    parts: Sequence[Part]
    checkpoint: str
    _stream: str = attrs.field(default="", init=False)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch, unless the tables have it."""
        if not self._stream:  # Spark writes this file before the first batch
            metadata = batch.sparkSession.read.text(f"{self.checkpoint}/metadata", wholetext=True)
            self._stream = str(json.loads(metadata.collect()[0][0])["id"])
        # Computed once, by the first write, also if its table has the batch: this commits the state of the query.
        rows = batch.withColumn("batch", F.lit(number).cast("long")).persist()
        try:
            for place, part in enumerate(self.parts):
                some = rows.where(part.condition).select(*part.columns)
                if place == 0 or not some.isEmpty():
                    part.sink.write(some, self._stream, number)
        finally:
            rows.unpersist()


def writer_of(form: str, out: str, checkpoint: str) -> BatchWriter:
    """The writer of a stream's answers and rows set aside."""
    answers, aside = sink_of(form, out), sink_of(form, aside_of(out))
    return BatchWriter([Part(answers, "part = 'done'", ANSWERS), Part(aside, "part <> 'done'", ASIDE)], checkpoint)


def aside_of(out: str) -> str:
    """The table beside the answers, of the rows that were set aside."""
    return f"{out.rstrip('/')}_aside"


def sink_of(form: str, table: str) -> Sink:
    """The sink of a format: ``parquet``, ``delta`` (extra ``[delta]``) or ``iceberg`` (extra ``[iceberg]``)."""
    if form == "delta":
        from purgatory.pipeline._spark.delta import DeltaSink

        return DeltaSink(table)
    if form == "iceberg":
        from purgatory.pipeline._spark.iceberg import IcebergSink

        return IcebergSink(table)
    return FolderSink(table)
