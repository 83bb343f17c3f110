"""Places: folders of this machine, addresses in a store, tables of a catalog. How they are named, and what Spark finds.

A word and a colon before a slash begin an address (``s3a://bucket/x``, ``dbfs:/x``). Three words joined by dots name a
table (``main.ops.answers``). Everything else is a folder. ``./a.b.c`` is a folder, too.

Spark's own readers look at a place. So it is the same in a classic session and through Spark Connect, where the server
looks. Local runs need the names alone, so pyspark is imported only where it is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from purgatory.pipeline._spark.errors import OutputTaken, PlaceMissing, reporting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){2}")


def is_table(place: str) -> bool:
    """Whether a place is a table's full name."""
    return _TABLE.fullmatch(place) is not None


def is_folder(place: str) -> bool:
    """Whether a place is a folder of this machine."""
    return not _ADDRESS.match(place) and not is_table(place)


def inside(place: str, name: str) -> str:
    """A folder inside a place. Beside a table, the table with the name at its end."""
    return f"{place}_{name}" if is_table(place) else f"{place.rstrip('/')}/{name}"


def for_spark(place: str) -> str:
    """A place as Spark is given it: a folder that is on this machine by its address, whatever ``fs.defaultFS`` is.

    Spark takes the name as it is, so nothing in it is quoted.
    """
    return f"file://{Path(place).absolute()}" if is_folder(place) and Path(place).exists() else place


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
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(rows if len(rows) else [], from_arrow_schema(rows.schema))
