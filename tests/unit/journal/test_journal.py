import errno
import os
import threading
import time
from unittest.mock import MagicMock, Mock

import attrs
import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.journal import (
    Journal,
    JournalClock,
    JournalClosed,
    JournalFormat,
    JournalLevel,
    JournalLocked,
    JournalSetting,
    Trace,
    _journal,
    read,
    verify,
)
from purgatory.journal._options import open_file
from purgatory.journal.records.folder import END, dropped, open_name
from tests.support import Waiting, eventually, park, park_all, run_threads, satisfy
from timer import MockTimer


def test_record_holds_what_is_known_of_the_operation(tmp_path, operation):
    with Journal(tmp_path, instance="broker-1") as journal:
        journal.observer("fetch").finished(operation(1, delay_ms=250, checks=7), Outcome.EXPIRED, ValueError("no"))
    (record,) = read(tmp_path)
    assert (0, "fetch", "DelayedFetch", "broker-1") == (record.seq, record.purgatory, record.type, record.instance)
    assert (("(orders, 1)", "consumer-1"), 250, 7) == (record.keys, record.delay_ms, record.checks)
    assert ("expired", "ValueError: no") == (record.outcome, record.error)
    assert 0 <= record.waited_us < 10_000_000


def test_every_thread_s_records_are_written_once(tmp_path, finish):
    with Journal(tmp_path, when_full="wait", patience_ms=10_000, capacity=512, chunk=100) as journal:
        observer = journal.observer("fetch")
        run_threads(*[lambda t=t: [finish(observer, checks=t * 10_000 + n) for n in range(2_000)] for t in range(4)])
    rows = list(read(tmp_path))
    assert list(range(8_000)) == [row.seq for row in rows]
    assert {t * 10_000 + n for t in range(4) for n in range(2_000)} == {row.checks for row in rows}


def test_frames_and_parquet_hold_the_same_rows(tmp_path, write):
    def rows(name, **options):
        write(tmp_path / name, 3_000, **options)
        return [attrs.evolve(row, created=0, finished=0) for row in read(tmp_path / name)]

    assert rows("frames", parquet=False) == rows("parquet", parquet=True)
    assert ["_journal-00000000000000000000-00000000000000002999.frames"] == [
        path.name for path in (tmp_path / "frames").iterdir() if path.name not in {".lock", END}
    ]


def test_second_writer_is_refused(tmp_path, write):
    with Journal(tmp_path), pytest.raises(JournalLocked, match="already being written by process"):
        Journal(tmp_path)
    write(tmp_path, 1)


def test_trace_and_journal_do_not_mix(tmp_path, write):
    write(tmp_path, 1)
    with pytest.raises(JournalFormat, match="give each its own folder"):
        Trace(tmp_path)
    write(tmp_path, 1)


def test_a_journal_does_not_continue_the_open_segment_of_a_trace(tmp_path):
    """A trace whose writer was killed before its first sealing is still a trace."""
    with Trace(tmp_path / "whole", parquet=False) as trace:
        trace.event("produce", "orders", 3)
    (sealed,) = (tmp_path / "whole").glob("_trace-*")
    (tmp_path / "killed").mkdir()
    sealed.rename(tmp_path / "killed" / open_name(0))
    with pytest.raises(JournalFormat, match="holds a trace, not a journal: give each its own folder"):
        Journal(tmp_path / "killed")
    with Trace(tmp_path / "killed") as trace:
        trace.event("produce", "orders", 4)
    assert [(3,), (4,)] == [row.levels for row in read(tmp_path / "killed")]


def test_a_folder_without_locks_is_an_error_of_its_own(tmp_path, monkeypatch):
    """Only a lock that another writer holds means another writer. Some network file systems have no locks."""
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(OSError, match="No locks available"):
        Journal(tmp_path)


def test_closed_journal_refuses_a_flush_and_a_late_observer_harms_nobody(tmp_path, finish, counts):
    journal = Journal(tmp_path)
    observer = journal.observer("fetch")
    journal.close()
    finish(observer)
    with pytest.raises(JournalClosed):
        journal.flush()
    journal.close()
    assert (0, 1, 0) == counts(journal)


