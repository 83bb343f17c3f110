"""The stream on Spark: equal to the plainest reading of the rules, a kill notwithstanding."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F

from purgatory.journal import Trace
from purgatory.journal.records import TRACE
from purgatory.pipeline import monitor, stream
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.load import spark_schema
from purgatory.pipeline._spark.errors import OutputTaken, PlaceMissing, PlaceUnusable
from purgatory.pipeline._spark.sinks import aside_of
from purgatory.pipeline._state.checkpoint_state import CheckpointDiffers
from purgatory.pipeline.source import PurgatoryDataSource
from tests.pipeline.test_replay import plainly, worlds, written
from tests.support import workloads
from tests.support.comparison import rehearsed, verify
from tests.support.programs import QUICK_JVM
from tests.support.replays import over, replayed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


def test_rows_without_a_purgatory_are_of_the_one_without_a_name(spark, tmp_path):
    """Null and an empty name are one purgatory, to stream, twin and library: its keys are forgotten, too."""
    start = workloads.START_MS * 1000

    def row(kind, at_s, purgatory, key, operation=None):
        ts = datetime.fromtimestamp(at_s + start / 1e6, tz=UTC)
        given = {"kind": kind, "purgatory": purgatory, "operation": operation, "keys": [key], "ts": ts}
        return {"seq": 0, "delay_ms": 1_000, "levels": [1], "type": "", **given}

    rows = [
        row("event", 0, None, "forgotten"),
        row("event", 80, None, "one for the other"),
        row("operation", 90, "", "one for the other", "found"),
        row("operation", 100, None, "forgotten", "watch"),
        row("operation", 100, "", "forgotten", "watch"),
        row("operation", 100, "", "forgotten", "named"),
    ]
    schema = workloads.trace(attrs.evolve(workloads.WORKLOADS["kafka"], operations=1, events=1)).schema
    table = pa.Table.from_pylist([{**row, "seq": seq} for seq, row in enumerate(rows)], schema)
    workloads.flush_after(tmp_path / "trace", workloads.write(tmp_path / "trace", table, TRACE, files=1))
    workloads.write(tmp_path / "clean", table, TRACE, files=1)
    expected = {("found", "immediate"), ("watch", "expired"), ("named", "expired")}
    twin = [
        {"purgatory": purgatory, "operation": operation, "outcome": outcome}
        for engine in (None, spark)
        for purgatory, operation, outcome, *_ in replayed(over(tmp_path / "clean", engine), 20_000_000)[0]
    ]
    settings = stream.StreamSettings(buckets=2, partitions=2, keep_ms=20_000, once=True)
    out = str(tmp_path / "out")
    stream.run(spark, str(tmp_path / "trace"), out, str(tmp_path / "checkpoint"), settings)
    streamed = stream.answers(spark, out).collect()
    library = rehearsed(spark, tmp_path / "clean", tmp_path / "journal", 20_000).collect()
    for found in (twin[:3], twin[3:], streamed, library):
        assert expected == {(row["operation"], row["outcome"]) for row in found}
        assert (3, {""}) == (len(found), {row["purgatory"] for row in found})


def test_library_stream_and_twin_forget_the_same_keys(spark, tmp_path):
    """Keys forgotten and named again, by operations with a name in use as well: not one differs between the three."""
    found = verify(spark, "forgotten-names", tmp_path / "run", operations=150, files=3)
    assert 0 == found.differences
    assert 0 < found.malformed
    forgetting = workloads.WORKLOADS["forgotten-names"].keep_keys_ms * 1000
    folder = tmp_path / "run" / "clean"
    assert replayed(over(folder)) != replayed(over(folder), forgetting)


@pytest.mark.parametrize("keep_ms", [None, 3])
def test_stream_and_replay_agree_on_random_worlds(spark, tmp_path, keep_ms):
    """The same answers, and the same rows set aside: of a row with a name in use that came twice, one."""
    rows = [{**row, "delay_ms": min(30, row["delay_ms"])} for row in worlds(f"stream-{keep_ms}", 60)]
    written(tmp_path / "trace", rows, files=3)
    expected = replayed(over(tmp_path / "trace"), None if keep_ms is None else keep_ms * 1000)
    assert expected == plainly(rows, None if keep_ms is None else keep_ms * 1000)
    workloads.flush_after(tmp_path / "trace", len(rows))
    settings = stream.StreamSettings(buckets=2, partitions=2, keep_ms=keep_ms, files_per_batch=1, once=True)
    out = str(tmp_path / "out")
    stream.run(spark, str(tmp_path / "trace"), out, str(tmp_path / "checkpoint"), settings)
    columns = ("purgatory", "operation", "outcome", "unix_micros(created)", "unix_micros(finished)")
    found = stream.answers(spark, out).selectExpr(*columns).collect()
    aside = stream.answers(spark, aside_of(out)).where("part = 'malformed'")
    refused = aside.selectExpr("cast(get_json_object(detail, '$.seq') as long)", "reason").collect()
    assert expected == (sorted(map(tuple, found)), sorted(map(tuple, refused)))


def test_library_stream_and_twin_agree_on_the_worst_workload(spark, tmp_path):
    """Disorder, bursts, hot keys, late, doubled and malformed rows: not one operation differs between the three."""
    found = verify(spark, "adversarial", tmp_path / "run", operations=150, files=3)
    assert 0 == found.differences
    assert 100 < found.operations
    assert 0 < found.late
    assert 0 < found.malformed


def test_a_killed_stream_goes_on_exactly_where_it_was(spark, tmp_path, brute, trace_rows):
    """Driver and JVM killed in the middle and started again: every operation once, as if nothing had happened."""
    shape = attrs.evolve(workloads.WORKLOADS["kafka"], operations=300, events=600)
    workloads.place_trace(tmp_path / "trace", shape, 1, 4)
    places = [str(tmp_path / name) for name in ("trace", "out", "checkpoint")]
    program = (
        "import sys; from purgatory.pipeline import stream; from purgatory.pipeline._spark.session import session;"
        "s = session('killed', {'spark.master': 'local[2]', 'spark.sql.shuffle.partitions': '2',"
        f"'spark.ui.enabled': 'false', 'spark.driver.extraJavaOptions': '{QUICK_JVM}',"
        "'spark.sql.codegen.wholeStage': 'false', 'spark.sql.codegen.factoryMode': 'NO_CODEGEN'});"
        "stream.run(s, *sys.argv[1:], stream.StreamSettings(buckets=2, files_per_batch=1, once=True))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, *places],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    commits = tmp_path / "checkpoint" / "commits"
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and child.poll() is None:
        if commits.is_dir() and sum(path.name.isdigit() for path in commits.iterdir()) >= 2:
            break
        time.sleep(0.05)
    done = sum(path.name.isdigit() for path in commits.iterdir())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # the driver and, in its process group, the JVM and the workers
    child.wait()
    assert 2 <= done < 5
    settings = stream.StreamSettings(buckets=2, files_per_batch=1, once=True)
    stream.run(spark, *places, settings)
    rows = stream.answers(spark, places[1]).selectExpr("operation", "outcome", "unix_micros(finished) f").collect()
    assert len(rows) == len({row["operation"] for row in rows})
    expected = brute(trace_rows("kafka", operations=300, events=600))
    assert expected == {row["operation"]: (row["outcome"], row["f"]) for row in rows}


def run_stream(spark, tmp_path):
    stream.run(spark, "trace", "out", str(tmp_path / "checkpoint"), stream.StreamSettings())


def run_monitor(spark, tmp_path):
    monitor.run(spark, "journal", "out", str(tmp_path / "checkpoint"), once=True)


LATE = "Timed out while waiting for the Python worker to connect back"


@pytest.mark.parametrize(("module", "run"), [(stream, run_stream), (monitor, run_monitor)])
@pytest.mark.parametrize(
    ("late", "after_batches", "fails"), [(30, 0, False), (31, 0, True), (60, 30, False), (61, 30, True)]
)
def test_query_starts_again_if_a_python_process_is_late(
    spark, tmp_path, monkeypatch, caplog, module, run, late, after_batches, fails
):
    """Spark's own limit of ten seconds does not end a query on a busy machine, unless no batch ends for 30 starts."""

    class Query:
        def __init__(self, number):
            self.number = number
            self.recentProgress = [{"batchId": -1}] if number == after_batches else []

        def awaitTermination(self, timeout):
            if self.number < late:
                raise StreamingQueryException(LATE)
            return True

        def stop(self):
            stopped.append(self)

    started, stopped = [], []

    def start(*places, **settings):
        started.append(places)
        if len(started) == 1:  # as through Spark Connect
            raise PySparkException(LATE)
        return Query(len(started) - 1)

    monkeypatch.setattr(module, "start", start)
    with pytest.raises(StreamingQueryException, match="connect back") if fails else contextlib.nullcontext():
        run(spark, tmp_path)
    assert (late + (not fails), 1) == (len(started), len(stopped))
    restarts = [record.args[0] for record in caplog.records if "query_started_again" in record.getMessage()]
    assert [*range(1, 31), *range(1, 31)][: late - fails] == restarts


