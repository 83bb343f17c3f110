"""The state after a kill, a full disk or a cut file."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from purgatory.journal import Journal, JournalLocked, _segments, read, verify
from purgatory.journal._segments import recover, seal
from purgatory.journal.records import parquet
from purgatory.journal.records.folder import END, End, dropped, end, list_segments, open_name
from tests.support import PATIENCE_S, beside, eventually

ROOT = Path(__file__).parents[3]


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def is_whole(folder, count):
    """Whether the journal is sound and has so many rows, numbered from 0 without a gap."""
    return verify(folder).ok and list(range(count)) == [row.seq for row in read(folder)]


WRITER = """
import os, sys, time
from purgatory.journal import Journal

class Op:
    def __init__(self, number):
        self.keys, self.created_ns, self.delay_ms, self.checks = (f"k{number % 7}",), time.monotonic_ns(), 5, number

options = {"segment_bytes": 30_000, "chunk": 200, "interval_ms": 1, "when_full": "wait", "patience_ms": 60_000}
journal = Journal(sys.argv[1], **options)
number = journal._next
observer = journal.observer("fetch")
while True:
    for _ in range(300):
        observer.finished(Op(number), "satisfied", None)
        number += 1
    assert journal.flush(60)
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.slow
def test_kill_9_at_random_points_loses_and_doubles_nothing_acknowledged(tmp_path):
    rng = random.Random(5)
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        said = first + child.communicate()[0]
        acknowledged = int(said.split(b"\n")[:-1][-1])
        rows = list(read(tmp_path))
        assert [row.seq for row in rows] == [row.checks for row in rows]
        assert is_whole(tmp_path, len(rows))
        assert acknowledged <= len(rows)
    Journal(tmp_path).close()
    assert 0 == verify(tmp_path).open_segments
    assert acknowledged <= verify(tmp_path).rows


def test_torn_tail_is_cut_and_the_sequence_goes_on(tmp_path, write, reopen):
    write(tmp_path, 100, parquet=False, chunk=10)
    opened = reopen(tmp_path)
    (tmp_path / END).unlink()
    opened.write_bytes(opened.read_bytes()[:-7])
    verdict = verify(tmp_path)
    assert verdict.ok
    assert 0 < verdict.torn_bytes
    assert verdict.rows < 100
    write(tmp_path, 5)
    assert is_whole(tmp_path, verdict.rows + 5)


def test_crash_between_rename_and_unlink_doubles_nothing(tmp_path, write):
    """A segment found both sealed and open is read once, and the open one goes away at the next start."""
    write(tmp_path, 50, parquet=False)
    (sealed,) = tmp_path.glob("_journal*")
    shutil.copy(sealed, tmp_path / open_name(0))
    assert is_whole(tmp_path, 50)
    assert 50 == recover(tmp_path)
    assert [False] == [segment.is_open for segment in list_segments(tmp_path)]


def test_crash_while_sealing_is_begun_again(tmp_path, write, reopen):
    write(tmp_path, 50, parquet=False)
    opened = reopen(tmp_path)
    data = opened.read_bytes()
    (tmp_path / ".tmp-journal-x.parquet").write_bytes(b"PAR1 half")
    first = seal(opened)
    opened.write_bytes(data)
    assert first == seal(opened)
    assert 50 == recover(tmp_path)
    assert not list(tmp_path.glob(".tmp*"))


def test_segment_without_a_whole_row_is_removed_instead_of_sealed(tmp_path):
    torn = tmp_path / open_name(0)
    torn.write_bytes(b"PURJ")
    assert (None, False) == (seal(torn), torn.exists())