def test_operation_without_numbers_is_counted_and_the_next_is_written(tmp_path, finish, put, counts):
    with Journal(tmp_path) as journal:
        put(journal, checks="seven")
        finish(journal)
    assert (1, 1, 0) == counts(journal)


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no name")


def test_an_error_that_has_no_words_is_written_by_its_class(tmp_path, operation):
    with Journal(tmp_path, interval_ms=60_000) as journal:
        for number in range(20):
            error = Speechless() if number == 3 else None
            journal.observer("fetch").finished(operation(number), Outcome.SATISFIED, error)
    errors = [row.error for row in read(tmp_path)]
    assert (20, "Speechless: whose str fails") == (len(errors), errors[3])


@pytest.mark.parametrize("bad", [[0], [19], [3], [3, 4, 11], list(range(1, 20))], ids=repr)
def test_row_that_cannot_be_written_costs_itself_alone(tmp_path, logs, bad, finish, counts):
    with Journal(tmp_path, interval_ms=60_000) as journal:
        observer = journal.observer("fetch", identify=lambda op: Speechless() if op.checks in bad else op.checks)
        finish(observer, 20)
    kept = [number for number in range(20) if number not in bad]
    rows = [(row.seq, row.checks, row.operation) for row in read(tmp_path)]
    assert [(seq, number, str(number)) for seq, number in enumerate(kept)] == rows
    assert (len(kept), len(bad), 0) == counts(journal)
    (line,) = [entry for entry in logs if entry["event"] == "journal.rows_refused"]
    assert (len(bad), "RuntimeError('no name')") == (line["rows"], line["error"])


def test_row_of_a_trace_that_cannot_be_written_costs_itself_alone(tmp_path, counts):
    with Trace(tmp_path, interval_ms=60_000) as trace:
        for number in range(20):
            trace.event("fetch", "k", number, at_ns="soon" if number == 13 else None)
    assert [number for number in range(20) if number != 13] == [row.levels[0] for row in read(tmp_path)]
    assert (19, 1, 0) == counts(trace)


def test_rows_apart_are_kept_while_the_disk_refuses(tmp_path, finish, counts):
    """The rest of a batch with a faulty row waits for the disk as any other row does, in its order."""
    refuse = threading.Event()

    def disk(path):
        file = open_file(path)

        def write(data):
            if refuse.is_set():
                raise OSError(28, "no room")
            return file.write(data)

        return Mock(wraps=file, write=write)

    with Journal(tmp_path, interval_ms=5, open_file=disk) as journal:
        observer = journal.observer("fetch", identify=lambda op: Speechless() if op.checks == 7 else None)
        refuse.set()
        finish(observer, 20)
        assert eventually(lambda: journal.stats().dropped == 1)
        assert not journal.flush(0.2)
        assert 19 == journal.stats().buffered
        refuse.clear()
        assert journal.flush()
    assert [number for number in range(20) if number != 7] == [row.checks for row in read(tmp_path)]
    assert (19, 1, 0) == counts(journal)


@pytest.mark.parametrize("parquet", [True, False])
def test_how_many_rows_were_dropped_is_in_the_journal(tmp_path, parquet, finish, said):
    """The next frame counts the dropped rows, and so does its sealed segment."""
    for told in (7, 14):
        with Journal(tmp_path, interval_ms=60_000, capacity=4, parquet=parquet) as journal:
            observer = journal.observer("fetch", identify=lambda op: Speechless() if op.checks == 1 else None)
            finish(observer, 10)
            assert journal.flush()
            finish(observer, checks=10)
            assert journal.flush()
            assert (4, 7) == (journal.stats().written, journal.stats().dropped)
            assert told == dropped(tmp_path)
        assert told == dropped(tmp_path)
    assert (8, 14, True) == (verify(tmp_path).rows, verify(tmp_path).dropped, verify(tmp_path).ok)
    assert [0, 2, 3, 10] * 2 == [row.checks for row in read(tmp_path)]
    assert list(range(8)) == [row.seq for row in read(tmp_path)]
    assert "14 more were dropped by the writer" in said(0, "verify", tmp_path)
    min(tmp_path.glob("*journal-*")).unlink()
    assert 7 == dropped(tmp_path)


