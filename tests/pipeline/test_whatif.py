"""What-if of a trace and of a journal, on both engines."""

import collections
import hashlib
import itertools
import json

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.journal import Journal, Trace
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.between import Between
from purgatory.pipeline._summaries.choices import Grid
from purgatory.pipeline._summaries.groups import rows_by
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.whatif import whatif
from tests.pipeline.test_replay import plainly, worlds, written
from tests.support import workloads
from tests.support.replays import over
from timer import MockTimer

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

BOTH = ["local", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture
def session(request):
    """None for the local engine, or the tests' session of Spark."""
    return request.getfixturevalue("spark") if request.param == "spark" else None


def table_of(folder, name):
    """The rows of a table."""
    return pq.read_table(folder / "out" / "tables" / name).to_pylist()


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_whatif_of_a_trace_is_exact(session, tmp_path, brute, trace_rows):
    """For every timeout tried, the expiry share equals that of a replay under that timeout."""
    shape = {"operations": 200, "events": 400, "delays_ms": (1_000,)}
    workloads.write(
        tmp_path / "trace", workloads.trace(attrs.evolve(workloads.WORKLOADS["kafka"], **shape)), TRACE, files=1
    )
    grid = Grid(timeouts_ms=(10, 1_000, 60_000), shards=(1, 4), ticks_ms=(1,), wheel_sizes=(20,))
    page = whatif(over(tmp_path / "trace", session), tmp_path / "out", grid)
    found = {row["timeout_ms"]: row for row in table_of(tmp_path, "timeouts")}
    rows = trace_rows("kafka", **shape)
    last = max(row["ts"] for row in rows)
    arrivals = {row["operation"]: row["ts"] for row in rows if row["kind"] == "operation"}
    for timeout in grid.timeouts_ms:
        changed = brute([{**row, "delay_ms": timeout} for row in rows])
        due = {operation for operation, at in arrivals.items() if at + timeout * 1000 <= last}
        expired = {operation for operation, (outcome, _) in changed.items() if outcome == "expired"}
        row = found[timeout]
        assert (len(expired & due), len(expired - due)) == (row["expired"], row["still_parked"])
        assert (pytest.approx(len(expired & due) / len(due)) if due else None) == row["expiry_share"]
        spent = [min(end, last) - arrivals[operation] for operation, (_, end) in changed.items()]
        assert pytest.approx(sum(spent) / len(spent) / 1000) == row["mean_wait_ms"]
    choice = json.loads((tmp_path / "out" / "choice.json").read_text())
    settings = {"timeout_ms", "tick_ms", "wheel_size", "purge_interval", "shards"}
    assert settings == {each["setting"] for each in choice}
    assert "What it would choose" in page.read_text()


def idle_spells(rows, answers):
    """The times when a key is idle, and the total time in use, key by key."""
    uses = {}
    for row in rows:
        if row["kind"] == "operation":
            for key in set(row["keys"]):
                uses.setdefault(key, set()).add((row["ts"], -answers[row["operation"]][1], row["operation"]))
    spells, busy = [], 0
    for key, waits in uses.items():
        begun = end = None
        for since, until, _ in sorted(waits):
            if end is not None and since >= end:
                spells.append((end, since, key))
                busy, begun = busy + end - begun, None
            begun = since if begun is None else begun
            end = -until if end is None else max(end, -until)
        spells.append((end, None, key))
        busy += end - begun
    return spells, busy, sum(map(len, uses.values()))


def created_again(spells, limit):
    """How often a key is used again that a queue like the library's has forgotten."""
    ordered = sorted(spells, key=lambda spell: (spell[0], hashlib.md5(spell[2].encode()).hexdigest()))
    queue, created = [], 0
    for place, (now, _, key) in enumerate(ordered):
        if key in queue:
            continue
        queue.append(key)
        for _ in range(min(2, len(queue) - limit)):
            oldest = queue.pop(0)
            again = next(again for _, again, of in ordered[place::-1] if of == oldest)
            created += again is not None and now <= again
    return created


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_purge_intervals_of_a_trace_are_tried_exactly(session, tmp_path, brute, trace_rows):
    """Which keys would be forgotten and made again, counted one by one. Rows delivered twice count once."""
    shape = {"operations": 600, "events": 900, "delays_ms": (1_000,)}
    table = workloads.trace(attrs.evolve(workloads.WORKLOADS["kafka"], **shape))
    twice = pa.concat_tables([table, table.slice(100, 200)]).drop_columns("seq")
    twice = twice.add_column(0, "seq", pa.array(range(len(twice)), pa.int64()))
    workloads.write(tmp_path / "trace", twice.cast(table.schema), TRACE, files=2)
    grid = Grid(timeouts_ms=(1_000,), shards=(1,), ticks_ms=(1,), wheel_sizes=(20,), purge_intervals=(5, 30, 10**6))
    whatif(over(tmp_path / "trace", session), tmp_path / "out", grid)
    found = table_of(tmp_path, "purges")
    rows = trace_rows("kafka", **shape)
    spells, busy, parked = idle_spells(rows, brute(rows))
    span = max(end for end, *_ in spells) - min(row["ts"] for row in rows if row["kind"] == "operation")
    keys = sum(again is None for _, again, _ in spells)
    changes = [(end, 0, 1) for end, *_ in spells]
    changes = sorted(changes + [(again, 1, -1) for _, again, _ in spells if again is not None])
    most = max(itertools.accumulate(change for _, _, change in changes))
    assert len(spells) > 2 * keys
    for row, interval in zip(found, grid.purge_intervals, strict=True):
        limit = max(interval, round(busy / span))
        anew = created_again(spells, limit)
        assert (row["keys"], row["parked"], row["made"], row["anew"]) == (keys, parked, keys + anew, anew), interval
        assert row["in_use"] == pytest.approx(busy / span)
        assert row["idle_at_most"] == min(limit, most)
    assert found[0]["anew"] > found[1]["anew"] >= found[2]["anew"] == 0


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_whatif_of_a_journal_is_an_estimate_up_to_the_timeouts_in_use(session, tmp_path):
    """From a journal the wheels count every record, and a timeout that was not in use has no expiry share."""
    records = workloads.journal(500, seconds=60)
    workloads.write(tmp_path / "journal", records, JOURNAL, files=2)
    folder = str(tmp_path / "journal")
    longest = max(records.column("delay_ms").to_pylist())
    grid = Grid(timeouts_ms=(1, 10 * longest), shards=(1, 4), ticks_ms=(1,), wheel_sizes=(20,))
    page = whatif(Local([folder]) if session is None else Cluster(session, [folder]), tmp_path / "out", grid)
    by_timeout = {(r["type"], r["timeout_ms"]): r for r in table_of(tmp_path, "timeouts")}
    assert 0 < by_timeout["DelayedFetch", 1]["expiry_share"] < 1
    unknown = [row for (_, timeout), row in by_timeout.items() if timeout == 10 * longest]
    assert (500, {None}) == (sum(row["operations"] for row in unknown), {row["expiry_share"] for row in unknown})
    choice = json.loads((tmp_path / "out" / "choice.json").read_text())
    assert {"produce", "fetch", "rebalance"} == {each["of"] for each in choice if each["setting"] == "purge_interval"}
    assert [500] == [row["operations"] for row in table_of(tmp_path, "wheels")]
    assert "What it would choose" in page.read_text()
    assert {row["purgatory"]: row["busiest_shard"] for row in table_of(tmp_path, "shards") if row["shards"] == 4} == {
        purgatory: pytest.approx(busiest_of_four([key for row in rows for key in row["keys"]]))
        for purgatory, rows in rows_by(records.to_pylist(), "purgatory").items()
    }


def busiest_of_four(keys):
    """The share of the busiest of four shards. A key's shard is the same, whichever engine counts."""
    shards = collections.Counter(int(hashlib.md5(key.encode()).hexdigest()[:8], 16) % 4 for key in keys)
    return max(shards.values()) / len(keys)


class Waiting(DelayedOperation):
    """Waits for a level of one key, and is watched under another."""

    def __init__(self, partition, need):
        super().__init__(1_000)
        self.partition, self.need = partition, need

    def try_complete(self):
        return LEVELS.get(self.partition, 0) >= self.need and self.force_complete()

    def on_complete(self):
        """Nothing to do."""


class Lease(Waiting):
    """Another type of the same purgatory."""


LEVELS = {}


@pytest.fixture
def recorded(tmp_path):
    """A purgatory whose journal and trace are written together. Its operations are watched under other keys."""
    LEVELS.clear()
    timer, epoch_ns = MockTimer(), workloads.START_MS * 1_000_000
    with Journal(tmp_path / "journal") as journal, Trace(tmp_path / "trace") as trace:
        clock = {"now_ns": timer.clock, "epoch_ns": epoch_ns}
        observers = (
            journal.observer("produce", **clock),
            trace.observer("produce", lambda operation: {operation.partition: operation.need}, **clock),
        )
        with DelayedOperationPurgatory("produce", timer=timer, observers=observers) as purgatory:

            def reach(partition, level):
                LEVELS[partition] = level
                trace.event("produce", partition, level, at_ns=timer.clock() + epoch_ns - trace._epoch_ns)
                purgatory.check_and_complete(("watched", partition))

            def end():
                purgatory.shutdown()
                assert journal.flush()
                assert trace.flush()

            yield tmp_path, purgatory, timer, reach, end


def parked(purgatory, timer, kind, count):
    """Some operations, of which each needs a level of one of five partitions, and is watched under two keys."""
    made = []
    for number in range(count):
        made.append(kind(number % 5, number // 5 + 1))
        purgatory.try_complete_else_watch(made[-1], [("watched", number % 5), "all"])
        timer.advance_clock(7)
    return made


def test_shards_and_purge_intervals_of_a_trace_are_those_of_the_journal(recorded):
    """They follow from the keys that operations were watched under, which are not the keys that they need."""
    folder, purgatory, timer, reach, end = recorded
    reach(3, 2)  # so that some are satisfied at once, and are watched under no key
    parked(purgatory, timer, Waiting, 40)
    for partition in range(4):
        reach(partition, 5)
        timer.advance_clock(3)
    for _ in range(1_100):  # in steps, so that each expiry is dated by its deadline
        timer.advance_clock(1)
    grid = Grid(timeouts_ms=(500, 1_000), shards=(1, 4), ticks_ms=(1,), wheel_sizes=(20,), purge_intervals=(1, 10**6))
    end()
    found = {}
    for name in ("journal", "trace"):
        engine = over(folder / name) if name == "trace" else Local([str(folder / name)])
        whatif(engine, folder / "out", grid)
        found[name] = {each: table_of(folder, each) for each in ("shards", "purges", "wheels")}
    assert found["journal"] == found["trace"]
    assert 6 == found["trace"]["purges"][0]["keys"]


@pytest.mark.parametrize("session", BOTH, indirect=True)
@pytest.mark.parametrize("how", ["cancelled", "forced", "extended"])
def test_no_timeout_is_tried_for_a_type_that_a_trace_does_not_explain(session, recorded, how, capsys):
    """One operation that left in another way takes its type out of the table, and the page says why."""
    folder, purgatory, timer, _, end = recorded
    parked(purgatory, timer, Waiting, 5)
    (lease, *_) = parked(purgatory, timer, Lease, 3)
    {"cancelled": lease.cancel, "forced": lease.force_complete, "extended": lambda: lease.extend(5_000)}[how]()
    timer.advance_clock(10_000)
    end()
    whatif(over(folder / "trace", session), folder / "out", Grid())
    assert {"Waiting"} == {row["type"] for row in table_of(folder, "timeouts")}
    why = f"the trace does not say why some of its operations left (1 {how})"
    page = (folder / "out" / "index.html").read_text(encoding="utf-8")
    assert f"<h3>produce · Lease</h3><p>No timeout is advised: {why}." in page
    engine = "local" if session is None else "spark"
    out = str(folder / "answers")
    assert 0 == main(["replay", "--trace", str(folder / "trace"), "--out", out, "--engine", engine])
    assert f"answered by levels and first deadlines alone: produce · Lease: 1 {how}" in capsys.readouterr().out


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_a_what_if_of_a_range_is_about_the_rows_inside_of_it(session, tmp_path):
    """Each timeout's share is that of a replay of these rows under that timeout."""
    rows = worlds("whatif", 30)
    since, until = workloads.START_MS * 1000 + 5_000, workloads.START_MS * 1000 + 25_000
    inside = [row for row in rows if since <= row["ts"] < until]
    grid = Grid(timeouts_ms=(2, 10), shards=(1,), ticks_ms=(1,), wheel_sizes=(20,))
    used = {(purgatory, operation, at) for purgatory, operation, _, at, _ in plainly(inside)[0]}
    whatif(over(written(tmp_path / "trace", rows), session, Between(since, until)), tmp_path / "out", grid)
    found = {(row["purgatory"], row["timeout_ms"]): row["operations"] for row in table_of(tmp_path, "timeouts")}
    counts = {purgatory: sum(each[0] == purgatory for each in used) for purgatory, *_ in used}
    assert {(name, timeout): count for name, count in counts.items() for timeout in (2, 10)} == found


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_a_trace_without_operations_is_an_error_of_one_line(session, tmp_path, capsys):
    """A what-if has nothing to try settings on. A replay of such a trace has no answers."""
    with Trace(tmp_path / "trace") as trace:
        trace.event("produce", "orders-0", 1)
    places = ["--trace", str(tmp_path / "trace"), "--engine", "local" if session is None else "spark"]
    assert 3 == main(["whatif", *places, "--out", str(tmp_path / "out")])
    assert f"purgatory pipeline: {tmp_path}/trace holds no operation to try settings on" in capsys.readouterr().err
    assert 0 == main(["replay", *places, "--out", str(tmp_path / "answers")])
    assert ["malformed", "0"] == capsys.readouterr().out.split()


def test_a_heartbeat_after_the_deadline_makes_a_parked_operation_an_expired_one(tmp_path):
    """The trace ends with its last row. Before that, the outcome is unknown."""
    at = workloads.START_MS * 1000
    row = {"kind": "operation", "purgatory": "p", "operation": "o", "delay_ms": 9, "keys": ["k"], "levels": [1]}
    rows = [{**row, "ts": at}, {**row, "kind": "event", "ts": at + 5_000, "keys": ["other"]}]
    beat = {**row, "kind": "flush", "ts": at + 7_000, "keys": [], "levels": []}
    grid = Grid(timeouts_ms=(5, 6, 8), shards=(1,), ticks_ms=(1,), wheel_sizes=(20,))
    found = []
    for name, some in (("without", rows), ("with", [*rows, beat])):
        whatif(over(written(tmp_path / name / "trace", some)), tmp_path / name / "out", grid)
        table = table_of(tmp_path / name, "timeouts")
        found.append([(row["expired"], row["still_parked"], row["expiry_share"], row["mean_wait_ms"]) for row in table])
    assert [(1, 0, 1.0, 5.0), (0, 1, None, 5.0), (0, 1, None, 5.0)] == found[0]
    assert [(1, 0, 1.0, 5.0), (1, 0, 1.0, 6.0), (0, 1, None, 7.0)] == found[1]
