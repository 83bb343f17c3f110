"""Inputs and outputs that are tables of a catalog: Spark's own, and one of Iceberg."""

from pathlib import Path

import attrs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline import stream
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._spark.sinks import aside_of
from tests.support import workloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(580), pytest.mark.filterwarnings("ignore")]

SHAPE = {"operations": 60, "events": 120}
DATABASE = "spark_catalog.default"


@pytest.fixture
def trace(tmp_path):
    """The folder of a trace of four files."""
    workloads.place_trace(tmp_path / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **SHAPE), 1, 4)
    return str(tmp_path / "trace")


@pytest.fixture
def dropped(spark):
    """Drop the tables of the test at its end."""
    yield
    views = {row["viewName"] for row in spark.sql(f"show views in {DATABASE}").where("not isTemporary").collect()}
    for table in spark.sql(f"show tables in {DATABASE}").where("not isTemporary").collect():
        kind = "view" if table["tableName"] in views else "table"
        spark.sql(f"drop {kind} {DATABASE}.{table['tableName']}")


def answered(rows):
    found = rows.selectExpr("operation", "outcome", "unix_micros(finished) f").collect()
    assert len(found) == len({row["operation"] for row in found})
    return {row["operation"]: (row["outcome"], row["f"]) for row in found}


def test_report_is_a_set_of_tables(spark, dropped, tmp_path, capsys):
    """Each table has the rows that a folder's file has. The page is a row, and a later report compares with them."""
    workloads.write(tmp_path / "journal", workloads.journal(300, seconds=120), JOURNAL, files=1)
    words = ["report", "--journal", str(tmp_path / "journal"), "--engine", "local", "--quiet", "--out"]
    name = f"{DATABASE}.weekly"
    assert 0 == main([*words, str(tmp_path / "folder")])
    assert 0 == main([*words, name]), capsys.readouterr().err
    for file in (tmp_path / "folder" / "tables").rglob("*.parquet"):
        expected = pq.read_table(file)
        rows = spark.table(f"{name}_{file.parent.name}").toArrow()
        assert sorted(map(str, expected.to_pylist())) == sorted(map(str, rows.to_pylist()))
    (page,) = spark.table(f"{name}_files").where("name = 'index.html'").collect()
    assert page["content"].startswith("<!")
    assert 0 == main([*words, str(tmp_path / "next"), "--against", name]), capsys.readouterr().err
    assert "What has changed" in (tmp_path / "next" / "index.html").read_text(encoding="utf-8")


def test_schema_that_is_missing_is_reported_before_the_work(spark, tmp_path, capsys):
    """The line names the output."""
    workloads.write(tmp_path / "journal", workloads.journal(50, seconds=60), JOURNAL, files=1)
    out = "spark_catalog.nowhere.report"
    assert 2 == main(["report", "--journal", str(tmp_path / "journal"), "--engine", "local", "--out", out])
    assert f"purgatory pipeline: {out} " in capsys.readouterr().err


def test_stream_and_replay_go_from_table_to_table(spark, dropped, trace, tmp_path, brute, trace_rows, capsys):
    """The answers of a trace in a table are those of its folder, with a column that the table lacks."""
    table = f"{DATABASE}.trace"
    spark.read.parquet(trace).drop("normal_ends").write.saveAsTable(table)
    expected = brute(trace_rows("kafka", **SHAPE))
    out, checkpoint = f"{DATABASE}.answers", str(tmp_path / "checkpoint")
    settings = ["--buckets", "1", "--partitions", "1", "--once", "--quiet"]
    words = ["stream", "--in", table, "--out", out, "--checkpoint", checkpoint, *settings]
    assert 0 == main(words), capsys.readouterr().err
    assert expected == answered(stream.answers(spark, out))
    columns = [row["col_name"] for row in spark.sql(f"describe table {out}_rows").collect()]
    assert ["part", "date"] == columns[columns.index("# col_name") + 1 :]
    assert 0 == stream.answers(spark, aside_of(out)).count()

    assert len(expected) == load(spark, table, TRACE).where("kind = 'operation'").count()
    assert 0 == main(["replay", "--trace", table, "--out", f"{DATABASE}.replay"]), capsys.readouterr().err
    assert expected == answered(spark.table(f"{DATABASE}.replay_answers"))


def test_table_that_is_missing_is_reported(spark, tmp_path, capsys):
    """An input that does not exist is one line."""
    words = ["stream", "--in", f"{DATABASE}.nothing", "--out", "out", "--checkpoint", str(tmp_path / "checkpoint")]
    assert 2 == main(words)
    assert f"purgatory pipeline: {DATABASE}.nothing does not exist\n" == capsys.readouterr().err


def test_batches_of_iceberg_are_written_once_although_the_driver_repeats_them(
    spark, trace, tmp_path, brute, trace_rows, monkeypatch
):
    """A driver killed after the table's commit and before Spark's repeats the batch. The table has it already."""
    monkeypatch.setenv("PYICEBERG_CATALOG__MAIN__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__MAIN__WAREHOUSE", tmp_path.as_uri())
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when it was imported
    load_catalog("main").create_namespace("ops")
    settings = stream.StreamSettings(buckets=1, partitions=1, files_per_batch=1, format="iceberg", once=True)
    places = trace, "main.ops.answers", str(tmp_path / "checkpoint")
    stream.run(spark, *places, settings)
    expected = brute(trace_rows("kafka", **SHAPE))
    assert expected == answered(stream.answers(spark, places[1], "iceberg"))

    before = len(load_catalog("main").load_table("ops.answers").snapshots())
    commits = Path(places[2], "commits")
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    assert 1 <= stream.run(spark, *places, settings)["batches"]
    assert before == len(load_catalog("main").load_table("ops.answers").snapshots())
    assert expected == answered(stream.answers(spark, places[1], "iceberg"))


def test_iceberg_needs_the_name_of_a_table(spark, trace, tmp_path):
    """A folder is not in a catalog."""
    with pytest.raises(ValueError, match=r"--out must be catalog.schema.table with --format iceberg"):
        stream.start(spark, trace, str(tmp_path), str(tmp_path / "c"), stream.StreamSettings(format="iceberg"))
