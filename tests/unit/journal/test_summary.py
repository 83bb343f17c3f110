"""The quick look at a journal."""

import io
import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from purgatory import DelayedOperationPurgatory, _cli
from purgatory.journal import Journal, Trace
from purgatory.journal.cli import main
from purgatory.journal.records import Record
from purgatory.journal.records.folder import open_name
from purgatory.journal.summary import Normal, as_text, records_of, summarize, summarize_source
from tests.support import Waiting
from timer import MockTimer


def record(seq=0, **values):
    usual = {
        "purgatory": "fetch",
        "type": "Fetch",
        "keys": ("a",),
        "instance": "",
        "created": 1_000_000,
        "finished": 1_000_000,
        "delay_ms": 500,
        "outcome": "satisfied",
        "checks": 2,
    }
    return Record(seq=seq, **{**usual, **values})


def waited(ms, **values):
    return record(created=0, finished=round(ms * 1000), **values)


def test_kinds_are_counted_by_purgatory_and_type():
    """Operations are counted by purgatory and type, those of which there are most first, and by outcome."""
    summary = summarize(
        [record(), record(outcome="expired", error="KeyError()"), record(type="Join", checks=5), record(checks=3)]
    )
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
    """Immediate operations are counted, and are in no percentile."""
    (kind,) = summarize([waited(0, outcome="immediate"), waited(8)]).kinds
    assert (2, 8_000) == (kind.records, kind.wait_us[50])
    (kind,) = summarize([waited(0, outcome="immediate")]).kinds
    assert {} == kind.wait_us


def test_hottest_keys_come_first():
    """Keys are named by how many operations were watched under them, as many as asked for."""
    summary = summarize([record(keys=("a", "b")), record(keys=("b",)), record(keys=("c", "b"))], top=2)
    assert [("fetch", "b", 3, 1.0), ("fetch", "a", 1, 1 / 3)] == [attrs.astuple(each) for each in summary.keys]
    assert summary.keys_exact


def test_a_key_of_two_purgatories_is_two_keys():
    """One key in two purgatories is two lists of waiters, each with its share of its purgatory's operations."""
    summary = summarize([record(), record(), record(keys=("b",)), *[record(purgatory="produce")] * 4])
    found = [attrs.astuple(each) for each in summary.keys]
    assert [("produce", "a", 4, 1.0), ("fetch", "a", 2, 2 / 3), ("fetch", "b", 1, 1 / 3)] == found
    assert ["produce", "a", "4", "100.0", "%"] == as_text(summary, "journal").splitlines()[-3].split()


def test_records_that_can_not_be_true_are_left_out_and_counted(tmp_path, said):
    """What lacks a figure, or ends before it began, is in no figure but the count of such. A null key is no key."""
    whole = {"seq": 0, "purgatory": "p", "type": "T", "keys": ["k", None], "instance": "", "created": 0, "finished": 5}
    whole |= {"delay_ms": 1, "outcome": "expired", "checks": 1}
    wrong = [{name: None} for name in ("created", "finished", "delay_ms", "checks", "purgatory", "outcome")]
    wrong += [{"checks": "many"}, {"checks": -1}, {"finished": -1}]
    wrong += [{"outcome": "lost"}, {"finished": 10**18}, {"created": -(10**18)}]  # the report rejects these, too
    lines = [whole, {**whole, "type": None, "keys": [None]}, *({**whole, **each} for each in wrong)]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    summary = summarize(records_of(tmp_path / "lines.jsonl"))
    assert (2, len(wrong)) == (summary.records, summary.aside)
    assert [("p", "k", 1, 0.5)] == [attrs.astuple(each) for each in summary.keys]
    assert "12 more can't be true, and are left out" in said(0, "summary", tmp_path / "lines.jsonl")
    (tmp_path / "lines.jsonl").write_text(json.dumps({**whole, "checks": None}))
    assert "holds no record that can be true" in said(2, "summary", tmp_path / "lines.jsonl")


def test_more_keys_than_can_be_counted_are_said_to_be_inexact():
    """With too many different keys the rare ones are forgotten, the hot ones are not, and that is said."""
    rows = [record(keys=("hot", f"session-{number}")) for number in range(1_000)]
    summary = summarize(rows, top=1, most_keys=100)
    assert [("fetch", "hot", 1_000, 1.0)] == [attrs.astuple(each) for each in summary.keys]
    assert not summary.keys_exact


