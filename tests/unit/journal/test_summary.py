"""The quick look at a journal."""

import io
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import attrs
import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.journal import Journal, Trace
from purgatory.journal._cli import main
from purgatory.journal.records import Record
from purgatory.journal.records.folder import open_name
from purgatory.journal.summary import Normal, as_text, records_of, summarize, summarize_source
from tests.support import Waiting, output_of, park_all
from timer import MockTimer

ROOT = Path(__file__).resolve().parents[3]


def record(seq=0, **values):
    usual = {"purgatory": "fetch", "type": "Fetch", "keys": ("a",), "instance": "", "delay_ms": 500, "checks": 2}
    usual |= {"created": 1_000_000, "finished": 1_000_000, "outcome": "satisfied"}
    return Record(seq=seq, **{**usual, **values})


def waited(ms, **values):
    return record(created=0, finished=round(ms * 1000), **values)


#: A record as another program may write it, in JSON.
LINE = {"seq": 0, "purgatory": "p", "type": "T", "keys": ["k"], "instance": "", "created": 0, "finished": 5}
LINE |= {"delay_ms": 1, "outcome": "expired", "checks": 1}


@pytest.fixture
def lines(tmp_path):
    """Write records, or text as it is, as lines of a file. Returns its path."""

    def lines(*records):
        path = tmp_path / "lines.jsonl"
        path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records))
        return path

    return lines


@pytest.fixture
def traced(tmp_path):
    """A folder with a trace of one row, and its segment."""
    with Trace(tmp_path / "trace") as trace:
        trace.event("p", "k", 1)
    (segment,) = (tmp_path / "trace").glob("trace-*")
    return segment


def test_kinds_are_counted_by_purgatory_and_type():
    failed = record(outcome="expired", error="KeyError()")
    summary = summarize([record(), failed, record(type="Join", checks=5), record(checks=3)])
    fetch, join = summary.kinds
    assert ("fetch", "Fetch", 3) == (fetch.purgatory, fetch.type, fetch.records)
    assert {"immediate": 0, "satisfied": 2, "expired": 1, "cancelled": 0, "forced": 0} == fetch.outcomes
    assert (1, 7 / 3) == (fetch.errors, fetch.checks)
    assert ("Join", 1, 5.0) == (join.type, join.records, join.checks)
    assert 4 == summary.records


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (range(1, 101), {50: 50_000, 95: 95_000, 99: 99_000, 100: 100_000}),
        ([7], {50: 7_000, 95: 7_000, 99: 7_000, 100: 7_000}),
        ([1, 2, 3], {50: 2_000, 95: 3_000, 99: 3_000, 100: 3_000}),
    ],
)
def test_percentiles_are_waits_that_happened(waits, expected):
    """A percentile is the smallest wait which that many of a hundred don't exceed, in whatever order they came."""
    (kind,) = summarize([waited(ms) for ms in reversed(waits)]).kinds
    assert expected == kind.wait_us


def test_names_keep_to_their_cell():
    """A purgatory's name that breaks lines, moves the cursor, fills the page or is empty does so in no table."""
    names = ["a\nb", "\x1b[31mred", "受付", "x" * 500, ""]
    text = as_text(summarize([record(purgatory=name) for name in names]), "journal")
    rows = text.splitlines()[3:8]
    assert {"'a\\nb'", "'\\x1b[31mred'", "受付", "x" * 59 + "…", "''"} == {row.split()[0] for row in rows}
    assert "\x1b" not in text


def test_operations_that_did_not_wait_say_nothing_about_waits():
    (kind,) = summarize([waited(0, outcome="immediate"), waited(8)]).kinds
    assert (2, 8_000) == (kind.records, kind.wait_us[50])
    (kind,) = summarize([waited(0, outcome="immediate")]).kinds
    assert {} == kind.wait_us


def test_hottest_keys_come_first():
    """Keys are named by how many operations were watched under them, as many as asked for, by purgatory."""
    summary = summarize([record(keys=("a", "b")), record(keys=("b",)), record(keys=("c", "b"))], top=2)
    assert [("fetch", "b", 3, 1.0), ("fetch", "a", 1, 1 / 3)] == [attrs.astuple(each) for each in summary.keys]
    assert summary.keys_exact
    summary = summarize([record(), record(), record(keys=("b",)), *[record(purgatory="produce")] * 4])
    found = [attrs.astuple(each) for each in summary.keys]
    assert [("produce", "a", 4, 1.0), ("fetch", "a", 2, 2 / 3), ("fetch", "b", 1, 1 / 3)] == found
    assert ["produce", "a", "4", "100.0", "%"] == as_text(summary, "journal").splitlines()[-3].split()