def test_operations_without_events_and_events_without_operations(spark, tmp_path):
    """Operations without an answer expire. Events without a waiting operation have no effect. The malformed are
    distinguished.
    """
    shape = workloads.Workload(operations=20, events=40, unreachable=1.0, keys_per_operation=1, delays_ms=(100,))
    table = workloads.trace(shape)
    broken = [{**row, "operation": "broken", "levels": []} for row in table.slice(0, 1).to_pylist()]
    table = pa.concat_tables([table, pa.Table.from_pylist(broken, table.schema)])
    following = workloads.write(tmp_path / "trace", table, TRACE, files=1)
    workloads.write(
        tmp_path / "trace", workloads.flush_row(workloads.START_MS + 10**9), TRACE, files=1, first=following
    )
    settings = stream.StreamSettings(buckets=1, once=True)
    told = []
    places = [str(tmp_path / name) for name in ("trace", "out", "checkpoint")]
    stream.run(spark, *places, settings, on_progress=told.append)
    assert (20, 0, 1) == tuple(sum(getattr(one, what) for one in told) for what in ("answered", "late", "malformed"))
    assert 0 == told[-1].parked
    assert all(f"batch {one.batch}: {one.rows:,} rows" in str(one) for one in told)
    # A batch writes one file of each table, and none where it has no row of it.
    out, aside = places[1], aside_of(places[1])
    assert sum(one.answered > 0 for one in told) == len(list(Path(out).glob("commit=*/date=*/*.parquet")))
    assert sum(one.malformed > 0 for one in told) == len(list(Path(aside).glob("commit=*/date=*/*.parquet")))
    assert {"expired": 20} == Counter(row["outcome"] for row in stream.answers(spark, out).collect())
    (bad,) = stream.answers(spark, aside).collect()
    assert ("malformed", "as many keys as levels are needed", None) == (bad["part"], bad["reason"], bad["created"])
    assert "broken" == json.loads(bad["detail"])["operation"]