def test_folder_is_summarised_for_people(tmp_path, write, said):
    """`summary` prints a table of the kinds and one of the keys."""
    write(tmp_path, 100)
    head, _, titles, fetch, _, _, first, second = said(0, "summary", tmp_path, "--top", "2").splitlines()
    assert head.startswith(f"{tmp_path}: 100 records of ")
    assert ["purgatory", "type", "records"] == titles.split()[:3]
    assert ["fetch", "DelayedFetch", "100", "0.0", "%", "100.0", "%"] == fetch.split()[:7]
    assert ["fetch", "consumer-0", "34"] == first.split()[:3]
    assert ["fetch", "consumer-1"] == second.split()[:2]


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
    """Operations without a record are no gap, and are counted all the same."""
    with Journal(tmp_path, interval_ms=60_000, capacity=4) as journal:
        finish(journal, 10)
    assert "6 more were dropped by the writer, and have no record" == said(0, "summary", tmp_path).splitlines()[1]
    assert 6 == summarize_source(tmp_path).dropped


def test_json_lines_say_the_same(tmp_path, write, monkeypatch, said):
    """What `tail` prints can be summarised, from a file and from the standard input, as the folder itself."""
    write(tmp_path / "journal", 50)
    lines = said(0, "tail", "-n", "-1", tmp_path / "journal")
    (tmp_path / "lines.jsonl").write_text(lines)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    answers = []
    for source in (tmp_path / "journal", tmp_path / "lines.jsonl", "-"):
        answers.append(json.loads(said(0, "summary", "--json", source)))
    assert 50 == answers[0]["records"]
    assert answers[0] == answers[1] == answers[2]


def test_column_of_a_later_version_is_left_out(tmp_path):
    """JSON lines with a column that this reader doesn't know are read without it."""
    line = {"seq": 0, "purgatory": "p", "type": "T", "keys": ["k"], "instance": "", "created": 0, "finished": 5}
    line |= {"delay_ms": 1, "outcome": "expired", "checks": 1, "mood": "fine"}
    (tmp_path / "lines.jsonl").write_text(json.dumps(line) + "\n\n")
    assert [("k",)] == [row.keys for row in records_of(tmp_path / "lines.jsonl")]


@pytest.mark.parametrize("line", ["no json", "[1]", "{}", '{"keys": 3}'])
def test_line_that_is_no_record_is_named(tmp_path, line, said):
    """Something else than JSON lines of a journal is rejected with the line's number."""
    (tmp_path / "lines.jsonl").write_text(line)
    assert "line 1: no record" in said(2, "summary", tmp_path / "lines.jsonl")


@pytest.mark.parametrize(
    "change", [{"type": 7}, {"type": ["T"]}, {"keys": [0]}, {"keys": [["k"]]}, {"keys": None}, {"checks": "many"}, None]
)
def test_any_json_is_counted_or_refused_with_its_line(tmp_path, capsys, change):
    """A line that another program wrote is a record, one that cannot be true, or an error that names the line."""
    line = {"seq": 0, "purgatory": "p", "type": "T", "keys": ["k"], "instance": "", "created": 0, "finished": 5}
    line |= {"delay_ms": 1, "outcome": "expired", "checks": 1}
    text = "[" * 100_000 if change is None else json.dumps(line | change)
    (tmp_path / "records.jsonl").write_text(f"{json.dumps(line)}\n{text}\n")
    status = main(["summary", str(tmp_path / "records.jsonl")])
    assert ("line 2: no record" in capsys.readouterr().err) == (status == 2)


@pytest.mark.parametrize("name", ["some.parquet", "some.frames", "some.txt"])
def test_other_file_is_no_journal(tmp_path, name, said):
    """A file of something else is rejected in a line."""
    (tmp_path / name).write_bytes(b"\xffsomething else")
    assert 1 == len(said(2, "summary", tmp_path / name).splitlines())


def test_trace_is_no_journal(tmp_path, said):
    """A trace says nothing of how operations ended, and is rejected by what to do instead."""
    with Trace(tmp_path) as trace:
        trace.event("fetch", "k", 1)
    assert "pipeline replay" in said(2, "summary", tmp_path)


def test_empty_journal_is_said_to_be_empty(tmp_path, said):
    """A folder without a record is named, not divided by."""
    with Journal(tmp_path):
        pass
    assert "no" in said(2, "summary", tmp_path)
    assert "nowhere" in said(2, "summary", tmp_path / "nowhere")


