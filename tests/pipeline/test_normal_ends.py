"""Normal ends that the types themselves declare: from the class, through the journal, to what the commands show."""

import json
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.journal import Journal, Trace, read
from purgatory.journal._cli import main as journal_main
from purgatory.journal.records import FLUSH, JOURNAL, TRACE
from purgatory.journal.records.normal import Normal
from purgatory.pipeline import monitor, stream
from purgatory.pipeline._cli import main
from purgatory.pipeline._summaries.choices import Grid
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.replay import replay
from purgatory.pipeline.report import ReportOptions, report
from purgatory.pipeline.whatif import whatif
from tests.support import Waiting, workloads
from timer import MockTimer

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

GRID = Grid(timeouts_ms=(1, 400, 1_000), ticks_ms=(1,), wheel_sizes=(20,), purge_intervals=(2,), shards=(1,))


class Write(Waiting):
    pass


class Poll(Waiting):
    normal_ends = frozenset({Outcome.EXPIRED})


class Lease(Waiting):
    normal_ends = frozenset({Outcome.CANCELLED})


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request):
    """Makes an engine of either kind."""
    if request.param == "local":
        return Local
    spark = request.getfixturevalue("spark")
    return lambda folders, **options: Cluster(spark, folders, **options)


def run(folder, count=150, kinds=(Write, Poll, Lease)):
    """Journal and trace of a service: of each type, one operation is answered, one cancelled, and the rest expires."""
    timer = MockTimer()
    clock = {"now_ns": timer.clock, "epoch_ns": 1_767_261_600_000_000_000}
    with Journal(folder / "journal", when_full="wait") as journal, Trace(folder / "trace", when_full="wait") as trace:
        observers = journal.observer("p", **clock), trace.observer("p", lambda _: {"k": 1}, **clock)
        purgatory = DelayedOperationPurgatory("p", timer=timer, observers=observers)
        for number in range(count):
            for kind in kinds:
                operation = kind(1_000)
                purgatory.try_complete_else_watch(operation, ["k"])
                if kind is Lease:
                    operation.cancel()
                elif number % 3 == 0:
                    timer.advance_clock(3)
                    operation.ready = True
                    purgatory.check_and_complete("k")
            timer.advance_clock(40)
        timer.advance_clock(1_000)
        purgatory.shutdown()
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a journal and a trace."""
    return run(tmp_path_factory.mktemp("recorded"))


def page_of(engine, journal, out, **options):
    return report(engine([str(journal)]), out, ReportOptions(quiet=True, **options)).read_text(encoding="utf-8")


def answered_in_time(text):
    return text.partition("<span>answered in time")[0].rpartition("<b>")[2].removesuffix("</b>")


def test_records_say_which_ends_are_normal(recorded):
    """Each record of a journal says what its type says, and so does each operation's row of a trace."""
    said = {(row.type, row.normal_ends) for row in read(recorded / "journal")}
    assert {("Write", None), ("Poll", "expired"), ("Lease", "cancelled")} == said
    rows = [row for row in read(recorded / "trace") if row.kind == "operation"]
    assert said == {(row.type, row.normal_ends) for row in rows}


def test_mark_of_a_record_costs_nothing(tmp_path):
    """A sealed journal whose types name normal ends is less than 2 % larger than one whose types name none."""
    sizes = []
    for name, ends in (("without", ()), ("with", (Outcome.EXPIRED, Outcome.CANCELLED))):
        run(tmp_path / name, 2_000, [type("Same", (Waiting,), {"normal_ends": ends})])
        sizes.append(sum(path.stat().st_size for path in (tmp_path / name / "journal").glob("*.parquet")))
    assert sizes[1] - sizes[0] < 400 + 0.02 * sizes[0], sizes


def test_report_counts_no_normal_end_as_a_failure(engine, recorded, tmp_path):
    """The report takes from the records which ends are normal: in its tile, its findings, its plots and its advice."""
    text = page_of(engine, recorded / "journal", tmp_path / "out")
    # Of 150 of each type, the leases and all polls end well. Of the writes, a third is answered.
    assert "77.8%" == answered_in_time(text)
    assert "<small>100 expired</small>" in text
    assert "ended by their deadline, which is this type&#x27;s normal end" in text
    assert "deadline (normal)" in text
    assert "cancelled (normal)" in text
    assert "Cancelled or forced" not in text
    advised = text.partition("Which timeout would do")[2].partition("</section>")[0]
    assert ("p · Write" in advised, "p · Poll" in advised) == (True, False)
    hottest = pq.read_table(tmp_path / "out" / "tables" / "hot_keys").to_pylist()
    assert [("k", 450, 100)] == [(row["key"], row["operations"], row["expired"]) for row in hottest]


