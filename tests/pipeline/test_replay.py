"""The replay on both engines, beside the plainest reading of a trace."""

import itertools
import random
import sys

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.journal.records import TRACE
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.between import Between
from purgatory.pipeline._rows.validity import IN_USE
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.replay import replay
from tests.support import workloads
from tests.support.replays import over, replayed

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

START_US = workloads.START_MS * 1000
BOTH = ["local", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture
def session(request):
    """None for the local engine, or the tests' session of Spark."""
    return request.getfixturevalue("spark") if request.param == "spark" else None


def world(rng, purgatory):
    """A few rows of one purgatory, full of ties: the same instants, levels, keys and names again and again."""
    rows = []
    for _ in range(rng.randrange(2, 30)):
        keys = rng.sample("abc", rng.choice([1, 1, 2, 3]))
        row = {"purgatory": purgatory, "ts": rng.randrange(40), "delay_ms": 0, "operation": None, "type": ""}
        if rng.random() < 0.5:
            row |= {"kind": "event", "keys": keys[:1], "levels": [rng.randrange(5)]}
        else:
            row |= {"kind": "operation", "keys": keys, "levels": [rng.randrange(6) for _ in keys]}
            row |= {"operation": rng.choice("uvwxyz"), "delay_ms": rng.choice([-1, 0, 1, 2, 5, 20, 10**16])}
        rows.append(row)
    rows += [dict(row) for row in rows if rng.random() < 0.2]
    rng.shuffle(rows)
    return rows


def worlds(seed, count):
    """Rows of many purgatories, of which each is a world of its own. An instant is a millisecond."""
    rng = random.Random(seed)
    rows = [row for number in range(count) for row in world(rng, f"world-{number}")]
    rng.shuffle(rows)
    return [{**row, "seq": seq, "ts": START_US + 1000 * row["ts"]} for seq, row in enumerate(rows)]


def first_instant(rows, key, level, at, keep_us):
    """When the key's level first counts for a watch at an instant. None if never."""
    named = sorted({row["ts"] for row in rows if key in row["keys"]})

    def counts(instant):
        between = [ts for ts in named if instant <= ts <= at]
        return keep_us is None or all(later - earlier <= keep_us for earlier, later in itertools.pairwise(between))

    events = (row for row in rows if row["kind"] == "event" and row["keys"] == [key] and row["levels"][0] >= level)
    return min((row["ts"] for row in events if row["ts"] > at or counts(row["ts"])), default=None)


def outcome_of(rows, row, keep_us):
    """How an operation ends, and when, by a look at all rows of its purgatory."""
    at, deadline = row["ts"], row["ts"] + min(max(0, row["delay_ms"]), 10**14) * 1000
    pairs = zip(row["keys"], row["levels"], strict=True)
    firsts = [first_instant(rows, key, level, at, keep_us) for key, level in pairs]
    ready = None if None in firsts else max([at, *firsts])
    if ready is not None and (ready <= at or ready < deadline):
        return "immediate" if ready <= at else "satisfied", ready
    return "expired", deadline


def plainly(rows, keep_us=None):
    """What `replayed` gives, row by row: the answers, and the rows that use a name which is in use."""
    answers, aside = [], []
    by_purgatory = {}
    for row in rows:
        by_purgatory.setdefault(row["purgatory"], []).append(row)
    for purgatory, mine in by_purgatory.items():
        holders, refused = {}, set()
        operations = [row for row in mine if row["kind"] == "operation"]
        for row in sorted(operations, key=lambda row: (row["ts"], row["seq"])):
            name = row["operation"]
            says = (name, row["ts"], row["delay_ms"], tuple(row["keys"]), tuple(row["levels"]))
            holder = holders.get(name)
            if holder is not None and holder[0] == says:
                continue
            if holder is not None and (holder[0][1] == row["ts"] or row["ts"] < holder[1]):
                if says not in refused:
                    aside.append((row["seq"], IN_USE))
                refused.add(says)
                continue
            outcome, finished = outcome_of(mine, row, keep_us)
            holders[name] = (says, finished)
            answers.append((purgatory, name, outcome, row["ts"], finished))
    return sorted(answers), sorted(aside)


def written(folder, rows, files=2):
    """A trace's folder with these rows."""
    columns = {name: [row[name] for row in rows] for name in arrow_schema(TRACE).names if name in rows[0]}
    instants = pa.array(columns.pop("ts")).cast(pa.timestamp("us", "UTC"))
    table = pa.table({**columns, "ts": instants})
    missing = [name for name in arrow_schema(TRACE).names if name not in table.column_names]
    for name in missing:
        table = table.append_column(name, pa.nulls(len(table), arrow_schema(TRACE).field(name).type))
    workloads.write(folder, table.select(arrow_schema(TRACE).names).cast(arrow_schema(TRACE)), TRACE, files=files)
    return folder


@pytest.mark.parametrize("keep_us", [None, 1_000, 3_000, 10_000])
@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_random_worlds_are_answered_as_a_look_at_all_rows_does(session, keep_us, tmp_path):
    """Ties, doubles, reused names, forgotten keys: each outcome, each instant, and each row that is set aside."""
    rows = worlds(f"{keep_us}", 300 if session is None else 60)
    answers, aside = replayed(over(written(tmp_path, rows), session), keep_us)
    expected, refused = plainly(rows, keep_us)
    assert expected == answers
    assert refused == aside
    assert refused


@pytest.mark.parametrize("session", BOTH, indirect=True)
@pytest.mark.parametrize("workload", ["kafka", "duplicates", "huge-timeouts"])
def test_generated_traces_are_answered_as_a_look_at_all_events_does(session, workload, tmp_path, brute, trace_rows):
    """Every operation has the outcome and the instant that a look at all events gives."""
    rows = trace_rows(workload, operations=300, events=600)
    answers, aside = replayed(over(written(tmp_path, [{**row, "seq": n} for n, row in enumerate(rows)]), session))
    assert brute(rows) == {operation: (outcome, finished) for _, operation, outcome, _, finished in answers}
    assert (len({row[1] for row in answers}), []) == (len(answers), aside)


@pytest.mark.parametrize("session", BOTH, indirect=True)
def test_a_range_answers_the_rows_inside_of_it(session, tmp_path):
    """The rows of the range are a trace of their own: earlier and later rows have not happened."""
    rows = worlds("range", 40)
    since, until = START_US + 10_000, START_US + 30_000
    inside = [row for row in rows if since <= row["ts"] < until]
    found = replayed(over(written(tmp_path, rows), session, Between(since, until)))
    assert plainly(inside) == found
    assert plainly(rows) != found


def test_the_command_needs_no_spark(tmp_path, capsys, monkeypatch):
    """By default a trace that fits this machine is replayed in this process, and the counts are printed."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    rows = worlds("command", 20)
    written(tmp_path / "trace", rows)
    command = ["replay", "--trace", str(tmp_path / "trace"), "--out", str(tmp_path / "out"), "--keep-keys", "forever"]
    assert 0 == main(command)
    answers, aside = plainly(rows)
    counts = [sum(row[2] == name for row in answers) for name in ("expired", "immediate", "satisfied")]
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    expected = dict(zip(("expired", "immediate", "satisfied"), counts, strict=True)) | {"malformed": len(aside)}
    assert expected == {name: int(count) for name, count in printed.items()}
    assert len(answers) == pq.read_table(tmp_path / "out" / "answers").num_rows


def test_the_command_takes_a_range(tmp_path):
    """`--since` and `--until` take the rows of the range, each end as an instant."""
    rows = worlds("command", 20)
    written(tmp_path / "trace", rows)
    since, until = START_US + 10_000, START_US + 30_000
    instants = [pa.scalar(at, pa.timestamp("us")).as_py().isoformat() for at in (since, until)]
    places = ["--trace", str(tmp_path / "trace"), "--out", str(tmp_path / "out"), "--keep-keys", "forever"]
    assert 0 == main(["replay", *places, "--since", instants[0], "--until", instants[1]])
    answers, aside = plainly([row for row in rows if since <= row["ts"] < until])
    found = pq.read_table(tmp_path / "out" / "answers").to_pylist()
    assert sorted(row[:3] for row in answers) == sorted(
        (row["purgatory"], row["operation"], row["outcome"]) for row in found
    )
    assert len(aside) == pq.read_table(tmp_path / "out" / "malformed").num_rows


def test_a_damaged_segment_and_its_missing_rows_are_one_line(tmp_path):
    """What a replay could not read is listed once, with how many rows it had."""
    workloads.write(
        tmp_path / "trace",
        workloads.trace(attrs.evolve(workloads.WORKLOADS["kafka"], operations=50, events=100)),
        TRACE,
        3,
    )
    segment = sorted((tmp_path / "trace").glob("trace-*"))[1]
    segment.write_bytes(segment.read_bytes()[:-100])
    found = replay(Local([str(tmp_path / "trace")], schema=TRACE), str(tmp_path / "out"), keep_us=None, allow_gaps=True)
    (line,) = found.missing
    assert line.startswith(segment.name)
    assert line.endswith("(50 rows, 50 to 99)")