def test_one_file_can_be_summarised(tmp_path, write, said):
    """One segment of a folder is a source, too."""
    write(tmp_path, 10)
    (segment,) = [path for path in tmp_path.iterdir() if path.suffix in (".frames", ".parquet")]
    assert 10 == json.loads(said(0, "summary", "--json", segment))["records"]


@pytest.mark.parametrize("top", ["-1", "0", "few"])
def test_number_of_keys_is_checked(tmp_path, top, capsys):
    """Fewer than one key, or no number, is rejected in a line. A negative one dropped the last of them."""
    with pytest.raises(SystemExit):
        main(["summary", str(tmp_path), "--top", top])
    assert f"argument --top: must be an integer of at least 1, got '{top}'" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("command", [["summary"], ["tail", "-n", "-1"], ["verify"]])
def test_output_that_finds_no_room_is_an_error_in_a_line(tmp_path, write, command):
    """Where what is said can't be written, that is one line, and no traceback, and not well."""
    write(tmp_path, 100)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "purgatory", "journal", *command, str(tmp_path)],
            cwd=Path(__file__).resolve().parents[3],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (2, "purgatory journal: [Errno 28] No space left on device\n") == (done.returncode, done.stderr)


def test_journal_that_cannot_be_read_is_an_error_in_a_line(tmp_path, write, monkeypatch, said):
    """A disk that fails while a journal is read costs one line, too."""
    write(tmp_path, 10)

    def failing(*_, **__):
        raise OSError(5, "Input/output error", "a segment")
        yield

    monkeypatch.setattr("purgatory.journal.summary.source.read", failing)
    assert "purgatory journal: [Errno 5] Input/output error: 'a segment'\n" == said(2, "summary", tmp_path)


WITHOUT_PYARROW = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
sys.meta_path.insert(0, Absent())
from purgatory._cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_pyarrow(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, "journal", *arguments], capture_output=True, text=True, check=False
    )


def test_frames_need_no_extra(tmp_path, finish):
    """Frames that are still being written are summarised without pyarrow."""
    with Journal(tmp_path) as journal:
        finish(journal, 10)
        assert journal.flush()
        done = without_pyarrow("summary", str(tmp_path))
    assert (0, "") == (done.returncode, done.stderr)
    assert "10 records" in done.stdout


def test_missing_extra_is_named_in_a_line(tmp_path, write):
    """Where segments are Parquet and pyarrow is missing, one line says what to install, and there is no traceback."""
    write(tmp_path, 10)
    assert [path for path in tmp_path.iterdir() if path.suffix == ".parquet"]
    done = without_pyarrow("summary", str(tmp_path))
    assert 2 == done.returncode
    assert "" == done.stdout
    assert 1 == len(done.stderr.splitlines())
    assert f"pip install '{_cli.NAME}[parquet]'" in done.stderr


def test_operations_that_a_shutdown_ended_are_in_no_statistic(tmp_path, capsys, said):
    """A shutdown says nothing about how operations end or how long they wait: they are counted apart."""
    with Journal(tmp_path, when_full="wait") as journal, MockTimer() as timer:
        observer = journal.observer("p", now_ns=timer.now_ns)
        with DelayedOperationPurgatory("p", timer=timer, observers=[observer]) as purgatory:
            for delay_ms in (100, 60_000, 60_000):
                purgatory.try_complete_else_watch(Waiting(delay_ms), ["k"])
            answered = Waiting(60_000)
            purgatory.try_complete_else_watch(answered, ["k"])
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


def test_normal_ends_are_good_ends(tmp_path, said):
    """A lease that ends by cancel, and a poll that expires, end well if the caller says that this is normal."""
    rows = [record(type="Lease", outcome="cancelled"), record(type="Poll", outcome="expired")]
    rows += [record(type="Join", outcome="cancelled")]

    assert {"Lease": 0.0, "Poll": 0.0, "Join": 0.0} == {kind.type: kind.ended_well for kind in summarize(rows).kinds}
    normal = Normal(expiry=frozenset({"Poll"}), cancel=frozenset({"Lease"}))
    kinds = summarize(rows, normal=normal).kinds
    assert {"Lease": 1.0, "Poll": 1.0, "Join": 0.0} == {kind.type: kind.ended_well for kind in kinds}
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(attrs.asdict(row)) for row in rows))
    arguments = ["summary", "--json", "--cancel-normal", "Lease", "--expiry-normal", "Poll"]
    told = {
        kind["type"]: kind["ended_well"] for kind in json.loads(said(0, *arguments, tmp_path / "lines.jsonl"))["kinds"]
    }
    assert {"Lease": 1.0, "Poll": 1.0, "Join": 0.0} == told


