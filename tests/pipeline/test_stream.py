"""The stream and its batch twin on Spark: equal to the plainest reading of the rules, a kill notwithstanding."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from purgatory.journal.records import TRACE
from purgatory.pipeline import gen, stream
from purgatory.pipeline.load import load
from purgatory.pipeline.replay import replay
from purgatory.pipeline.verify import place_trace, verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workload", ["kafka", "duplicates", "huge-timeouts"])
def test_the_batch_twin_answers_as_the_plainest_reading_does(spark, tmp_path, brute, trace_rows, workload):
    """Every operation has the outcome and the instant that a look at all events gives."""
    shape = {"operations": 300, "events": 600}
    gen.write(tmp_path, gen.trace(attrs.evolve(gen.WORKLOADS[workload], **shape)), TRACE, files=2)
    found = replay(load(spark, str(tmp_path), TRACE)).selectExpr("operation", "outcome", "unix_micros(finished) f")
    rows = found.collect()
    assert brute(trace_rows(workload, **shape)) == {row["operation"]: (row["outcome"], row["f"]) for row in rows}
    assert len(rows) == len({row["operation"] for row in rows})


def test_library_stream_and_twin_agree_on_the_worst_workload(spark, tmp_path):
    """Disorder, bursts, hot keys, late, doubled and malformed rows: not one operation differs between the three."""
    found = verify(spark, "adversarial", tmp_path / "run", operations=150, files=3)
    assert 0 == found.differences
    assert 100 < found.operations
    assert 0 < found.late
    assert 0 < found.malformed


def test_a_killed_stream_goes_on_exactly_where_it_was(spark, tmp_path, brute, trace_rows):
    """Driver and JVM killed in the middle and started again: every operation once, as if nothing had happened."""
    shape = attrs.evolve(gen.WORKLOADS["kafka"], operations=300, events=600)
    place_trace(tmp_path / "trace", shape, 1, 4)
    places = [str(tmp_path / name) for name in ("trace", "out", "checkpoint")]
    program = (
        "import sys; from purgatory.pipeline import stream; from purgatory.pipeline.session import session;"
        "s = session('killed', {'spark.master': 'local[2]', 'spark.sql.shuffle.partitions': '2',"
        "'spark.ui.enabled': 'false', 'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'});"
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
    deadline = time.monotonic() + 200
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


def test_operations_without_events_and_events_without_operations(spark, tmp_path):
    """Operations that nobody answers expire; events that nobody waits for go by; the malformed are told apart."""
    shape = gen.Workload(operations=20, events=40, unreachable=1.0, keys_per_operation=1, delays_ms=(100,))
    table = gen.trace(shape)
    broken = [{**row, "operation": "broken", "levels": []} for row in table.slice(0, 1).to_pylist()]
    table = pa.concat_tables([table, pa.Table.from_pylist(broken, table.schema)])
    following = gen.write(tmp_path / "trace", table, TRACE, files=1)
    gen.write(tmp_path / "trace", gen.flush_row(gen.START_MS + 10**9), TRACE, files=1, first=following)
    settings = stream.StreamSettings(buckets=1, once=True)
    stream.run(spark, *(str(tmp_path / name) for name in ("trace", "out", "checkpoint")), settings)
    found = stream.answers(spark, str(tmp_path / "out")).collect()
    assert {("done", "expired"): 20, ("malformed", None): 1} == {
        key: sum((row["part"], row["outcome"]) == key for row in found)
        for key in {(row["part"], row["outcome"]) for row in found}
    }
    (bad,) = [row for row in found if row["part"] == "malformed"]
    assert "as many keys as levels are needed" == bad["reason"]
    assert "broken" == json.loads(bad["detail"])["operation"]
