import threading

import pytest

from purgatory.journal import Journal, JournalClosed, JournalFormat, JournalLocked, Trace, label, read, verify


def test_record_holds_what_is_known_of_the_operation(tmp_path, operation, outcome):
    """A record says which operation left which purgatory, how, when, after how many checks."""
    op = operation(1, delay_ms=250, checks=7)
    with Journal(tmp_path, instance="broker-1") as journal:
        journal.observer("fetch").finished(op, outcome.EXPIRED, ValueError("no bytes"))
    (record,) = read(tmp_path)
    assert (0, "fetch", "DelayedFetch", "broker-1") == (
        record.seq,
        record.purgatory,
        record.type,
        record.instance,
    )
    assert (("orders-1", "consumer-1"), 250, 7) == (record.keys, record.delay_ms, record.checks)
    assert ("expired", "ValueError: no bytes") == (record.outcome, record.error)
    assert 0 <= record.waited_us < 10_000_000


def test_every_thread_s_records_are_written_once(tmp_path, operation, outcome):
    """Records of many threads end up in one sequence without gaps, none lost and none doubled."""
    with Journal(tmp_path, when_full="wait", patience_ms=10_000, capacity=512, chunk=100) as journal:
        observer = journal.observer("fetch")

        def work(thread):
            for number in range(2_000):
                observer.finished(operation(checks=thread * 10_000 + number), outcome.SATISFIED, None)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = list(read(tmp_path))
    assert list(range(8_000)) == [row.seq for row in rows]
    assert {t * 10_000 + n for t in range(4) for n in range(2_000)} == {row.checks for row in rows}


def test_reopened_journal_goes_on_with_the_sequence(tmp_path, write):
    """A journal that is closed and opened again continues where it ended."""
    write(tmp_path, 10)
    write(tmp_path, 5)
    assert list(range(15)) == [row.seq for row in read(tmp_path)]


def test_frames_and_parquet_hold_the_same_rows(tmp_path, write):
    """Sealed with or without pyarrow, a reader gets the same records."""
    write(tmp_path / "frames", 3_000, parquet=False)
    write(tmp_path / "parquet", 3_000, parquet=True)
    drop = {"created", "finished"}

    def rows(name):
        return [
            {f: getattr(row, f) for f in row.__slots__ if f not in drop and not f.startswith("__")}
            for row in read(tmp_path / name)
        ]

    assert rows("frames") == rows("parquet")
    assert ["_journal-00000000000000000000-00000000000000002999.frames"] == [
        p.name for p in (tmp_path / "frames").iterdir() if p.name != ".lock"
    ]


def test_segments_roll_by_size(tmp_path, write):
    """A segment that has reached its size is sealed while the next one is written."""
    write(tmp_path, 5_000, segment_bytes=20_000, chunk=100)
    assert 3 < len(list(tmp_path.glob("journal-*.parquet")))
    assert verify(tmp_path).sound
    assert list(range(5_000)) == [row.seq for row in read(tmp_path)]


def test_open_segment_can_be_read(tmp_path, operation, outcome):
    """What flush() has acknowledged is seen by a reader before the segment is sealed."""
    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(operation(), outcome.SATISFIED, None)
        assert journal.flush()
        assert 1 == len(list(read(tmp_path)))
        assert 1 == verify(tmp_path).open_segments


def test_second_writer_is_refused(tmp_path, write):
    """A second writer on a folder is refused by name of the first; closing lets the next one in."""
    with Journal(tmp_path), pytest.raises(JournalLocked, match="already being written by process"):
        Journal(tmp_path)
    write(tmp_path, 1)


def test_trace_and_journal_do_not_mix(tmp_path, write):
    """A folder that holds a journal refuses a trace, and stays usable."""
    write(tmp_path, 1)
    with pytest.raises(JournalFormat, match="give each its own folder"):
        Trace(tmp_path)
    write(tmp_path, 1)


def test_closed_journal_refuses_a_flush_and_a_late_observer_harms_nobody(tmp_path, operation, outcome):
    """After close() an observer's call is harmless, flush() raises, and close() may be called again."""
    journal = Journal(tmp_path)
    observer = journal.observer("fetch")
    journal.close()
    observer.finished(operation(), outcome.SATISFIED, None)
    with pytest.raises(JournalClosed):
        journal.flush()
    assert 0 == journal.close().written