def test_records_that_can_not_be_true_are_left_out_and_counted(lines, said):
    """What lacks a figure, or ends before it began, is in no figure but the count of such. A null key is no key."""
    whole = {**LINE, "keys": ["k", None]}
    wrong = [{name: None} for name in ("created", "finished", "delay_ms", "checks", "purgatory", "outcome")]
    wrong += [{"checks": "many"}, {"checks": -1}, {"finished": -1}]
    wrong += [{"outcome": "lost"}, {"finished": 10**18}, {"created": -(10**18)}]  # the report rejects these, too
    path = lines(whole, {**whole, "type": None, "keys": [None]}, *({**whole, **each} for each in wrong))
    summary = summarize(records_of(path))
    assert (2, len(wrong)) == (summary.records, summary.aside)
    assert [("p", "k", 1, 0.5)] == [attrs.astuple(each) for each in summary.keys]
    assert "12 more can't be true, and are left out" in said(0, "summary", path)
    assert "holds no record that can be true" in said(2, "summary", lines({**whole, "checks": None}))


def test_more_keys_than_can_be_counted_are_said_to_be_inexact():
    """With too many different keys the rare ones are forgotten, the hot ones are not, and that is said."""
    rows = [record(keys=("hot", f"session-{number}")) for number in range(1_000)]
    summary = summarize(rows, top=1, most_keys=100)
    assert [("fetch", "hot", 1_000, 1.0)] == [attrs.astuple(each) for each in summary.keys]
    assert not summary.keys_exact


def test_folder_is_summarised_for_people(tmp_path, write, said):
    """So is one file of it."""
    write(tmp_path, 100)
    head, _, titles, fetch, _, _, first, second = said(0, "summary", tmp_path, "--top", "2").splitlines()
    assert head.startswith(f"{tmp_path}: 100 records of ")
    assert ["purgatory", "type", "records"] == titles.split()[:3]
    assert ["fetch", "DelayedFetch", "100", "0.0", "%", "100.0", "%"] == fetch.split()[:7]
    assert ["fetch", "consumer-0", "34"] == first.split()[:3]
    assert ["fetch", "consumer-1"] == second.split()[:2]
    (segment,) = tmp_path.glob("journal-*")
    assert 100 == json.loads(said(0, "summary", "--json", segment))["records"]


def test_a_folder_with_a_hole_is_refused_or_says_what_is_missing(tmp_path, write, said):
    """As a report, a summary is of all, or an error. With --allow-gaps it says what it is not about."""
    for _ in range(5):
        write(tmp_path, 20)
    segments = sorted(tmp_path.glob("journal-*"))
    segments[0].unlink()  # the oldest may have been deleted
    assert "missing" not in said(0, "summary", tmp_path)
    segments[2].unlink()
    segments[4].unlink()
    (tmp_path / open_name(100)).touch()
    assert "rows 40 to 59 are missing" in said(2, "summary", tmp_path)
    head, missing, *_ = said(0, "summary", "--allow-gaps", tmp_path).splitlines()
    assert head.startswith(f"{tmp_path}: 40 records of ")
    assert "40 are missing: 40 to 59, 80 to 99" == missing
    assert [[40, 59], [80, 99]] == json.loads(said(0, "summary", "--allow-gaps", "--json", tmp_path))["missing"]


def test_what_the_writer_dropped_is_said(tmp_path, finish, said):
    with Journal(tmp_path, interval_ms=60_000, capacity=4) as journal:
        finish(journal, 10)
    assert "6 more were dropped by the writer, and have no record" == said(0, "summary", tmp_path).splitlines()[1]
    assert 6 == summarize_source(tmp_path).dropped


def test_json_lines_say_the_same(tmp_path, write, lines, monkeypatch, said):
    """What ``tail`` prints can be summarised, from a file and from the standard input, as the folder itself."""
    write(tmp_path / "journal", 50)
    text = said(0, "tail", "-n", "-1", tmp_path / "journal")
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    folder, file, stdin = (
        json.loads(said(0, "summary", "--json", source)) for source in (tmp_path / "journal", lines(text), "-")
    )
    assert 50 == folder["records"]
    assert folder == file == stdin


def test_column_of_a_later_version_is_left_out(lines):
    assert [("k",)] == [row.keys for row in records_of(lines({**LINE, "mood": "fine"}, "", ""))]