def test_a_journal_that_dropped_nothing_says_nothing(tmp_path, write, said):
    write(tmp_path, 10)
    assert "dropped" not in said(0, "verify", tmp_path)
    assert (0, 0) == (dropped(tmp_path), dropped(tmp_path / "gone"))


def test_what_a_sealed_double_dropped_counts_once(tmp_path, put):
    """Killed between a segment's sealing and its removal, a writer leaves both. Their reports agree."""
    with Journal(tmp_path, interval_ms=60_000, capacity=4) as journal:
        put(journal, 10)
        (path,) = tmp_path.glob(".open-*")
        data = path.read_bytes()
    path.write_bytes(data)
    assert 6 == dropped(tmp_path)


@pytest.mark.parametrize("level", [1.5, "7", None, 2**63, -(2**70), float("nan"), float("inf")], ids=repr)
def test_a_level_that_is_no_whole_number_is_refused_where_it_is_put(tmp_path, operation, level):
    """No level becomes another one: an event's is refused by name, an operation's is counted as dropped."""
    with Trace(tmp_path) as trace:
        with pytest.raises(JournalLevel, match=r"whole number of 64 bits.* that of \(orders, 1\) is "):
            trace.event("fetch", ("orders", 1), level)
        with pytest.raises(JournalLevel, match="whole number"):
            trace.observer("fetch", needs=lambda _: {"k": level}).parked(operation())
        trace.event("fetch", "k", 3.0)
        trace.event("fetch", "k", True)  # noqa: FBT003
    assert [(3,), (1,)] == [row.levels for row in read(tmp_path)]
    assert (2, 1) == (trace.stats().written, trace.stats().dropped)


def test_a_key_without_a_hash_is_refused_where_it_is_put(tmp_path):
    with Trace(tmp_path) as trace:
        trace.event("fetch", "k", 1)
        with pytest.raises(TypeError, match="unhashable"):
            trace.event("fetch", ["k"], 2)
    assert (1, 0) == (trace.stats().written, trace.stats().dropped)


@pytest.mark.parametrize(
    "wrong", [{"needs": lambda _: None}, {"identify": lambda _: Speechless()}], ids=["needs", "name"]
)
def test_an_operation_of_which_nothing_can_be_told_is_counted(tmp_path, logs, wrong):
    """Where a service's answers about an operation are of no use, the purgatory logs it and the trace counts it."""
    asked = {"needs": lambda _: {"k": 1}, **wrong}
    with (
        Trace(tmp_path) as trace,
        DelayedOperationPurgatory("fetch", observers=[trace.observer("fetch", **asked)]) as own,
    ):
        for _ in range(3):
            own.try_complete_else_watch(Waiting(), ["k"])
        trace.event("fetch", "k", 1)
        assert trace.flush()
        assert "observer_failed" in [entry["event"] for entry in logs]
        assert (1, 3) == (trace.stats().written, trace.stats().dropped)


def test_a_name_that_its_service_does_not_find_is_counted(tmp_path, finish, counts):
    with Journal(tmp_path) as journal, pytest.raises(KeyError):  # the purgatory logs it
        finish(journal.observer("fetch", identify=lambda _: {}["name"]))
    assert (0, 1, 0) == counts(journal)


def test_rows_that_cannot_be_taken_out_are_counted_and_the_next_are_written(tmp_path, finish, counts):
    """The writer's thread outlives whatever the buffer raises. Only a sequence number is lost by that."""
    with Journal(tmp_path, interval_ms=60_000) as journal:
        observer, buffer = journal.observer("fetch"), journal._buffer
        journal._buffer = MagicMock(wraps=buffer, take=Mock(side_effect=RuntimeError("not these")))
        journal._buffer.__len__.side_effect = buffer.__len__
        finish(observer, 3)
        assert journal.flush()
        journal._buffer = buffer
        finish(observer)
    assert (1, 3, 0) == counts(journal)