def test_key_whose_label_fails_costs_its_batch_not_the_journal(tmp_path, operation, outcome):
    """Rows whose keys can't be named are counted as dropped, and the next ones are written."""

    class Unspeakable:
        def __str__(self):
            raise RuntimeError("no name")

    with Journal(tmp_path) as journal:
        observer = journal.observer("fetch")
        observer.finished(operation(keys=(Unspeakable(),)), outcome.SATISFIED, None)
        assert journal.flush()
        observer.finished(operation(), outcome.SATISFIED, None)
    assert (1, 1) == (journal.stats().written, journal.stats().dropped)


def test_trace_holds_needs_and_events(tmp_path, operation, outcome):
    """A trace has operations with the level needed on each key, immediate ones too, and the events."""
    with Trace(tmp_path) as trace:
        observer = trace.observer("produce", needs=lambda op: dict(zip(op.keys, (42, 7), strict=True)))
        parked, immediate = operation(1), operation(2)
        observer.parked(parked)
        trace.event(("orders", 1), 42)
        observer.finished(parked, outcome.SATISFIED, None)
        observer.finished(immediate, outcome.IMMEDIATE, None)
    rows = list(read(tmp_path))
    assert ["operation", "event", "operation"] == [row.kind for row in rows]
    assert (("orders-1", "consumer-1"), (42, 7)) == (rows[0].keys, rows[0].levels)
    assert (("orders-1",), (42,)) == (rows[1].keys, rows[1].levels)
    assert 2 == len({row.operation for row in rows if row.kind == "operation"})


@pytest.mark.parametrize(
    ("key", "expected"), [("a", "a"), (7, "7"), (("orders", 3), "orders-3"), ("x" * 300, "x" * 199 + "…")]
)
def test_label(key, expected):
    """A key is named by its text, a tuple by its parts, and no name is longer than 200 characters."""
    assert expected == label(key)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"when_full": "explode"}, {"sync": "maybe"}, {"interval_ms": 0}])
def test_bad_options_are_refused_before_anything_is_made(tmp_path, options):
    """A wrong option raises at once and leaves no folder behind."""
    with pytest.raises(ValueError, match=next(iter(options))):
        Journal(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_delays_of_any_size_are_written(tmp_path, operation, outcome):
    """A delay beyond 64 bits is clamped, a fractional one cut, and neither costs the batch."""
    with Journal(tmp_path) as journal:
        observer = journal.observer("fetch")
        for delay in (10**30, 1.5, -3):
            observer.finished(operation(delay_ms=delay), outcome.SATISFIED, None)
    assert [2**63 - 1, 1, -3] == [row.delay_ms for row in read(tmp_path)]


def test_a_tuple_is_one_key_and_two_keys_are_two(tmp_path, operation, outcome):
    """Operations under a tuple, and under its parts as keys of their own, keep their keys apart in one batch."""
    with Journal(tmp_path) as journal:
        observer = journal.observer("fetch")
        for keys in ((("a", "b"),), ("a", "b"), ("a",), ()):
            observer.finished(operation(keys=keys), outcome.SATISFIED, None)
    assert [("a-b",), ("a", "b"), ("a",), ()] == [record.keys for record in read(tmp_path)]


def test_whatever_varies_in_a_batch_is_told_apart(tmp_path, operation, outcome):
    """Type, outcome, error, delay and checks are each row's own, whether all rows share them or not."""

    class Other(operation):
        pass

    rows = [
        (operation(delay_ms=5, checks=1), outcome.SATISFIED, None),
        (Other(delay_ms=5, checks=1), outcome.EXPIRED, ValueError("no")),
        (operation(delay_ms=7, checks=3), outcome.EXPIRED, None),
    ]
    with Journal(tmp_path) as journal:
        for row in rows:
            journal.observer("fetch").finished(*row)
    found = [(r.type, r.outcome, r.error, r.delay_ms, r.checks) for r in read(tmp_path)]
    assert [
        ("DelayedFetch", "satisfied", None, 5, 1),
        ("Other", "expired", "ValueError: no", 5, 1),
        ("DelayedFetch", "expired", None, 7, 3),
    ] == found