@pytest.mark.parametrize(
    "line",
    [
        *({"type": 7}, {"type": ["T"]}, {"keys": [0]}, {"keys": [["k"]]}, {"keys": None}, {"checks": "many"}),
        *("no json", "[1]", "{}", '{"keys": 3}', "[" * 100_000),
    ],
    ids=lambda line: str(line)[:20],
)
def test_any_line_is_counted_or_refused_with_its_number(lines, capsys, line):
    """A line that another program wrote is a record, one that cannot be true, or an error that names the line."""
    status = main(["summary", str(lines(LINE, line if isinstance(line, str) else LINE | line))])
    assert ("line 2: no record" in capsys.readouterr().err) == (status == 2)
    assert status == 2 or isinstance(line, dict)


@pytest.mark.parametrize("name", ["some.parquet", "some.frames", "some.txt"])
def test_other_file_is_no_journal(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"\xffsomething else")
    assert 1 == len(said(2, "summary", tmp_path / name).splitlines())


def test_trace_is_no_journal(traced, said):
    """A trace says nothing of how operations ended, and is rejected by what to do instead."""
    assert "pipeline replay" in said(2, "summary", traced.parent)


def test_empty_journal_is_said_to_be_empty(tmp_path, said):
    Journal(tmp_path).close()
    assert "it holds no segment" in said(2, "summary", tmp_path)


@pytest.mark.parametrize("top", ["-1", "0", "few"])
def test_number_of_keys_is_checked(tmp_path, top, capsys):
    with pytest.raises(SystemExit):
        main(["summary", str(tmp_path), "--top", top])
    assert f"argument --top: must be an integer of at least 1, got '{top}'" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("command", [["summary"], ["tail", "-n", "-1"], ["verify"]])
def test_output_that_finds_no_room_is_an_error_in_a_line(tmp_path, write, command):
    write(tmp_path, 100)
    words = [sys.executable, "-m", "purgatory", "journal", *command, str(tmp_path)]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (2, "purgatory journal: [Errno 28] No space left on device\n") == (done.returncode, done.stderr)


def test_journal_that_cannot_be_read_is_an_error_in_a_line(tmp_path, write, monkeypatch, said):
    write(tmp_path, 10)
    failing = Mock(side_effect=OSError(5, "Input/output error", "a segment"))
    monkeypatch.setattr("purgatory.journal.summary.source.read", failing)
    assert "purgatory journal: [Errno 5] Input/output error: 'a segment'\n" == said(2, "summary", tmp_path)


def test_frames_need_no_extra(tmp_path, put):
    """A folder without Parquet is summarised where pyarrow is missing."""
    with Journal(tmp_path) as journal:
        put(journal, 10)
        command = f"from purgatory._cli import main; sys.exit(main(['journal', 'summary', {str(tmp_path)!r}]))"
        shown, complained = output_of(f"import sys; sys.modules['pyarrow'] = None; {command}")
    assert ("", True) == (complained, "10 records" in shown)


def test_operations_that_a_shutdown_ended_are_in_no_statistic(tmp_path, capsys, said):
    """A shutdown says nothing about how operations end or how long they wait: they are counted apart."""
    with Journal(tmp_path, when_full="wait") as journal, MockTimer() as timer:
        observer = journal.observer("p", now_ns=timer.now_ns)
        with DelayedOperationPurgatory("p", timer=timer, observers=[observer]) as purgatory:
            _, _, _, answered = park_all(purgatory, [Waiting(ms) for ms in (100, 60_000, 60_000, 60_000)])
            timer.advance_clock(100)
            answered.force_complete()
        journal.flush()
    (kind,) = summarize(records_of(tmp_path)).kinds

    assert (4, 2, 1, 1) == (kind.records, kind.shut_down, kind.outcomes["expired"], kind.outcomes["forced"])
    assert {100_000} == set(kind.wait_us.values())
    assert 0.5 == kind.ended_well
    capsys.readouterr()  # log lines, where another test has configured structlog
    *_, shut_down, well, percent = said(0, "summary", tmp_path).splitlines()[3].split()
    assert ("2", "50.0", "%") == (shut_down, well, percent)


def test_normal_ends_are_good_ends(lines, said):
    """A lease that ends by cancel, and a poll that expires, end well if the caller says that this is normal."""
    rows = [record(type="Lease", outcome="cancelled"), record(type="Poll", outcome="expired")]
    rows += [record(type="Join", outcome="cancelled")]
    assert {"Lease": 0.0, "Poll": 0.0, "Join": 0.0} == {kind.type: kind.ended_well for kind in summarize(rows).kinds}
    normal = Normal(expiry=frozenset({"Poll"}), cancel=frozenset({"Lease"}))
    well = {"Lease": 1.0, "Poll": 1.0, "Join": 0.0}
    assert well == {kind.type: kind.ended_well for kind in summarize(rows, normal=normal).kinds}
    arguments = ["summary", "--json", "--cancel-normal", "Lease", "--expiry-normal", "Poll"]
    told = json.loads(said(0, *arguments, lines(*map(attrs.asdict, rows))))
    assert well == {kind["type"]: kind["ended_well"] for kind in told["kinds"]}


