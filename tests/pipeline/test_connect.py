"""Every command through Spark Connect, at a server of its own: the same results as without Spark."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import attrs
import pyarrow.parquet as pq
import pytest

from purgatory.journal import Journal
from purgatory.journal.records import JOURNAL
from purgatory.pipeline import stream
from purgatory.pipeline._cli import main
from purgatory.pipeline._spark.queries import until_ended
from purgatory.pipeline._spark.session import _REMOTE, session
from purgatory.pipeline.source import PurgatoryDataSource
from tests.support import workloads
from tests.support.connect import connect_client, connect_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(580), pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
SHAPE = {"operations": 100, "events": 200}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server whose Python has the package."""
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with connect_server(tmp_path_factory.mktemp("server"), environment) as address:
        yield address


@pytest.fixture
def remote(server):
    """The server's address, in a process whose functions are those of Spark Connect."""
    with connect_client(server):
        yield server
    _REMOTE.clear()


@pytest.fixture
def trace(tmp_path):
    """The folder of a trace."""
    workloads.place_trace(tmp_path / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **SHAPE), 1, 2)
    return str(tmp_path / "trace")


@pytest.fixture
def journal(tmp_path):
    """The folder of a journal."""
    workloads.write(tmp_path / "journal", workloads.journal(500, seconds=120), JOURNAL, files=2)
    return str(tmp_path / "journal")


def tables(folder):
    return {path.parent.name: pq.read_table(path) for path in sorted(Path(folder, "tables").rglob("*.parquet"))}


@pytest.mark.parametrize("command", ["report", "whatif"])
def test_tables_are_those_of_the_local_engine(remote, journal, tmp_path, capsys, command):
    """A report or a what-if through a server has the same tables, to the last row."""
    for engine, more in (("local", ()), ("spark", ("--remote", remote))):
        words = [command, "--journal", journal, "--out", str(tmp_path / engine), "--engine", engine, *more]
        assert 0 == main(words), capsys.readouterr().err
    expected = tables(tmp_path / "local")
    assert expected.keys() == tables(tmp_path / "spark").keys()
    for name, table in tables(tmp_path / "spark").items():
        assert expected[name].equals(table), name


#: What ``pyspark-client`` lacks. PySpark asks by these whether it is the plain client.
PLAIN = "import sys; sys.modules.update({'py4j': None, 'pyspark.core': None}); "