def test_options_of_the_report_say_otherwise(engine, recorded, tmp_path):
    """An option counts more than what the records say, in both directions."""
    normal = Normal(expiry=["Write"], expiry_failure=["Poll"], cancel_failure=["Lease"])
    text = page_of(engine, recorded / "journal", tmp_path / "out", normal=normal)
    assert "44.4%" == answered_in_time(text)
    assert "<small>100 expired, 150 cancelled or forced</small>" in text
    hottest = pq.read_table(tmp_path / "out" / "tables" / "hot_keys").to_pylist()
    assert [100] == [row["expired"] for row in hottest]


def test_journal_without_marks_is_read_as_before(engine, recorded, tmp_path):
    """Segments of an earlier writer lack the column. Their expiries are failures, unless an option says otherwise."""
    (segment,) = (recorded / "journal").glob("*.parquet")
    table = pq.read_table(segment).drop_columns("normal_ends")
    (tmp_path / "old").mkdir()
    pq.write_table(table, tmp_path / "old" / segment.name)

    assert {None} == {row.normal_ends for row in read(tmp_path / "old")}
    assert "22.2%" == answered_in_time(page_of(engine, tmp_path / "old", tmp_path / "as"))
    text = page_of(engine, tmp_path / "old", tmp_path / "out", normal=Normal(expiry=["Poll"], cancel=["Lease"]))
    assert "77.8%" == answered_in_time(text)


def test_one_record_is_enough(engine, recorded, tmp_path):
    """What a type says now also counts for its records from before it said so."""
    (segment,) = (recorded / "journal").glob("*.parquet")
    table = pq.read_table(segment)
    half = len(table) // 2
    marks = [None] * half + table["normal_ends"].to_pylist()[half:]
    place = table.schema.get_field_index("normal_ends")
    workloads.write(tmp_path / "journal", table.set_column(place, "normal_ends", pa.array(marks)), JOURNAL, files=2)

    assert "77.8%" == answered_in_time(page_of(engine, tmp_path / "journal", tmp_path / "out"))


def test_purgatory_is_part_of_what_is_normal(engine, recorded, tmp_path):
    """A type of the same name in another purgatory that says nothing is judged by itself."""
    (segment,) = (recorded / "journal").glob("*.parquet")
    table = pq.read_table(segment)
    for name, change in (("purgatory", "q"), ("normal_ends", None)):
        column = pa.array([change if n % 2 else value for n, value in enumerate(table[name].to_pylist())], pa.string())
        table = table.set_column(table.schema.get_field_index(name), name, column)
    workloads.write(tmp_path / "journal", table, JOURNAL, files=1)
    rows = table.to_pylist()
    well = sum(row["outcome"] == "satisfied" or row["outcome"] in (row["normal_ends"] or "").split() for row in rows)
    text = page_of(engine, tmp_path / "journal", tmp_path / "out")

    assert f"{100 * well / len(rows):.1f}%" == answered_in_time(text)
    hottest = pq.read_table(tmp_path / "out" / "tables" / "hot_keys").to_pylist()
    failing = [row for row in rows if row["outcome"] == "expired" and row["normal_ends"] is None]
    assert {name: sum(row["purgatory"] == name for row in failing) for name in "pq"} == {
        row["purgatory"]: row["expired"] for row in hottest
    }


@pytest.mark.parametrize("schema", [JOURNAL, TRACE])
def test_whatif_advises_no_timeout_for_a_normal_end(engine, recorded, tmp_path, schema):
    """Over a journal and over a trace, types with a normal end get no advice, and the page says why."""
    page = whatif(engine([str(recorded / schema.name)], schema=schema), tmp_path / "out", GRID)
    chosen = json.loads((tmp_path / "out" / "choice.json").read_text(encoding="utf-8"))
    assert ["p · Write"] == [each["of"] for each in chosen if each["setting"] == "timeout_ms"]
    text = page.read_text(encoding="utf-8")
    assert "<h3>p · Poll</h3><p>No timeout is advised: an expiry or a cancellation is a normal end" in text


@pytest.mark.parametrize("schema", [JOURNAL, TRACE])
def test_options_of_the_whatif_say_otherwise(engine, recorded, tmp_path, schema):
    """With `--expiry-failure` a type gets advice again, and with `--expiry-normal` another type gets none."""
    normal = Normal(expiry=["Write"], expiry_failure=["Poll"])
    whatif(engine([str(recorded / schema.name)], schema=schema), tmp_path / "out", GRID, normal=normal)
    chosen = json.loads((tmp_path / "out" / "choice.json").read_text(encoding="utf-8"))
    assert ["p · Poll"] == [each["of"] for each in chosen if each["setting"] == "timeout_ms"]