def test_a_wall_clock_that_is_set_dates_the_records_from_then_on(tmp_path, monkeypatch, finish):
    """A machine that boots with a wrong clock does not date all records by it. Other clocks stay as given."""
    day_ns, time_ns = 86_400 * 10**9, time.time_ns
    start = time_ns()
    with Journal(tmp_path) as journal:
        mock = MockTimer()
        system, other = journal.observer("system"), journal.observer("other", now_ns=mock.clock, epoch_ns=7_000_000)
        for set_by in (0, day_ns, day_ns, -day_ns):
            monkeypatch.setattr(time, "time_ns", lambda set_by=set_by: time_ns() + set_by)
            for observer in (system, other):
                finish(observer)
            assert journal.flush()
    found = list(read(tmp_path))
    days = [round((row.finished * 1000 - start) / day_ns) for row in found if row.purgatory == "system"]
    assert [0, 1, 1, -1] == days
    assert {7_000} == {row.finished for row in found if row.purgatory == "other"}


def test_a_clock_of_fractions_is_refused(tmp_path):
    with Journal(tmp_path / "journal") as journal, Trace(tmp_path / "trace") as trace:
        for epoch_ns in (None, 0):
            with pytest.raises(JournalClock, match=r"whole nanoseconds.* answers 1\.5"):
                journal.observer("fetch", now_ns=lambda: 1.5, epoch_ns=epoch_ns)
            with pytest.raises(JournalClock, match="whole nanoseconds"):
                trace.observer("fetch", needs=lambda _: {}, now_ns=lambda: 1.5, epoch_ns=epoch_ns)


@pytest.mark.parametrize("parquet", [True, False])
def test_names_that_are_no_text_are_written_as_text(tmp_path, operation, parquet):
    """A name that is a number is written as its digits: it doesn't keep a segment from being sealed, or read."""
    with Journal(tmp_path / "journal", instance=3, parquet=parquet) as journal:
        journal.observer(7, identify=lambda _: 42).finished(operation(), Outcome.SATISFIED, None)
    with Trace(tmp_path / "trace", parquet=parquet) as trace:
        for name in (42, ["a", 1]):
            trace.observer(7, needs=lambda _: {"k": 1}, identify=lambda _, name=name: name).parked(operation())
        trace.event(7, "k", 1)
    (record,) = read(tmp_path / "journal")
    assert ("7", "3", "42") == (record.purgatory, record.instance, record.operation)
    names = [(row.purgatory, row.operation) for row in read(tmp_path / "trace")]
    assert [("7", "42"), ("7", "['a', 1]"), ("7", None)] == names
    assert (0, 0) == (journal.stats().seal_errors, trace.stats().seal_errors)


def test_trace_holds_needs_and_events(tmp_path, operation):
    with Trace(tmp_path) as trace:
        observer = trace.observer("produce", needs=lambda op: dict(zip(op.keys, (42, 7), strict=True)))
        parked, immediate = operation(1), operation(2)
        observer.parked(parked)
        trace.event("produce", ("orders", 1), 42)
        observer.finished(parked, Outcome.SATISFIED, None)
        observer.finished(immediate, Outcome.IMMEDIATE, None)
    rows = list(read(tmp_path))
    assert ["operation", "event", "operation"] == [row.kind for row in rows]
    assert (("(orders, 1)", "consumer-1"), (42, 7)) == (rows[0].keys, rows[0].levels)
    assert ("produce", ("(orders, 1)",), (42,)) == (rows[1].purgatory, rows[1].keys, rows[1].levels)
    assert 2 == len({row.operation for row in rows if row.kind == "operation"})
    assert ["DelayedFetch", "", "DelayedFetch"] == [row.type for row in rows]