def test_folder_of_several_journals(tmp_path, write, said):
    """A folder of journals is summarised and verified as a whole. A trace beside them is not a journal."""
    write(tmp_path / "broker-1", 30)
    write(tmp_path / "broker-2", 20)
    with Trace(tmp_path / "trace") as trace:
        trace.event("p", "k", 1)
    (tmp_path / "empty").mkdir()

    assert 50 == len(list(records_of(tmp_path)))
    head, journals, *_ = said(0, "summary", tmp_path).splitlines()
    assert head.startswith(f"{tmp_path}: 50 records of ")
    assert "2 journals: broker-1, broker-2" == journals
    out = said(0, "verify", tmp_path).splitlines()
    assert [f"{tmp_path}/broker-1:", f"{tmp_path}/broker-2:"] == [line for line in out if line.endswith(":")]
    assert ["sound", "sound"] == [line for line in out if "sound" in line]
    assert f"no journal in {tmp_path / 'empty'}: it holds no segment" in said(2, "summary", tmp_path / "empty")


def test_a_folder_with_a_journal_and_a_trace_is_not_left_out(tmp_path, write, said):
    """Two kinds in one folder are a mistake. A check of the folders around it finds this."""
    write(tmp_path / "broker-1", 3)
    write(tmp_path / "broker-2", 2)
    with Trace(tmp_path / "trace") as trace:
        trace.event("p", "k", 1)
    (segment,) = (tmp_path / "trace").glob("trace-*")
    segment.rename(tmp_path / "broker-2" / segment.name)

    assert 5 == len(list(records_of(tmp_path, allow_gaps=True)))
    assert f"{tmp_path / 'broker-2'}: rows 0 to 0 are in both journal-" in said(2, "summary", tmp_path)
    out = said(1, "verify", tmp_path).splitlines()
    assert [f"{tmp_path}/broker-1:", f"{tmp_path}/broker-2:"] == [line for line in out if line.endswith(":")]
    assert ["sound", "NOT sound"] == [line for line in out if "sound" in line]


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


def test_a_journal_and_a_trace_with_the_same_numbers_are_not_sound(tmp_path, write, said):
    """Segments of two kinds are two segments, also where their numbers are the same."""
    write(tmp_path, 1)
    with Trace(tmp_path / "trace") as trace:
        trace.event("p", "k", 1)
    (segment,) = (tmp_path / "trace").glob("trace-*")
    segment.rename(tmp_path / segment.name)

    assert "0 missing, 1 doubled" in said(1, "verify", tmp_path)
    assert "rows 0 to 0 are in both journal-" in said(2, "summary", tmp_path)


def test_command_for_one_journal_names_those_in_the_folder(tmp_path, write, said):
    """A command that reads one journal says which journals are in a folder of several."""
    write(tmp_path / "broker-1", 3)
    write(tmp_path / "broker-2", 2)
    assert "it holds no segment; name one of those in it: broker-1, broker-2\n" in said(2, "tail", tmp_path)


def test_range_of_time(tmp_path, said):
    """``--since`` and ``--until`` select operations by when they left, the first included and the second excluded."""
    lines = "".join(
        json.dumps(attrs.asdict(record(seq=hour, created=0, finished=hour * 3_600_000_000))) + "\n"
        for hour in range(1, 6)
    )
    path = tmp_path / "records.jsonl"
    path.write_text(lines, encoding="utf-8")

    def hours(*arguments):
        return json.loads(said(0, "summary", path, "--json", *arguments))["records"]

    assert 5 == hours()
    assert 3 == hours("--since", "1970-01-01T03:00:00Z")
    assert 2 == hours("--since", "1970-01-01T03:00:00Z", "--until", "1970-01-01T05:00:00Z")
    assert "holds no record of an operation that left in this range of time" in said(
        2, "summary", path, "--since", "1h"
    )


def test_range_of_time_in_a_folder(tmp_path, write):
    """A range leaves out records of a folder, and reports none of them as missing."""
    write(tmp_path, 5)
    everything = summarize_source(tmp_path)
    later = summarize_source(tmp_path, since_us=everything.last_us + 1)
    assert (0, ()) == (later.records, later.missing)
    assert everything.records == summarize_source(tmp_path, since_us=everything.first_us).records