def test_summary_counts_normal_ends_as_good(recorded, capsys):
    """`purgatory journal summary` takes them from the records, and its options say otherwise."""

    def well(*options):
        assert 0 == journal_main(["summary", "--json", *options, str(recorded / "journal")])
        kinds = json.loads(capsys.readouterr().out)["kinds"]
        return {kind["type"]: round(kind["ended_well"], 3) for kind in kinds}

    assert {"Write": 0.333, "Poll": 1.0, "Lease": 1.0} == well()
    options = ["--expiry-normal", "Write", "--expiry-failure", "Poll", "--cancel-failure", "Lease"]
    assert {"Write": 1.0, "Poll": 0.333, "Lease": 0.0} == well(*options)


@pytest.mark.parametrize("command", ["summary", "report", "whatif"])
def test_type_in_two_opposite_options_is_rejected(recorded, tmp_path, capsys, command):
    """A type cannot be named by `--expiry-normal` and `--expiry-failure`. The error is one line."""
    journal, out = str(recorded / "journal"), ["--out", str(tmp_path / "out")]
    options = ["--expiry-normal", "Poll", "--expiry-failure", "Poll"]
    if command == "summary":
        assert 2 == journal_main([command, journal, *options])
    else:
        assert 2 == main([command, "--journal", journal, *out, *options])
    said = capsys.readouterr().err
    assert "--expiry-failure must be another type than --expiry-normal, got 'Poll'\n" in said
    assert 1 == said.count("\n")


def test_replay_says_which_operations_ended_well(engine, recorded, tmp_path):
    """An answer is well if it is no expiry, or an expiry that is a normal end. A trace without events answers none."""
    replay(engine([str(recorded / "trace")], schema=TRACE), str(tmp_path / "out"), keep_us=None)
    rows = pq.read_table(tmp_path / "out" / "answers").to_pylist()
    assert {("expired", False): 300, ("expired", True): 150} == Counter(
        (row["outcome"], row["ended_well"]) for row in rows
    )


@pytest.mark.spark
def test_stream_says_which_operations_ended_well(spark, tmp_path):
    """The stream's answers say the same as the replay's: with events that answer some operations, and for expiries."""
    with Trace(tmp_path / "trace", when_full="wait") as trace:
        observer = trace.observer("p", lambda operation: dict.fromkeys(operation.keys, 1))
        purgatory = DelayedOperationPurgatory("p", observers=[observer])
        for number in range(20):
            for kind in (Write, Poll):
                purgatory.try_complete_else_watch(kind(60_000), [f"{kind.__name__}-{number}"])
                if number % 3 == 0:
                    trace.event("p", f"{kind.__name__}-{number}", 1)
        purgatory.shutdown("cancel")
        trace._put((FLUSH, "", None, (), time.monotonic_ns() + 10**12, 0, (), "", None, None, None))
    places = [str(tmp_path / name) for name in ("trace", "streamed", "checkpoint")]
    stream.run(spark, *places, stream.StreamSettings(once=True, buckets=2, partitions=2))
    columns = ["operation", "outcome", "ended_well"]
    streamed = stream.answers(spark, places[1]).select(*columns).collect()
    replay(Local([places[0]], schema=TRACE), str(tmp_path / "replayed"), keep_us=None)
    replayed = pq.read_table(tmp_path / "replayed" / "answers", columns=columns).to_pylist()
    assert sorted(tuple(row.values()) for row in replayed) == sorted(map(tuple, streamed))
    assert {("satisfied", True): 14, ("expired", True): 13, ("expired", False): 13} == Counter(
        (row["outcome"], row["ended_well"]) for row in streamed
    )


@pytest.mark.spark
def test_monitor_counts_no_normal_end_as_a_failure(spark, recorded):
    """The monitor's expiry share, and its `failed`, are of those operations whose records do not call it normal."""
    (segment,) = (recorded / "journal").glob("*.parquet")
    rows = monitor.windows(spark.read.parquet(str(segment)), 86_400, 1).collect()
    assert {("Write", 100, 100, 0.667), ("Poll", 100, 0, 0.0), ("Lease", 0, 0, 0.0)} == {
        (row["type"], row["expired"], row["failed"], round(row["expiry_share"], 3)) for row in rows
    }
