"""Outputs of pages and tables: a folder of this machine, a store, or tables of a catalog.

They are small, so they are always written to a local folder. For a store or a catalog that is a temporary folder, which
is copied when it is complete. A job that fails leaves nothing in the place, and the output of an earlier run stays
until then. Whether a place can be written is tested before the work.

In a catalog, ``main.ops.report`` means one table for each table (``main.ops.report_outcomes``), and
``main.ops.report_files`` with the page and the other texts (columns ``name`` and ``content``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline._spark.errors import PlaceUnusable, reporting
from purgatory.pipeline._spark.places import frame_of, inside, is_folder, is_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def output_folder(out: str, command: str) -> Iterator[Path]:
    """A folder to write to, whose files and folders are in ``out`` once the block has ended well.

    Args:
        out: a folder, which is then the one that is given, an address, or a name in a catalog.
        command: the command that writes, and the name of a session for it.

    Raises:
        PlaceUnusable: the folder cannot be made or written, or this session cannot write there.
    """
    if is_folder(out):
        yield _writable(out)
        return
    from purgatory.pipeline._spark.session import session  # pyspark is imported only where it is used

    spark = session(command)
    with tempfile.TemporaryDirectory(prefix="purgatory-out-") as aside:
        check_writable(spark, out)
        yield Path(aside)
        with reporting(out):
            (_save if is_table(out) else _copy)(spark, Path(aside), out)


@contextmanager
def local_copy(place: str | None, names: Sequence[str], command: str) -> Iterator[str | None]:
    """The folder that ``output_folder`` was once given, for reading: itself, or copies of these files and folders."""
    if place is None or is_folder(place):
        yield place
        return
    from purgatory.pipeline._spark.session import session

    spark = session(command)
    with tempfile.TemporaryDirectory(prefix="purgatory-in-") as aside:
        with reporting(place):
            for name in names:
                local = Path(aside) / name
                local.parent.mkdir(parents=True, exist_ok=True)
                if is_table(place):
                    _load(spark, place, local)
                else:
                    source = hadoop_path(spark, inside(place, name))
                    file_system(spark, place).copyToLocalFile(False, source, hadoop_path(spark, local.as_uri()), True)
        yield aside


def check_writable(spark: SparkSession, out: str) -> None:
    """Test whether a place can be written, and make it if it is a folder.

    Raises:
        PlaceUnusable: it cannot be written in this session.
    """
    if is_folder(out):
        _writable(out)
        return
    with reporting(out):
        if is_table(out):
            spark.sql(f"describe schema {out.rpartition('.')[0]}").collect()
        else:
            file_system(spark, out).mkdirs(hadoop_path(spark, out))


def _writable(out: str) -> Path:
    folder = Path(out)
    probe = folder / f".writable-{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise PlaceUnusable(out, error.strerror or str(error)) from None
    return folder


def _copy(spark: SparkSession, folder: Path, out: str) -> None:
    system = file_system(spark, out)
    for each in sorted(folder.iterdir()):
        target = hadoop_path(spark, inside(out, each.name))
        system.delete(target, True)
        system.copyFromLocalFile(hadoop_path(spark, each.as_uri()), target)


def _save(spark: SparkSession, folder: Path, out: str) -> None:
    """The tables below a folder, and its texts, as tables of a catalog."""
    texts = [path for path in sorted(folder.iterdir()) if path.is_file()]
    columns = {"name": [path.name for path in texts], "content": [path.read_text(encoding="utf-8") for path in texts]}
    tables = {path.parent.name: pq.read_table(path) for path in sorted(folder.rglob("*.parquet"))}
    if texts:
        tables["files"] = pa.table(columns)
    for name, table in tables.items():
        frame_of(spark, table).write.mode("overwrite").saveAsTable(inside(out, name))


def _load(spark: SparkSession, out: str, local: Path) -> None:
    if local.suffix:
        texts = spark.table(inside(out, "files")).where(f"name = '{local.name}'").collect()
        for row in texts:
            local.write_text(row["content"], encoding="utf-8")
    else:
        pq.write_table(spark.table(inside(out, local.name)).toArrow(), local)


def hadoop_path(spark: SparkSession, place: str) -> Any:
    """A place as Hadoop's file systems are given it."""
    return spark._jvm.org.apache.hadoop.fs.Path(place)  # type: ignore[union-attr]  # noqa: SLF001


def file_system(spark: SparkSession, place: str) -> Any:
    """The file system of an address. Spark's own writers cannot write a file of a given name.

    Raises:
        PlaceUnusable: the session is one of Spark Connect, which moves no files in a store.
    """
    from purgatory.pipeline._spark.session import is_connect

    if is_connect(spark):
        raise PlaceUnusable(place, "Spark Connect moves no files in a store; give a folder or catalog.schema.name")
    return hadoop_path(spark, place).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