def test_a_checkpoint_continues_with_its_settings_only(spark, tmp_path):
    """Other buckets, partitions or times to keep keys are rejected in one line that says which."""
    shape = workloads.Workload(operations=30, events=10, seconds=10, keys=5, unreachable=3.0, delays_ms=(86_400_000,))
    workloads.write(tmp_path / "trace", workloads.trace(shape), TRACE, files=1)
    trace, out, checkpoint = (str(tmp_path / name) for name in ("trace", "out", "checkpoint"))
    begun = stream.StreamSettings(buckets=4, partitions=2, once=True)
    stream.check_checkpoint(spark, checkpoint, begun)
    stream.run(spark, trace, out, checkpoint, begun)
    stream.check_checkpoint(spark, checkpoint, attrs.evolve(begun, delay_ms=9, trigger_s=3.0))
    for change, expected in (
        ({"buckets": 8}, "buckets 4, not 8"),
        ({"partitions": 3}, "partitions 2, not 3"),
        ({"buckets": 2, "keep_ms": 5}, "buckets 4, not 2, keep_us 604800000000, not 5000"),
        ({"keep_ms": None}, "keep_us 604800000000, not None"),
    ):
        with pytest.raises(CheckpointDiffers, match=f"started with {expected}: use these settings, or a new"):
            stream.start(spark, trace, out, checkpoint, attrs.evolve(begun, **change))