@pytest.fixture
def two_journals(tmp_path, write, traced):
    """A folder with the journals of two brokers, a trace, and an empty folder."""
    write(tmp_path / "broker-1", 30)
    write(tmp_path / "broker-2", 20)
    (tmp_path / "empty").mkdir()
    return tmp_path


def verified(folder, out):
    """What ``verify`` says of each of two journals."""
    lines = out.splitlines()
    assert [f"{folder}/broker-1:", f"{folder}/broker-2:"] == [line for line in lines if line.endswith(":")]
    return [line for line in lines if "sound" in line]


def test_folder_of_several_journals(two_journals, said):
    assert 50 == len(list(records_of(two_journals)))
    head, journals, *_ = said(0, "summary", two_journals).splitlines()
    assert head.startswith(f"{two_journals}: 50 records of ")
    assert "2 journals: broker-1, broker-2" == journals
    assert ["sound", "sound"] == verified(two_journals, said(0, "verify", two_journals))
    empty = two_journals / "empty"
    assert f"no journal in {empty}: it holds no segment" in said(2, "summary", empty)
    assert "it holds no segment; name one of those in it: broker-1, broker-2" in said(2, "tail", two_journals)


def test_a_folder_with_a_journal_and_a_trace_is_not_left_out(two_journals, traced, said):
    both = two_journals / "broker-2"
    traced.rename(both / traced.name)
    assert 50 == len(list(records_of(two_journals, allow_gaps=True)))
    assert f"{both}: rows 0 to 0 are in both journal-" in said(2, "summary", two_journals)
    assert "0 missing, 1 doubled" in said(1, "verify", both)
    assert ["sound", "NOT sound"] == verified(two_journals, said(1, "verify", two_journals))


def test_a_folder_with_doubled_numbers_is_refused_or_says_which(tmp_path, write, capsys, said):
    """With the files of two journals in one folder, no number is counted twice, and none is left out without a word."""
    write(tmp_path, 50)
    write(tmp_path / "other", 20)
    write(tmp_path / "other", 40)
    longest, *_ = tmp_path.glob("journal-*")
    shorter, later = sorted(path.rename(tmp_path / path.name) for path in (tmp_path / "other").glob("journal-*"))
    for command in ("summary", "tail"):
        assert 2 == main([command, str(tmp_path)])
        names = f"rows 0 to 19 are in both {longest.name} and {shorter.name}: move one of them to another folder"
        assert names in capsys.readouterr().err
    head, twice, *_ = said(0, "summary", "--allow-gaps", tmp_path).splitlines()
    assert head.startswith(f"{tmp_path}: 60 records of ")
    assert "50 are there twice, and are counted once: 0 to 19, 20 to 49" == twice
    shorter.unlink()
    assert [[20, 49]] == json.loads(said(0, "summary", "--allow-gaps", "--json", tmp_path))["doubled"]
    longest.unlink()
    assert 0 == main(["summary", str(tmp_path)])
    assert later.name.endswith("59.parquet")
    assert "twice" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [(None, None, 5), ("1970-01-01T03:00:00Z", None, 3), ("1970-01-01T03:00:00Z", "1970-01-01T05:00:00Z", 2)],
)
def test_range_of_time_has_its_first_instant_and_not_its_last(lines, said, since, until, hours):
    path = lines(*(attrs.asdict(waited(hour * 3_600_000, seq=hour)) for hour in range(1, 6)))
    limits = [*(["--since", since] if since else []), *(["--until", until] if until else [])]
    assert hours == json.loads(said(0, "summary", path, "--json", *limits))["records"]


def test_range_of_time_without_a_record_is_named(lines, said):
    path = lines(attrs.asdict(waited(3_600_000)))
    complained = said(2, "summary", path, "--since", "1h")
    assert "holds no record of an operation that left in this range of time" in complained


def test_range_of_time_in_a_folder(tmp_path, write):
    """Records outside of the range are not reported as missing."""
    write(tmp_path, 5)
    everything = summarize_source(tmp_path)
    later = summarize_source(tmp_path, since_us=everything.last_us + 1)
    assert (0, ()) == (later.records, later.missing)
    assert everything.records == summarize_source(tmp_path, since_us=everything.first_us).records