@pytest.mark.parametrize("parquet", [True, False])
def test_trace_holds_watch_keys_where_they_are_others(tmp_path, operation, parquet):
    never = operation(2, keys=())
    with Trace(tmp_path, parquet=parquet) as trace:
        same = trace.observer("produce", needs=lambda op: dict.fromkeys(op.keys, 1))
        other = trace.observer("produce", needs=lambda _: {"level": 1})
        same.parked(operation(1))
        other.parked(operation(1))
        other.finished(never, Outcome.IMMEDIATE, None)
    rows = list(read(tmp_path))
    assert [None, ("(orders, 1)", "consumer-1"), ()] == [row.watches for row in rows]
    assert [("(orders, 1)", "consumer-1"), ("level",), ("level",)] == [row.keys for row in rows]


def test_trace_says_which_types_it_does_not_explain(tmp_path, operation):
    """A cancelled, a forced and an extended operation have a row each. One that its needs explain has none."""
    with Trace(tmp_path) as trace:
        observer = trace.observer("produce", needs=lambda op: dict.fromkeys(op.keys, 1))
        for how in (Outcome.CANCELLED, Outcome.FORCED, Outcome.SATISFIED, Outcome.EXPIRED):
            observer.finished(operation(1), how, None)
        extended = operation(1)
        extended._task_moved_by_ns = 5
        observer.finished(extended, Outcome.SATISFIED, None)
    rows = [(row.outcome, row.kind, row.purgatory, row.type, row.operation, row.keys) for row in read(tmp_path)]
    same = ("ended", "produce", "DelayedFetch", None, ())
    assert [("cancelled", *same), ("forced", *same), ("extended", *same)] == rows


def test_heartbeat_is_a_row_with_the_time_alone(tmp_path):
    before_us = time.time_ns() // 1000
    with Trace(tmp_path) as trace:
        trace.heartbeat()
    (row,) = read(tmp_path)
    assert ("flush", None, (), ()) == (row.kind, row.operation, row.keys, row.levels)
    assert abs(row.ts - before_us) < 60_000_000


def test_names_are_not_given_again_after_a_restart(tmp_path, operation):
    for _ in range(2):
        with Trace(tmp_path) as trace:
            observer = trace.observer("produce", needs=lambda op: dict.fromkeys(op.keys, 1))
            for _ in range(3):
                observer.parked(operation(1))
    assert 6 == len({row.operation for row in read(tmp_path)})