class FullDisk:
    """A file on a disk with a given number of bytes left. ``room`` can be raised later."""

    room = 0

    def __init__(self, path):
        self._file = path.open("wb", buffering=0)

    def write(self, data):
        if FullDisk.room <= 0:
            no_space()
        count = self._file.write(data[: FullDisk.room])
        FullDisk.room -= count
        return count

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_full_disk_drops_and_counts_and_the_service_goes_on(tmp_path, finish):
    FullDisk.room = 300
    with Journal(tmp_path, open_file=FullDisk, capacity=100, chunk=10, interval_ms=1) as journal:
        started = time.monotonic()
        finish(journal, 5_000)
        assert time.monotonic() - started < 30
        assert eventually(lambda: journal.stats().write_errors)
        assert not journal.flush(0.05)
        stats = journal.stats()
        assert 0 < stats.dropped
        assert stats.buffered <= 110
        FullDisk.room = 10**9
        assert journal.flush(30)
    stats = journal.stats()
    assert 5_000 == stats.written + stats.dropped
    assert is_whole(tmp_path, stats.written)


def test_slow_disk_slows_the_caller_down_by_no_more_than_its_patience(tmp_path, finish):
    FullDisk.room = 0
    with Journal(tmp_path, open_file=FullDisk, capacity=1, when_full="wait", patience_ms=50) as journal:
        started = time.monotonic()
        finish(journal, 3)
        assert time.monotonic() - started < 30
        FullDisk.room = 10**9
        assert journal.flush(30)
    assert 3 == journal.stats().written + journal.stats().dropped


class Unsynced(FullDisk):
    """A disk whose sync fails while ``broken`` is set."""

    broken = True

    def fileno(self):
        if Unsynced.broken:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.fileno()


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20], ids=["full segment", "open segment"])
def test_a_row_whose_sync_failed_is_acknowledged_once_its_segment_is_sealed(tmp_path, no_room, segment_bytes, finish):
    """A later sync may succeed although the kernel has dropped the data. Only another file is proof."""
    FullDisk.room, Unsynced.broken = 10**9, True
    options = {"open_file": Unsynced, "sync": "flush", "segment_bytes": segment_bytes, "interval_ms": 1}
    with Journal(tmp_path, **options) as journal:
        finish(journal)
        assert not journal.flush(0.1)
        assert eventually(lambda: journal.stats().write_errors)
        Unsynced.broken = False
        finish(journal)
        assert not journal.flush(0.1)  # this row is on the disk, the one before it is not
        no_room.room = True
        assert journal._sealer.submit(journal._sealer.seal).result(30) is None
        assert journal.flush(30)
        assert 2 == verify(tmp_path).rows
    assert is_whole(tmp_path, 2)


def test_a_disk_that_syncs_nothing_does_not_fill_with_segments(tmp_path, no_room, finish):
    """Each flush would close another segment, and none of them could be sealed."""
    FullDisk.room, Unsynced.broken = 10**9, True
    with Journal(tmp_path, open_file=Unsynced, sync="flush", interval_ms=1) as journal:
        for _ in range(10):
            finish(journal)
            assert not journal.flush(0.02)
        assert len(list_segments(tmp_path)) <= 2
        Unsynced.broken, no_room.room = False, True
    assert is_whole(tmp_path, 10)


@pytest.mark.parametrize("sync", ["segment", "flush", "always"])
def test_a_sync_that_fails_as_a_segment_closes_is_counted_and_logged(tmp_path, sync, monkeypatch, put):
    """The rows were written, and a kill would not lose them. But a power cut might."""
    FullDisk.room, Unsynced.broken = 10**9, False
    log = Mock()
    monkeypatch.setattr("purgatory.journal._writer._log", log)
    journal = Journal(tmp_path, open_file=Unsynced, sync=sync, interval_ms=1)
    put(journal)
    Unsynced.broken = True
    stats = journal.close()
    assert (1, 1) == (stats.written, stats.write_errors)
    assert ["journal.disk_refuses"] == [call.args[0] for call in log.warning.call_args_list]
    assert is_whole(tmp_path, 1)


@pytest.fixture
def no_room(monkeypatch):
    """While its room is False, there is none for what is sealed: half of it is written, and then no more."""
    seal_to = parquet.write

    def write(path, schema, frames):
        if not write.room:
            path.write_bytes(b"PAR1 half")
            no_space()
        seal_to(path, schema, frames)

    write.room = False
    monkeypatch.setattr(parquet, "write", write)
    return write


