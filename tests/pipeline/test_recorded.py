"""What-if of a journal in one process, without Spark."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from purgatory.journal.records import JOURNAL, SHUTDOWN
from purgatory.journal.records.normal import Normal
from purgatory.pipeline._cli import main
from purgatory.pipeline._summaries.choices import Grid
from purgatory.pipeline._summaries.wheels import levels_and_reinsertions
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.whatif import whatif
from tests.support import workloads

GRID = Grid(timeouts_ms=(1, 400, 10**6), ticks_ms=(1, 5), wheel_sizes=(20,), purge_intervals=(2, 10**6), shards=(1, 4))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A journal's table, and the folder of the what-if's tables."""
    folder = tmp_path_factory.mktemp("recorded")
    table = workloads.journal(2_000, seconds=120)
    workloads.write(folder / "journal", table, JOURNAL, files=3)
    whatif(Local([str(folder / "journal")]), folder / "out", GRID, normal=Normal(expiry=["DelayedJoin"]))
    return table.to_pylist(), folder / "out"


def rows_of(made, name):
    return pq.read_table(made[1] / "tables" / name).to_pylist()


def test_the_wheels_count_every_record(made):
    """Levels and re-insertions are those of the closed form over the journal's own rows."""
    rows = made[0]
    start_us = np.array([round(row["created"].timestamp() * 1e6) for row in rows])
    wait_us = np.array([round((row["finished"] - row["created"]).total_seconds() * 1e6) for row in rows])
    delay = np.array([row["delay_ms"] for row in rows])
    answered = np.array([row["outcome"] in ("immediate", "satisfied") for row in rows])
    for row in rows_of(made, "wheels"):
        tick_us = row["tick_ms"] * 1000
        start, ticks = -(-start_us // tick_us), -(-delay * 1000 // tick_us)
        end = start + np.where(answered, np.minimum(wait_us // tick_us, ticks), ticks)
        levels, again = levels_and_reinsertions(start + ticks, start, end, row["wheel_size"])
        assert (len(rows), levels, again) == (row["operations"], row["levels"], row["reinsertions"])


def test_the_busiest_shard_of_one_has_every_watch(made):
    """With one shard it takes all. With more, no less than the busiest key."""
    counts = {}
    for row in made[0]:
        for key in row["keys"]:
            counts.setdefault(row["purgatory"], []).append(key)
    for row in rows_of(made, "shards"):
        keys = counts[row["purgatory"]]
        assert max(keys.count(key) for key in set(keys)) / len(keys) == pytest.approx(row["busiest_key"])
        assert row["busiest_key"] <= row["busiest_shard"] <= 1
        assert row["shards"] > 1 or row["busiest_shard"] == 1


def test_a_large_interval_forgets_no_key(made):
    """Every key is made once where none is forgotten, and every wait under a key is counted."""
    for row in rows_of(made, "purges"):
        watched = [key for each in made[0] if each["purgatory"] == row["purgatory"] for key in each["keys"]]
        assert (len(set(watched)), len(watched)) == (row["keys"], row["parked"])
        assert row["made"] == row["keys"] + row["anew"]
        assert row["purge_interval"] < 10**6 or row["anew"] == 0


def test_no_timeout_is_advised_for_a_type_that_ends_by_its_deadline_as_a_rule(made):
    """Its shares are in the table, the choice leaves it out, and the page says so."""
    chosen = json.loads((made[1] / "choice.json").read_text(encoding="utf-8"))
    advised = {each["of"] for each in chosen if each["setting"] == "timeout_ms"}
    assert {"produce · DelayedProduce", "fetch · DelayedFetch"} == advised
    assert pc.any(pc.equal(pq.read_table(made[1] / "tables" / "timeouts")["type"], "DelayedJoin")).as_py()
    assert "<h3>rebalance · DelayedJoin</h3><p>No timeout is advised" in (made[1] / "index.html").read_text(
        encoding="utf-8"
    )


def test_a_timeout_beyond_those_in_use_has_no_share(made):
    """The answer is unknown for waits that no operation was allowed."""
    shares = {(row["type"], row["timeout_ms"]): row["expiry_share"] for row in rows_of(made, "timeouts")}
    assert shares["DelayedFetch", 10**6] is None
    assert 0 < shares["DelayedFetch", 400] < shares["DelayedFetch", 1] < 1


def test_spark_is_not_imported(tmp_path):
    """A what-if and a report of a journal need no Spark, whatever is installed."""
    workloads.write(tmp_path / "journal", workloads.journal(200, seconds=60), JOURNAL, files=1)
    program = (
        "import sys; sys.modules['pyspark'] = None;"
        "from purgatory.pipeline._cli import main;"
        "sys.exit(main(['whatif', '--journal', 'journal', '--out', 'plan'])"
        " or main(['report', '--journal', 'journal', '--out', 'page', '--quiet']))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    assert (tmp_path / "plan" / "choice.json").exists()


def test_the_command_line_names_types_whose_advice_does_not_apply(tmp_path, capsys):
    """`--expiry-normal` and `--cancel-normal` both say that no timeout is to be advised."""
    workloads.write(tmp_path / "journal", workloads.journal(500, seconds=60), JOURNAL, files=1)
    words = ["--expiry-normal", "DelayedJoin", "--cancel-normal", "DelayedFetch"]
    assert 0 == main(["whatif", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), *words])
    said = capsys.readouterr().out
    assert "timeout_ms      produce" in said
    assert "timeout_ms      fetch" not in said


def test_a_cancel_that_is_normal_is_a_success_of_the_report(tmp_path):
    """A lease that ends by a cancel counts as answered in time, and its cancels are no failures."""
    table = workloads.journal(100, seconds=60)
    every = {"outcome": ["cancelled"] * 100, "type": ["Lease"] * 100}
    for name, words in every.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(words))
    workloads.write(tmp_path / "journal", table, JOURNAL, files=1)
    told = {}
    for name, words in (("as", []), ("normal", ["--cancel-normal", "Lease"])):
        out = str(tmp_path / name)
        assert 0 == main(["report", "--journal", str(tmp_path / "journal"), "--out", out, "--quiet", *words])
        told[name] = (tmp_path / name / "index.html").read_text(encoding="utf-8")
    assert "<b>0%</b><span>answered in time</span><small>0 expired, 100 cancelled or forced" in told["as"]
    assert "<b>100%</b><span>answered in time</span><small>0 expired</small>" in told["normal"]
    assert "cancelled (normal)" in told["normal"]


def test_what_a_shutdown_ended_is_in_no_outcome(tmp_path):
    """Such operations are counted apart, and a journal of nothing else still has a page."""
    table = workloads.journal(100, seconds=60)
    for count in (40, 100):
        ended = pa.array([SHUTDOWN] * count + [None] * (100 - count))
        outcome = pa.array(["expired"] * count + ["satisfied"] * (100 - count))
        changed = table.set_column(table.schema.get_field_index("ended_by"), "ended_by", ended)
        changed = changed.set_column(table.schema.get_field_index("outcome"), "outcome", outcome)
        workloads.write(tmp_path / f"journal-{count}", changed, JOURNAL, files=1)
        out = tmp_path / f"out-{count}"
        assert 0 == main(["report", "--journal", str(tmp_path / f"journal-{count}"), "--out", str(out), "--quiet"])
        assert f"A shutdown ended {count} operations before their deadline" in (out / "index.html").read_text()
        found = pq.read_table(out / "tables" / "outcomes")
        assert (100 - count, 0) == (sum(found["operations"].to_pylist()), sum(found["expired"].to_pylist()))
