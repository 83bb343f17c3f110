"""Look at places with Spark's own readers: a disk, HDFS, an object store, a catalog.

So they are the same in a classic session and through Spark Connect, where the server looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.pipeline._spark.errors import OutputTaken, PlaceMissing, reporting
from purgatory.pipeline._spark.names import is_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def check_output(spark: SparkSession, out: str, form: str) -> None:
    """Reject a folder with files of another format, or with the log of Spark's own sink, as earlier versions wrote it.

    Raises:
        OutputTaken: the output is one of these.
        PlaceUnusable: this session cannot look there.
    """
    is_delta = exists(spark, f"{out}/_delta_log")
    is_other = is_delta != (form == "delta") and exists(spark, out) and bool(files(spark, out) or is_delta)
    if is_other or exists(spark, f"{out}/_spark_metadata"):
        raise OutputTaken(out)


def exists(spark: SparkSession, place: str) -> bool:
    """Whether there is a file, a folder or a table.

    Raises:
        PlaceUnusable: this session cannot look there.
    """
    try:
        files(spark, place)
    except PlaceMissing:
        return False
    return True


def files(spark: SparkSession, place: str) -> list[str]:
    """The files in a folder, as Spark lists them: without those whose names are hidden.

    Raises:
        PlaceMissing: there is no such place.
        PlaceUnusable: this session cannot look there.
    """
    with reporting(place):
        if is_table(place):
            _ = spark.table(place).schema
            return []
        rows: DataFrame = spark.read.format("binaryFile").load(place)
        return list(rows.inputFiles())


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Some rows as a relation of Spark's. Without rows, an Arrow table has no chunk, and Spark wants one."""
    return spark.createDataFrame(rows if len(rows) else [], from_arrow_schema(rows.schema))