def test_segment_that_found_no_room_to_be_sealed_is_sealed_later(tmp_path, no_room, finish, put):
    with Journal(tmp_path, segment_bytes=1_000, chunk=10, interval_ms=1) as journal:
        put(journal, 100)
        assert eventually(lambda: journal.stats().seal_errors)
        assert 1 < verify(tmp_path).open_segments
        no_room.room = True
        finish(journal)
    assert [False] * journal.stats().segments_sealed == [segment.is_open for segment in list_segments(tmp_path)]
    assert is_whole(tmp_path, 101)
    assert not list(tmp_path.glob(".tmp*"))


def test_room_that_a_failed_seal_took_is_given_back(tmp_path, write, no_room, reopen):
    no_room.room = True
    write(tmp_path, 50, parquet=False)
    opened = reopen(tmp_path)
    no_room.room = False
    with pytest.raises(OSError, match="No space"):
        seal(opened, parquet=True)
    assert {opened.name, ".lock", END} == {path.name for path in tmp_path.iterdir()}


def test_where_the_end_cannot_be_left_the_one_of_before_stands(tmp_path, write, monkeypatch):
    """A full disk at that moment loses no row, and the start succeeds: the earlier count is still true."""
    write(tmp_path, 50)
    monkeypatch.setattr("purgatory.journal._segments.sealer.leave_end", no_space)
    write(tmp_path, 1)
    assert is_whole(tmp_path, 51)
    assert 50 == end(tmp_path).next


def test_what_a_frame_told_that_was_never_written_is_told_at_the_end(tmp_path, finish, put):
    """A frame that the disk rejects is lost with its count of dropped rows, so that count is also kept elsewhere."""
    FullDisk.room = 10**9
    with Journal(tmp_path, open_file=FullDisk) as journal:
        put(journal)
        finish(journal, 6, checks="none")
    assert End(1, 6) == end(tmp_path)
    FullDisk.room = 0
    with Journal(tmp_path, open_file=FullDisk, interval_ms=1) as journal:
        finish(journal, checks="none")
        finish(journal)
        assert not journal.flush(0.1)
    assert 2 == journal.stats().dropped
    assert (8, End(1, 8)) == (dropped(tmp_path), end(tmp_path))
    assert {".lock", END} == {path.name for path in tmp_path.iterdir() if not path.name.startswith("journal-")}
    assert verify(tmp_path).ok


def test_disk_that_stays_full_holds_up_neither_a_close_nor_a_flush_without_a_limit(tmp_path, finish):
    """The flush returns False once the journal is closed. The rows are dropped."""
    FullDisk.room = 0
    found = []
    journal = Journal(tmp_path, open_file=FullDisk, interval_ms=1)
    finish(journal, 100)
    with beside(lambda: found.append(journal.flush(None))):
        assert eventually(lambda: journal._flushes)
        journal.close()
    assert ([False], 0, 100) == (found, journal.stats().written, journal.stats().dropped)


def test_a_half_written_end_is_taken_away(tmp_path, write, monkeypatch):
    write(tmp_path, 1)
    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        _segments.leave_end(tmp_path, 7)
    assert [".end", ".lock"] == sorted(path.name for path in tmp_path.glob(".*"))


def test_a_writer_that_was_given_up_keeps_its_folder_until_its_rows_are_written(tmp_path, write, finish, monkeypatch):
    """Closing a journal whose disk hangs returns. A second writer would lose rows while the first may still write."""
    hang, hangs = threading.Event(), threading.Event()

    class Hanging(FullDisk):
        def write(self, data):
            hangs.set()
            assert hang.wait(30)
            return super().write(data)

    FullDisk.room = 10**9
    journal = Journal(tmp_path, open_file=Hanging, interval_ms=1)
    finish(journal, 50)
    assert hangs.wait(30)
    with monkeypatch.context() as patch:
        patch.setattr("purgatory.journal._writer._CLOSE_S", 0.05)
        journal.close()
    with pytest.raises(JournalLocked):
        write(tmp_path, 10)
    hang.set()
    journal._thread.join(30)
    assert (End(50), 50) == (end(tmp_path), journal.stats().written)
    write(tmp_path, 10)
    assert End(60) == end(tmp_path)
    assert is_whole(tmp_path, 60)