@pytest.mark.parametrize(
    "options",
    [
        *({"capacity": 0}, {"when_full": "explode"}, {"sync": "maybe"}, {"interval_ms": 0}, {"chunk": "many"}),
        *({"segment_seconds": 0.0}, {"retain_bytes": True}, {"retain_bytes": 0}, {"retain_seconds": -1}),
        {"patience_ms": -1},
    ],
)
def test_bad_options_are_refused_before_anything_is_made(tmp_path, options):
    ((name, value),) = options.items()
    with pytest.raises(JournalSetting, match=rf"^{name} must be [^(]*, got {value!r}$") as raised:
        Journal(tmp_path / "new", **options)
    assert (name, value) == (raised.value.setting, raised.value.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", [Journal, Trace])
def test_unknown_option_is_named_with_the_known_ones(tmp_path, kind):
    with pytest.raises(JournalSetting, match=r"^option must be one of .*\bsync\b.*, got 'snyc'$"):
        kind(tmp_path / "new", snyc="flush")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", [Journal, Trace])
@pytest.mark.parametrize("folder", ["", None, 3])
def test_empty_path_is_not_the_working_directory(tmp_path, monkeypatch, kind, folder):
    """A journal in "" would lie in the directory that the service happens to run in: it is rejected."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JournalSetting, match="folder must be the path of a folder"):
        kind(folder)
    assert [] == list(tmp_path.iterdir())
    with kind("."):  # meant, so allowed
        pass


@pytest.mark.parametrize(
    ("name", "given", "written"),
    [
        pytest.param("delay_ms", [10**30, 1.5, -3], [2**63 - 1, 1, -3], id="delays of any size"),
        pytest.param("keys", [(("a", "b"),), ("a", "b"), ("a",), ()], [("(a, b)",), ("a", "b"), ("a",), ()], id="keys"),
    ],
)
def test_values_of_any_form_are_written(tmp_path, finish, name, given, written):
    """A delay is cut to 64 bits. A tuple is one key, and two keys are two."""
    with Journal(tmp_path) as journal:
        for value in given:
            finish(journal, **{name: value})
    assert written == [getattr(row, name) for row in read(tmp_path)]


def test_whatever_varies_in_a_batch_is_told_apart(tmp_path, operation):
    class Other(operation):
        pass

    with Journal(tmp_path) as journal:
        observer = journal.observer("fetch")
        observer.finished(operation(delay_ms=5, checks=1), Outcome.SATISFIED, None)
        observer.finished(Other(delay_ms=5, checks=1), Outcome.EXPIRED, ValueError("no"))
        observer.finished(operation(delay_ms=7, checks=3), Outcome.EXPIRED, None)
    assert [
        ("DelayedFetch", "satisfied", None, 5, 1),
        ("Other", "expired", "ValueError: no", 5, 1),
        ("DelayedFetch", "expired", None, 7, 3),
    ] == [(row.type, row.outcome, row.error, row.delay_ms, row.checks) for row in read(tmp_path)]


@pytest.mark.parametrize("keys", [["k"], ["k", "m"]])
def test_what_is_under_one_key_is_labelled_once_a_batch(tmp_path, recorded, monkeypatch, keys):
    asked, label = [], _journal.label
    monkeypatch.setattr(_journal, "label", lambda key: asked.append(key) or label(key))
    with recorded(interval_ms=60_000) as (journal, fetch):
        satisfy(fetch, "k", *park_all(fetch, [Waiting() for _ in range(50)], *keys))
        assert journal.flush()
    assert [tuple(keys)] * 50 == [record.keys for record in read(tmp_path)]
    assert keys == asked


@pytest.mark.parametrize("drain", ["expire", "wait"])
@pytest.mark.parametrize("named", [False, True])
def test_shutdown_is_told_apart_from_a_deadline(tmp_path, drain, named):
    with Journal(tmp_path, when_full="wait") as journal, MockTimer() as timer:
        identify = (lambda operation: f"op-{operation.delay_ms}") if named else None
        observer = journal.observer("p", now_ns=timer.now_ns, identify=identify)
        purgatory = DelayedOperationPurgatory("p", timer=timer, observers=[observer])
        for delay_ms in (10, 60_000):
            park(purgatory, delay_ms=delay_ms)
        timer.advance_clock(10)
        park(purgatory, ready=True)
        purgatory.shutdown(drain, timeout_ms=0)
        journal.flush()
    assert {
        (10, "expired", None, False),
        (60_000, "immediate", None, False),
        (60_000, "expired", "shutdown", True),
    } == {(row.delay_ms, row.outcome, row.ended_by, row.is_censored) for row in read(tmp_path)}


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize(("umask", "folder_mode", "file_mode"), [(0o022, 0o750, 0o640), (0o077, 0o700, 0o600)])
@pytest.mark.parametrize("parquet", [False, True])
def test_other_users_may_not_read_a_journal(tmp_path, finish, umask, folder_mode, file_mode, parquet):
    """Folder and files are closed to other users, open, sealed and beside. A stricter umask counts."""
    before = os.umask(umask)
    try:
        folder = tmp_path / "journal"
        for _ in range(2):
            with Journal(folder, when_full="wait", parquet=parquet) as journal:
                finish(journal)
                journal.flush()
                opened = modes(folder)
        sealed = modes(folder)
    finally:
        os.umask(before)
    assert folder_mode == modes(tmp_path)["journal"]
    assert {file_mode} == {*opened.values(), *sealed.values()}
    assert {".lock", ".end"} < sealed.keys()
    assert len(opened) > 2
