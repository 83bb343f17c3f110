"""Old sealed segments are deleted by age and size. Everything else stays, and readers go on."""

import os
import time

import pytest

from purgatory.journal import Journal, read, verify
from purgatory.journal._cli import main
from purgatory.journal._segments.retention import retain
from purgatory.journal.records import JOURNAL
from purgatory.journal.records.folder import list_segments, tip
from purgatory.journal.records.ranges import read_range

WEEK = 7 * 86_400


@pytest.fixture
def folder(tmp_path, write):
    """Five sealed segments of 10 records, one sealed a day, the last of them now."""
    for _ in range(5):
        write(tmp_path, 10)
    for age, segment in enumerate(reversed(list_segments(tmp_path))):
        sealed = time.time() - age * 86_400
        os.utime(segment.path, (sealed, sealed))
    return tmp_path


def firsts(folder):
    return [segment.first for segment in list_segments(folder)]


def test_the_oldest_go_until_the_rest_fits(folder):
    sizes = [segment.path.stat().st_size for segment in list_segments(folder)]
    gone = retain(folder, most_bytes=sum(sizes[3:]) + 1)
    assert ([30, 40], sum(sizes[:3])) == (firsts(folder), gone.bytes)


def test_the_newest_sealed_segment_stays_and_carries_the_sequence(folder, write):
    """However tight the bounds, the next writer goes on with the sequence."""
    retain(folder, most_bytes=1, most_seconds=0.001, now=time.time() + WEEK)
    assert [40] == firsts(folder)
    write(folder, 1)
    assert {"first": 40, "last": 50} == tip(folder)
    assert verify(folder).ok


def test_a_dry_run_deletes_nothing(folder):
    gone = retain(folder, most_bytes=1, dry_run=True)
    assert (4, 5) == (len(gone.names), len(firsts(folder)))


def test_both_forms_of_a_segment_go_together(tmp_path, write):
    """A segment that lies there as frames and as Parquet leaves in neither form."""
    write(tmp_path, 10, parquet=False)
    frames = list_segments(tmp_path)[0].path
    frames.with_name(frames.name.lstrip("_")).with_suffix(".parquet").write_bytes(b"")
    write(tmp_path, 10)
    assert 2 == retain(tmp_path, most_bytes=1).segments
    assert [10] == firsts(tmp_path)


def test_a_journal_keeps_to_its_bounds_while_it_writes(tmp_path, put):
    bounds = {"segment_bytes": 2_000, "retain_bytes": 30_000, "chunk": 50}
    with Journal(tmp_path, when_full="wait", patience_ms=5_000, **bounds) as journal:
        put(journal, 5_000)
        assert any(segment.is_open for segment in list_segments(tmp_path)) or journal.stats().segments_sealed
    stats = journal.stats()
    assert stats.segments_deleted > 0
    assert stats.bytes_deleted > 0
    assert sum(segment.path.stat().st_size for segment in list_segments(tmp_path)) <= 30_000
    found = [row.seq for row in read(tmp_path)]
    assert list(range(found[0], 5_000)) == found
    assert found[0] > 0


def test_an_old_journal_is_cut_when_it_is_opened(folder):
    """The age counts from the sealing, also when nothing new is written."""
    with Journal(folder, retain_seconds=1.5 * 86_400) as journal:
        assert journal.flush()
    assert 3 == journal.stats().segments_deleted
    assert [30, 40] == firsts(folder)


def test_readers_go_on_when_segments_vanish(folder):
    """One that is in the middle of a segment finishes it, and goes on with the oldest that is left."""
    rows, parts = read(folder), read_range(folder, JOURNAL, -1, 49)
    seen, ranges = [next(rows).seq], next(parts).column("seq").to_pylist()
    retain(folder, most_seconds=2.5 * 86_400)
    seen += [row.seq for row in rows]
    ranges += [seq for part in parts for seq in part.column("seq").to_pylist()]
    assert [*range(10), *range(20, 50)] == seen == ranges


def test_the_command_deletes_and_says_what(folder, said):
    assert "2 segments" in said(0, "retain", folder, "--age", "2.5d", "--bytes", "1G")
    assert [20, 30, 40] == firsts(folder)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        ("--bytes much", "write 500M or 20G"),
        ("--age 0d", "write 90, 60s, 5m, 250ms or 1h"),
        ("--age 3x", "write 90, 60s, 5m, 250ms or 1h"),
    ],
)
def test_wrong_bounds_are_refused(folder, words, example, capsys):
    with pytest.raises(SystemExit):
        main(["retain", str(folder), *words.split()])
    assert example in capsys.readouterr().err


def test_without_a_bound_nothing_is_done(folder, said):
    """Neither bound given is a mistake, not a wish to delete everything."""
    assert "say what may stay" in said(2, "retain", folder)
    assert 5 == len(firsts(folder))