def test_a_first_frame_that_cannot_be_cut_off_costs_none_of_those_that_follow(tmp_path, finish, put):
    """A file in which nothing was acknowledged yet is neither sealed nor removed: the writer begins it again."""

    class Torn(FullDisk):
        def truncate(self, _size):
            raise OSError(errno.EIO, "Input/output error")

    FullDisk.room = 40
    journal = Journal(tmp_path, open_file=Torn, interval_ms=1, parquet=False)
    late = threading.Event()
    journal._sealer.submit(late.wait, 30)
    finish(journal)
    assert not journal.flush(0.2)
    FullDisk.room = 10**9
    assert journal.flush(30)
    late.set()
    journal._sealer.submit(int).result(30)
    put(journal)
    journal.close()
    assert is_whole(tmp_path, 2)


@pytest.fixture
def vanished(tmp_path, put):
    """A journal with one row, whose folder is gone."""
    journal = Journal(tmp_path / "gone")
    put(journal)
    shutil.rmtree(tmp_path / "gone")
    return journal


def test_a_folder_that_vanished_is_told(vanished, logs):
    """A segment that is gone with its folder counts as one that could not be sealed, and is tried again."""
    vanished.close()
    assert (1, 0) == (vanished.stats().seal_errors, vanished.stats().segments_sealed)
    assert ["journal.disk_refuses", "journal.seal_failed"] == [entry["event"] for entry in logs]
    assert [open_name(0)] == [path.name for path in vanished._sealer.unsealed]


def test_closing_tries_to_seal_once_however_quick_the_sealer_is(vanished, monkeypatch):
    """A last segment that could not be sealed before the writer looks again is not tried a second time: one error."""
    monkeypatch.setattr(vanished._sealer, "submit", lambda seal, *paths: seal(*paths))
    assert 1 == vanished.close().seal_errors


def test_a_segment_that_somebody_else_has_sealed_is_no_error(tmp_path, put):
    journal = Journal(tmp_path)
    put(journal)
    seal(tmp_path / open_name(0))
    assert 0 == journal.close().seal_errors
    assert is_whole(tmp_path, 1)


def test_journal_starts_on_a_full_disk(tmp_path, write, no_room, put, reopen):
    no_room.room = True
    write(tmp_path, 50, parquet=False)
    reopen(tmp_path)
    no_room.room = False
    with Journal(tmp_path, interval_ms=1) as journal:
        put(journal)
        assert is_whole(tmp_path, 51)
        no_room.room = True
    assert 2 == journal.stats().segments_sealed
    assert is_whole(tmp_path, 51)


def test_journal_starts_beside_a_segment_that_cannot_be_sealed(tmp_path, write, monkeypatch, reopen):
    """Whatever hinders the sealing of an earlier writer's segment, the service starts and its numbers go on."""
    write(tmp_path, 10, parquet=False)
    reopen(tmp_path)
    (tmp_path / END).unlink()
    too_large = ValueError("array cannot contain more than 2147483646 bytes")
    monkeypatch.setattr(_segments, "seal", Mock(side_effect=too_large))
    write(tmp_path, 1)
    assert is_whole(tmp_path, 11)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root, to mount a small file system")
def test_real_full_file_system(tmp_path, finish):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        journal = Journal(tmp_path, capacity=100, chunk=50, interval_ms=1, parquet=False)
        deadline = time.monotonic() + PATIENCE_S
        while not journal.stats().write_errors and time.monotonic() < deadline:
            finish(journal)
        stats = journal.close()
        assert 0 < stats.write_errors
        assert stats.written == verify(tmp_path).rows
        assert verify(tmp_path).ok
    finally:
        subprocess.run(["umount", tmp_path], check=True)
