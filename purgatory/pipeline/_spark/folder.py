"""Batches as Parquet files in a folder or a store: one folder per batch, which any tool can read by its path.

For example::

    var/answers/commit=5f0c...-7/date=2026-11-23/part-00000-...parquet

Spark writes a batch aside, beside the output. Then the batch's folder is renamed to its name, at once and only if there
is none. So a reader sees a batch whole or not at all, and the second of two drivers has no effect.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs

from purgatory.pipeline._spark.names import is_folder
from purgatory.pipeline._spark.outputs import file_system, hadoop_path
from purgatory.pipeline._spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.define
class FolderSink(Sink):
    """A folder of Parquet files, partitioned by commit, and by ``date`` if there is such a column."""

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
