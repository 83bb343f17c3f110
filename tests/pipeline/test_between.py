"""A range of time: which rows are in it, which segments are read for it, and what of it is missing."""

import argparse
import time

import pyarrow as pa
import pytest

from purgatory.journal import Journal, read
from purgatory.journal._segments import seal
from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import Segment, list_segments, open_name
from purgatory.journal.records.instants import instant_us
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.between import Between
from purgatory.pipeline._rows.completeness import IncompleteJournal
from purgatory.pipeline._tables import queries, relations
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import EmptyJournal, ReportOptions, report
from tests.support import workloads


class Operation:
    keys, created_ns, delay_ms, checks = ("a",), 1, 5, 1


@pytest.fixture
def journal(tmp_path):
    """A journal of ten segments, and the instants at which its operations left, in order."""
    table = workloads.journal(1_000, seconds=600)
    workloads.write(tmp_path / "journal", table, JOURNAL, files=10)
    return tmp_path / "journal", sorted(table.column("finished").cast(pa.int64()).to_pylist())


def operations(folder, between):
    engine = Local([str(folder)], between)
    try:
        engine.open(allow_gaps=False)
        relations.prepare(engine)
        return engine.query(queries.SPAN).to_pylist()[0]["operations"]
    finally:
        engine.close()


def test_a_report_is_about_the_operations_that_left_in_the_range(journal):
    """The first instant is in the range, the last is not. No limit means all of them."""
    folder, left = journal
    since, until = left[250], left[700]
    assert sum(since <= at < until for at in left) == operations(folder, Between(since, until))
    assert sum(since <= at for at in left) == operations(folder, Between(since, None))
    assert 1_000 == operations(folder, Between())


def test_segments_outside_of_the_range_are_not_read(journal):
    """A segment whose statistics say that it ends before the range may be damaged without being noticed."""
    folder, left = journal
    segments = list_segments(folder)
    chosen = []
    Between(left[-50], None).each(folder, JOURNAL, lambda path, _: chosen.append(path), chosen.extend)
    assert [segments[-1].path] == chosen
    data = bytearray(segments[0].path.read_bytes())
    data[100] ^= 255
    segments[0].path.write_bytes(data)
    assert 50 == operations(folder, Between(left[-50], None))


@pytest.mark.parametrize("seen", [{}, {"listed": True}, {"listed": True, "there": True}])
def test_a_segment_that_is_sealed_as_it_is_read_is_taken_once(tmp_path, seen):
    """Between the listing and the reading it has another name. A listing may have none of the two, or both."""
    with Journal(tmp_path, parquet=False) as journal:
        for _ in range(3):
            journal.observer("fetch").finished(Operation(), "satisfied", None)
    (sealed,) = tmp_path.glob("_journal-*")
    opened = sealed.rename(tmp_path / open_name(0))
    listings = [[Segment(0, None, opened)] if seen else []]

    def listed(folder):
        if listings:
            first = listings.pop()
            data = opened.read_bytes()
            assert seal(opened)
            if "there" in seen:
                opened.write_bytes(data)
            return first
        return list_segments(folder)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("purgatory.pipeline._rows.between.list_segments", listed)
        assert 3 == operations(tmp_path, Between())


def test_a_broken_link_is_a_missing_segment(journal):
    """An archive that is not mounted does not keep a reader waiting."""
    folder, _ = journal
    segments = list_segments(folder)
    segments[5].path.unlink()
    segments[5].path.symlink_to(folder / "nowhere")
    with pytest.raises(IncompleteJournal, match="100 rows missing, 500 to 599"):
        operations(folder, Between())
    with pytest.raises(JournalFormat, match="rows 500 to 599 are missing"):
        list(read(folder))


def test_a_gap_inside_of_the_range_is_an_error(journal):
    """A segment that is missing between two that were read is named. One before the range is not missed."""
    folder, left = journal
    segments = list_segments(folder)
    segments[5].path.unlink()
    with pytest.raises(IncompleteJournal, match="100 rows missing, 500 to 599"):
        operations(folder, Between(left[350], left[850]))
    assert operations(folder, Between(left[750], None))


def test_a_range_without_operations_is_an_error(journal, tmp_path):
    """There is nothing to report on."""
    folder, left = journal
    with pytest.raises(EmptyJournal):
        report(Local([str(folder)], Between(left[-1] + 1, None)), tmp_path / "out", ReportOptions(quiet=True))


def test_the_command_line_takes_an_instant_or_a_length_of_time():
    """An instant is UTC unless it says otherwise. A length of time ends now."""
    assert 1_767_261_600_000_000 == instant_us("2026-01-01T10:00:00")
    assert 1_767_258_000_000_000 == instant_us("2026-01-01T10:00:00+01:00")
    assert time.time() - 3_600 == pytest.approx(instant_us("1h") / 1e6, abs=60)
    for text in ("yesterday", "2026-13-01", "5x"):
        with pytest.raises(argparse.ArgumentTypeError, match="write .*1h"):
            instant_us(text)


def test_a_report_of_a_range_says_how_many_records_were_read(journal, tmp_path):
    """From the command line: the page is about the rest of the journal from an instant on."""
    folder, left = journal
    since = pa.scalar(left[900], pa.timestamp("us")).as_py().isoformat()
    assert 0 == main(["report", "--journal", str(folder), "--out", str(tmp_path / "out"), "--since", since, "--quiet"])
    assert "100 records were read" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