@pytest.mark.parametrize(
    ("kept", "form"), [("_spark_metadata/0", "parquet"), ("_delta_log/0", "parquet"), ("rows.parquet", "delta")]
)
def test_an_output_of_another_format_is_refused(spark, tmp_path, kept, form):
    """Readers would not see what is added to it. So would those of the log that earlier versions wrote."""
    places = [str(tmp_path / name) for name in ("trace", "out", "checkpoint")]
    (tmp_path / "trace").mkdir()
    (tmp_path / "out" / kept).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / kept).touch()
    with pytest.raises(OutputTaken, match="of another format or of an earlier version: use a new output"):
        stream.start(spark, *places, stream.StreamSettings(format=form))
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3a://nowhere/out", "S3AFileSystem not found"),
        ("hdfs://127.0.0.1:1/out", "Connection refused"),
        ("no-such-scheme://x/out", "No FileSystem for scheme"),
    ],
)
def test_an_output_that_cant_be_written_is_refused_before_the_work(spark, tmp_path, place, why):
    """A store that this session can't reach is one line with the reason, before a batch has begun."""
    (tmp_path / "trace").mkdir()
    with pytest.raises(PlaceUnusable, match=f"^{place} cannot be used: .*{why}"):
        stream.start(spark, str(tmp_path / "trace"), place, str(tmp_path / "checkpoint"), stream.StreamSettings())
    assert not (tmp_path / "checkpoint").exists()


def test_a_damaged_page_stops_a_stream_whatever_the_session_says(spark, request, tmp_path):
    """Rows that can't be read aren't passed over."""
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.files.ignoreCorruptFiles"))
    shape = workloads.Workload(operations=200, events=40, seconds=10)
    workloads.write(tmp_path / "trace", workloads.trace(shape), TRACE, files=1)
    (segment,) = (tmp_path / "trace").glob("trace-*.parquet")
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 0x55
    segment.write_bytes(data)
    places = [str(tmp_path / name) for name in ("trace", "out", "checkpoint")]
    with pytest.raises(StreamingQueryException, match=segment.name):
        stream.run(spark, *places, stream.StreamSettings(buckets=1, partitions=1, once=True))


def test_a_source_that_isnt_there_is_refused(spark, tmp_path):
    """A folder that doesn't exist is one line."""
    with pytest.raises(PlaceMissing, match="nowhere does not exist"):
        stream.start(spark, str(tmp_path / "nowhere"), "out", "checkpoint", stream.StreamSettings())


def instant(us):
    return (datetime(1970, 1, 1) + timedelta(microseconds=us)).isoformat()  # noqa: DTZ001  # of UTC, written with a Z