def test_plain_client_replays_without_java(server, trace, tmp_path):
    """A client without the classic half of PySpark, and without a program in its path, has the server do the work."""
    code = f"{PLAIN}from pyspark.util import is_remote_only; assert is_remote_only(); "
    code += "from purgatory._cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["pipeline", "replay", "--trace", trace, "--out", str(tmp_path / "out"), "--engine", "spark"]
    run = subprocess.run(
        [sys.executable, "-c", code, *words, "--remote", server],
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == run.returncode, run.stderr
    assert SHAPE["operations"] == len(pq.read_table(tmp_path / "out" / "answers"))


def test_open_segments_are_read_through_a_server(remote, tmp_path, capsys):
    """The rows of an open segment travel with the query, also if there is no sealed one."""
    with Journal(tmp_path / "journal") as journal:
        observer = journal.observer("fetch")
        for number in range(20):
            observer.finished(Operation(number), "satisfied", None)
        assert journal.flush()
        words = ["report", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--engine", "spark"]
        assert 0 == main(words), capsys.readouterr().err
    assert 20 == sum(tables(tmp_path / "out")["outcomes"]["operations"].to_pylist())


class Operation:
    def __init__(self, number):
        self.keys, self.created_ns, self.delay_ms, self.checks = (f"k{number % 3}",), 1, 5, number


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_stream_s_answers_are_those_of_the_plainest_reading(remote, trace, tmp_path, brute, trace_rows, capsys, form):
    """Both stages, their timers and the sink work on a server. A second run goes on, and progress has its figures."""
    out, checkpoint = (str(tmp_path / name) for name in ("out", "checkpoint"))
    last = max(Path(trace).iterdir())
    aside = last.rename(tmp_path / last.name)
    words = ["stream", "--in", trace, "--out", out, "--checkpoint", checkpoint, "--once", "--format", form]
    words += ["--buckets", "2", "--partitions", "1", "--remote", remote]
    assert 0 == main(words), capsys.readouterr().err
    aside.rename(last)
    assert 0 == main(words), capsys.readouterr().err
    printed, progress = capsys.readouterr()
    assert " rows, " in progress
    assert " 0 rows in " not in printed
    rows = stream.answers(session("test"), out).selectExpr("operation", "outcome", "unix_micros(finished) f").collect()
    assert len(rows) == len({row["operation"] for row in rows})
    assert brute(trace_rows("kafka", **SHAPE)) == {row["operation"]: (row["outcome"], row["f"]) for row in rows}
    assert 0 == main(["monitor", "--stream", checkpoint])
    assert "0 operations parked" in capsys.readouterr().out


def test_a_replay_is_that_of_the_local_engine(remote, trace, tmp_path, capsys):
    """The same answers, written by the server."""
    for engine in ("local", "spark"):
        words = ["replay", "--trace", trace, "--out", str(tmp_path / engine), "--engine", engine]
        assert 0 == main(words), capsys.readouterr().err
    order = [("operation", "ascending")]
    expected, rows = (pq.read_table(tmp_path / name / "answers").sort_by(order) for name in ("local", "spark"))
    assert expected.to_pylist() == rows.select(expected.column_names).to_pylist()


def test_the_monitor_writes_windows_and_the_console_is_rejected(remote, journal, tmp_path, capsys, monkeypatch):
    """Windows of a journal in this folder come into another. Spark's console is the server's, so it is an error."""
    monkeypatch.chdir(tmp_path)  # the server has another
    words = ["monitor", "--journal", Path(journal).name, "--once"]
    assert 2 == main(words)
    assert "--out must be given through Spark Connect" in capsys.readouterr().err
    out = str(tmp_path / "out")
    assert 0 == main([*words, "--out", out, "--checkpoint", str(tmp_path / "checkpoint")]), capsys.readouterr().err
    assert 0 < session("test").read.parquet(out).count()


def test_the_source_is_read_in_a_batch_and_as_a_stream(remote, journal, tmp_path):
    """`format("purgatory")` gives each record once."""
    spark = session("test")
    spark.dataSource.register(PurgatoryDataSource)
    assert list(range(500)) == sorted(
        row["seq"] for row in spark.read.format("purgatory").load(journal).select("seq").collect()
    )
    rows = spark.readStream.format("purgatory").option("maxRowsPerBatch", 200).load(journal)
    out = str(tmp_path / "out")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    list(until_ended(lambda: writer.trigger(availableNow=True).start(out)))
    assert list(range(500)) == sorted(row["seq"] for row in spark.read.parquet(out).select("seq").collect())


def test_settings_of_the_command_line_are_set_on_the_session(remote, monkeypatch):
    """`--conf` reaches a new session of the server. A setting that only a start can set is one line."""
    code = (
        "import sys; from purgatory.pipeline._spark.session import configure, session;"
        "configure(None, sys.argv[1], ['spark.sql.shuffle.partitions=7']); s = session('x');"
        "print(s.conf.get('spark.sql.shuffle.partitions'), s.conf.get('spark.sql.session.timeZone'))"
    )
    run = subprocess.run([sys.executable, "-c", code, remote], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "7 UTC" == run.stdout.strip()


def test_pages_for_a_store_are_rejected_before_the_work(remote, journal, capsys):
    """Spark Connect copies no file to a store. The line says what to give instead."""
    assert 2 == main(["report", "--journal", journal, "--out", "hdfs://127.0.0.1:1/out", "--engine", "local"])
    assert "give a folder or catalog.schema.name" in capsys.readouterr().err


def test_a_server_without_the_package_is_reported_in_one_line(trace, tmp_path):
    """The line says what to install there, for a command that needs Python at the server."""
    python = tmp_path / "python"  # without `site`, which would follow an editable install's path file to the project
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "server").mkdir()
    bare = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": sysconfig.get_path("purelib")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["stream", "--in", trace, "--out", "out", "--checkpoint", "checkpoint", "--once"]
    with connect_server(tmp_path / "server", bare) as address:
        command = [sys.executable, "-m", "purgatory.pipeline", *words, "--remote", address]
        run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("purgatory pipeline:")]
    assert "install 'delayed-operation-purgatory[spark]' in the Python of its workers" in line
    assert 1 == run.returncode
