"""Tables of Delta and Iceberg as sinks: each batch once, also of two drivers, and with other columns."""

import errno
import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from purgatory.pipeline._spark.delta import DeltaSink
from purgatory.pipeline._spark.iceberg import IcebergSink
from purgatory.pipeline._spark.sinks import FolderSink, sink_of

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = pa.table({"date": [date(2026, 11, 23), date(2026, 11, 24)], "operation": ["a", "b"]})


@pytest.fixture(params=["delta", "iceberg"])
def open_sink(request, tmp_path, monkeypatch):
    """A function that opens a sink of one new table, as each driver does, and one that reads the table's rows."""
    if request.param == "delta":
        place = str(tmp_path / "table")
        return lambda: DeltaSink(place), lambda: DeltaTable(place).to_pyarrow_table()
    monkeypatch.setenv("PYICEBERG_CATALOG__MAIN__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__MAIN__WAREHOUSE", tmp_path.as_uri())
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when it was imported
    load_catalog("main").create_namespace("ops")
    name = "main.ops.answers"
    return lambda: IcebergSink(name), lambda: load_catalog("main").load_table("ops.answers").scan().to_arrow()


def test_last_batch_of_each_stream_is_in_the_table(open_sink):
    """A sink that is opened again knows the number of the last batch. Other streams have their own."""
    open_table, rows = open_sink
    sink = open_table()
    assert sink.last_batch("one") is None
    sink.commit(ROWS, "one", 0)
    assert sink.last_batch("one") == 0
    assert sink.last_batch("two") is None
    sink.commit(ROWS, "two", 7)

    assert (0, 7) == (open_table().last_batch("one"), open_table().last_batch("two"))
    assert 4 == len(rows())


@pytest.mark.parametrize("before", [0, 1])
def test_batch_of_two_drivers_is_written_once(open_sink, before):
    """Both see that the table lacks a batch, or that there is no table. The second commit is rejected."""
    open_table, rows = open_sink
    for number in range(before):
        sink = open_table()
        sink.last_batch("stream")
        sink.commit(ROWS, "stream", number)
    first, second = open_table(), open_table()
    assert first.last_batch("stream") == second.last_batch("stream")
    first.commit(ROWS, "stream", before)
    with pytest.raises(Exception, match="(?i)concurrent|changed|exists"):
        second.commit(ROWS, "stream", before)
    assert (before + 1) * len(ROWS) == len(rows())


def test_batch_that_a_table_has_is_computed_and_not_written(open_sink):
    """A batch that is repeated after a kill is computed for the state of the query, and then dropped."""
    open_table, rows = open_sink
    computed = []
    batch = SimpleNamespace(toArrow=lambda: computed.append(True) or ROWS)
    for number in (0, 1, 1, 0, 2):
        open_table().write(batch, "stream", number)
    assert (5, 3 * len(ROWS)) == (len(computed), len(rows()))


@pytest.fixture
def batch():
    """A batch that writes a file where Spark's writer would, and has a session without a JVM."""

    def parquet(place):
        folder = Path(place.removeprefix("file://")) / "date=2026-11-23"
        folder.mkdir(parents=True)
        pq.write_table(ROWS.drop_columns("date"), folder / f"part-{uuid4()}.parquet")

    write = SimpleNamespace(partitionBy=lambda *names: SimpleNamespace(parquet=parquet))
    return SimpleNamespace(columns=ROWS.column_names, write=write, sparkSession=None)


def test_folder_has_each_batch_once(tmp_path, batch):
    """A second driver, or the same batch after a kill, has no effect. Other streams have batches of the same number."""
    for stream, number in (("one", 0), ("one", 1), ("one", 1), ("two", 1)):
        FolderSink(f"{tmp_path}/out/").write(batch, stream, number)
    assert {"commit=one-0", "commit=one-1", "commit=two-1"} == {path.name for path in (tmp_path / "out").iterdir()}
    assert 3 == len(list((tmp_path / "out").glob("*/*/*.parquet")))
    assert [] == list((tmp_path / "out_uncommitted").iterdir())


def test_folder_that_cannot_be_renamed_is_an_error(tmp_path, batch, monkeypatch):
    """A batch is never lost without an error, whatever stands in its way."""
    (tmp_path / "taken").touch()
    with pytest.raises(OSError, match="taken"):
        FolderSink(str(tmp_path / "taken")).write(batch, "one", 0)

    def rename(*_):
        raise OSError(errno.ENOSPC, "no space is left")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no space is left"):
        FolderSink(str(tmp_path / "out")).write(batch, "one", 0)


def test_table_keeps_its_columns_when_batches_have_more_or_fewer(open_sink):
    """A new column is null in older rows, and a column that a batch lacks is null in its rows."""
    open_table, rows = open_sink
    sink = open_table()
    more = ROWS.append_column("type", pa.array(["Fetch", "Fetch"]))
    for number, batch in enumerate((ROWS, more, ROWS)):
        sink.last_batch("stream")
        sink.commit(batch, "stream", number)
    assert {"date", "operation", "type"} == set(rows().column_names)
    assert ["Fetch", "Fetch"] == rows()["type"].drop_null().to_pylist()
    assert 6 == len(rows())


def test_column_of_another_type_is_rejected(open_sink):
    """Nothing of the batch is written."""
    open_table, rows = open_sink
    sink = open_table()
    sink.last_batch("stream")
    sink.commit(ROWS, "stream", 0)
    sink.last_batch("stream")
    with pytest.raises(Exception, match="(?i)type|cast|change"):
        sink.commit(ROWS.set_column(1, "operation", pa.array([[1], [2]])), "stream", 1)
    assert len(ROWS) == len(rows())


def test_each_format_has_its_sink():
    """The name of the format chooses the sink."""
    assert FolderSink("out") == sink_of("parquet", "out")
    assert DeltaSink("out") == sink_of("delta", "out")
    assert IcebergSink("a.b.c") == sink_of("iceberg", "a.b.c")