def test_any_source_and_sink_will_do_in_a_stock_session(spark, request, tmp_path, brute, trace_rows):
    """A trace that is still open and lines of JSON (as Kafka's values would be), together, answered into memory."""
    rows = trace_rows("kafka", operations=100, events=200)
    lines = rows[1::2]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "values").write_text(
        "".join(json.dumps({**row, "ts": f"{instant(row['ts'])}Z"}) + "\n" for row in lines)
    )
    stock = spark.newSession()
    # Spark looks for what has that name already in the session that is the thread's, not in the one that is asked.
    spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(stock._jsparkSession)
    request.addfinalizer(lambda: spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession))
    stock.conf.unset("spark.sql.streaming.stateStore.providerClass")
    stock.conf.set("spark.sql.shuffle.partitions", "7")
    # Spark rejects a name that is known in the thread's active session, whichever session it is registered with.
    spark._jvm.SparkSession.setActiveSession(stock._jsparkSession)
    try:
        stock.dataSource.register(PurgatoryDataSource)
    finally:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    end = {"kind": "flush", "purgatory": "", "operation": None, "keys": [], "levels": [], "delay_ms": 0}
    end["ts"] = workloads.START_MS * 1000 + 10**15
    with Trace(tmp_path / "trace") as trace:
        for row in [*sorted(rows[::2], key=lambda row: row["ts"]), end]:
            at_ns = row["ts"] * 1000 - trace._epoch_ns  # the trace's clock is the system's
            names = (row["kind"], row["purgatory"], row["operation"], tuple(row["keys"]))
            trace._put((*names, at_ns, row["delay_ms"], tuple(row["levels"]), "Kafka", None, None, None))
        assert trace.flush(10)
        assert [] == list((tmp_path / "trace").glob("*.parquet"))
        opened = stock.readStream.format("purgatory").option("kind", "trace").load(str(tmp_path / "trace"))
        values = stock.readStream.text(str(tmp_path / "lines"))
        values = values.select(F.from_json("value", spark_schema(TRACE)).alias("row")).select("row.*")
        source = opened.unionByName(values)
        settings = stream.StreamSettings(buckets=2, partitions=2)
        with stream.apply_settings(stock, settings):
            query = (
                stream.answers_of(source, settings)
                .writeStream.format("memory")
                .queryName("answers")
                .outputMode("append")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
        query.awaitTermination()
    assert "7" == stock.conf.get("spark.sql.shuffle.partitions")
    found = stock.table("answers").where("part = 'done'").selectExpr("operation", "outcome", "unix_micros(finished) f")
    assert brute(rows) == {row["operation"]: (row["outcome"], row["f"]) for row in found.collect()}


def test_a_stream_says_what_is_parked_also_when_it_goes_on(spark, tmp_path, capsys):
    """The parked operations can be read from the checkpoint, and are reported per batch, after a restart as well.

    A query that was stopped in its first batch has files of a state, and nothing in it.
    """
    shape = workloads.Workload(operations=30, events=10, seconds=10, keys=5, unreachable=3.0, delays_ms=(86_400_000,))
    trace, out, checkpoint = (str(tmp_path / name) for name in ("trace", "out", "checkpoint"))
    following = workloads.write(tmp_path / "trace", workloads.trace(shape), TRACE, files=1)
    ahead = workloads.flush_row(workloads.START_MS + 60_000)
    following = workloads.write(tmp_path / "trace", ahead, TRACE, files=1, first=following)
    settings = stream.StreamSettings(buckets=2, partitions=2, once=True)
    told = []
    stream.run(spark, trace, out, checkpoint, settings, on_progress=told.append)
    assert 30 == told[-1].parked
    assert 0 == main(["monitor", "--stream", checkpoint])
    assert f"after batch {told[-1].batch}: 30 operations parked" in capsys.readouterr().out
    workloads.flush_after(tmp_path / "trace", following)
    stream.run(spark, trace, out, checkpoint, settings, on_progress=told.append)
    assert (30, 0) == (sum(one.answered for one in told), told[-1].parked)
    for commit in Path(checkpoint, "commits").iterdir():
        commit.unlink()
    stream.check_checkpoint(spark, checkpoint, settings)
    assert 0 == main(["monitor", "--stream", checkpoint])
    assert "after batch -1: 0 operations parked" in capsys.readouterr().out
