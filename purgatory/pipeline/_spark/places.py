"""Folders wherever Spark reads and writes: a disk, HDFS, an object store. Hadoop answers, as for Spark itself.

`writable` finds out before the work whether a place can be written: it makes the folder, and a file in it.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from purgatory.pipeline._spark.errors import NoConnect, OutputTaken, PlaceMissing, PlaceUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


LOGS: Final = {"parquet": "_spark_metadata", "delta": "_delta_log"}
"""The formats of an output, and what each writes beside its files."""


def classic(spark: SparkSession, what: str) -> None:
    """Reject a session of Spark Connect.

    Raises:
        NoConnect: it is one.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise NoConnect(what)


def check_output(spark: SparkSession, out: str, form: str, begun: str) -> None:
    """Reject an output of the other format, and Parquet files that another checkpoint wrote.

    Spark numbers the batches of each checkpoint from 0. Its Parquet sink skips the numbers that the output has already,
    so their rows would be lost. Several streams may write to one Delta table.

    Args:
        spark: the session.
        out: the output.
        form: its format.
        begun: a file that the query's checkpoint has if the query was started before.

    Raises:
        OutputTaken: the output is one of these.
    """
    mine = {"delta"} if form == "delta" else {"parquet"} if exists(spark, begun) else set()
    for each, log in LOGS.items():
        if each not in mine and exists(spark, f"{out}/{log}"):
            raise OutputTaken(out, each)


def readable(spark: SparkSession, place: str) -> None:
    """Check that the place exists.

    Raises:
        PlaceMissing: there is nothing.
        PlaceUnusable: this session can't look.
    """
    with _reached(place):
        if not exists(spark, place):
            raise PlaceMissing(place)


def writable(spark: SparkSession, place: str) -> None:
    """Create a folder if it is missing, and check that it can be written.

    Raises:
        PlaceUnusable: it can't.
    """
    with _reached(place):
        system, folder = _at(spark, place)
        if not system.mkdirs(folder):
            raise PlaceUnusable(place, "the folder cannot be created")
        probe = _path(spark, f"{place}/.writable-{uuid4().hex}")
        system.create(probe).close()
        system.delete(probe, False)


def qualified(spark: SparkSession, place: str) -> str:
    """A place by its full address, as its file system spells it. Unchanged if the session does not know that system."""
    try:
        system, path = _at(spark, place)
        return str(system.makeQualified(path).toString())
    except Py4JJavaError:
        return place


def exists(spark: SparkSession, place: str) -> bool:
    """Whether there is a file or folder."""
    system, path = _at(spark, place)
    return bool(system.exists(path))


def read(spark: SparkSession, place: str) -> str | None:
    """A small file's text, or None if there is no file."""
    system, path = _at(spark, place)
    if not system.exists(path):
        return None
    with closing(system.open(path)) as stream:
        return bytes(stream.readAllBytes()).decode()


def write(spark: SparkSession, place: str, text: str) -> None:
    """A small file, in place whole or not at all."""
    system, path = _at(spark, place)
    aside = _path(spark, f"{place}.{uuid4().hex}.tmp")
    with closing(system.create(aside)) as stream:
        stream.write(bytearray(text.encode()))
    if not system.rename(aside, path):
        system.delete(aside, False)
        raise PlaceUnusable(place, "it exists already")


def put(spark: SparkSession, local: Path, place: str) -> None:
    """Copy a file or folder of this machine, and replace the target.

    Raises:
        PlaceUnusable: it can't be written.
    """
    with _reached(place):
        system, path = _at(spark, place)
        if local.is_dir():
            system.delete(path, True)
        system.copyFromLocalFile(False, True, _path(spark, local.absolute().as_uri()), path)


def get(spark: SparkSession, place: str, local: Path) -> None:
    """Copy a file or folder to this machine, if there is one.

    Raises:
        PlaceUnusable: it can't be read.
    """
    with _reached(place):
        system, path = _at(spark, place)
        if system.exists(path):
            local.parent.mkdir(parents=True, exist_ok=True)
            system.copyToLocalFile(False, path, _path(spark, local.absolute().as_uri()), True)


def _path(spark: SparkSession, place: str) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001  # Hadoop's file systems are the JVM's alone
    return jvm.org.apache.hadoop.fs.Path(place)


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    path = _path(spark, place)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path  # noqa: SLF001


@contextmanager
def _reached(place: str) -> Iterator[None]:
    """Report an error of Hadoop's in one line."""
    try:
        yield
    except Py4JJavaError as error:
        raise PlaceUnusable(place, str(error.java_exception.toString()).splitlines()[0]) from None
