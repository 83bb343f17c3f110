"""Forcing logs to the disk, beside the loop that writes them."""

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from examples.broker.broker import Broker
from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.records import build, parse
from examples.broker.storage.disk import Fsync
from examples.broker.storage.log import Log
from examples.broker.storage.segment import Segment

BATCH = build([(None, b"x" * 100)], timestamps=[1])


@pytest.fixture
def log(tmp_path):
    """Ten batches in ten segments."""
    log = Log(tmp_path / "t-0", segment_bytes=100)
    for _ in range(10):
        log.append(BATCH, parse(BATCH))
    yield log
    log.close()


def test_a_log_can_be_synced_while_it_is_restarted(log, monkeypatch):
    """The fsync thread always finds a segment."""
    real = os.open

    def beside(*arguments):
        log.sync()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", beside)
        log.restart_at(50)

    assert 50 == log.next_offset
    assert ["00000000000000000050.log"] == [path.name for path in log.folder.iterdir()]


def test_segments_that_were_cut_off_are_no_error(log, monkeypatch):
    """Segments may be removed while the fsync thread forces them to the disk. It forces the others."""
    real, synced = Segment.sync, []

    def cut(segment):
        synced.append(segment.base_offset)
        log.truncate_to(3)
        real(segment)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", cut)
        log.sync()
        assert list(range(10)) == synced
        log.sync()

    assert list(range(10)) == synced


def test_a_new_segment_forces_nothing_on_the_loop(log, monkeypatch):
    """The fsync thread forces the earlier segments, too."""
    synced = []
    monkeypatch.setattr(Segment, "sync", lambda segment: synced.append(segment.base_offset))
    log.append(BATCH, parse(BATCH))
    assert [] == synced
    log.sync()
    assert list(range(11)) == synced


def test_an_error_of_the_last_segment_is_raised(log, monkeypatch):
    """It is the disk that rejects the bytes."""

    def fail(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Segment, "sync", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            log.sync()
    monkeypatch.undo()


def test_an_error_does_not_end_the_fsync_thread():
    """The next round comes, whatever happened in the last."""
    rounds = []
    broker = SimpleNamespace(
        config=SimpleNamespace(replication=SimpleNamespace(fsync_interval_ms=1)), _syncing=threading.Event()
    )

    def sync():
        rounds.append(1)
        if len(rounds) == 1:
            raise IndexError
        broker._syncing.set()

    broker.replicas = SimpleNamespace(sync=sync)
    Broker._sync(broker)

    assert 2 == len(rounds)


def test_a_killed_process_leaves_no_batch_that_is_not_on_the_disk(tmp_path, monkeypatch):
    """With ALWAYS, the batch may be acknowledged by the next process, as a duplicate or as a follower's position."""
    log = Log(tmp_path / "t-0")
    log.append(BATCH, parse(BATCH))
    log.close()
    synced = []
    monkeypatch.setattr(Segment, "sync", lambda segment: synced.append(segment.base_offset))
    Log(tmp_path / "t-0", fsync=Fsync.ALWAYS).close()
    assert [0] == synced


def test_batches_before_an_error_are_on_the_disk(tmp_path, monkeypatch):
    """A follower's next fetch acknowledges the batches of a response that came before the one that failed."""
    log = Log(tmp_path / "t-0", fsync=Fsync.ALWAYS)
    synced = []
    monkeypatch.setattr(Segment, "sync", lambda segment: synced.append(segment.next_offset))
    gap = build([(None, b"x")], timestamps=[1], base_offset=5)
    with pytest.raises(BrokerError, match="must begin at 1"):
        log.append_replicated(BATCH + gap)
    assert [1] == synced
    log.close()


def test_the_names_of_new_files_are_on_the_disk(tmp_path, monkeypatch):
    """A record that was forced to the disk is in a file that a power cut leaves in its folder. So is the folder's."""
    synced = []
    monkeypatch.setattr("examples.broker.storage.segment.sync_path", lambda folder: synced.append(folder.name))
    log = Log(tmp_path / "data" / "t-0", segment_bytes=2 * len(BATCH), fsync=Fsync.ALWAYS)
    for expected in (["data", "t-0"], [], ["t-0"]):
        synced.clear()
        log.append(BATCH, parse(BATCH))
        assert expected == sorted(synced)
    log.close()


def test_a_name_and_the_bytes_are_forced_at_once(tmp_path, monkeypatch):
    """A batch that begins a segment takes as long as any other. A name that the disk rejects is an error."""
    log = Log(tmp_path / "data" / "t-0", segment_bytes=2 * len(BATCH), fsync=Fsync.ALWAYS)
    for _ in range(2):
        log.append(BATCH, parse(BATCH))
    together = threading.Barrier(2, timeout=60)
    real = os.fsync

    def forced(fd):
        together.wait()
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", forced)
        log.append(BATCH, parse(BATCH))
    log.append(BATCH, parse(BATCH))

    def rejects(folder):
        raise OSError(errno.EIO, str(folder))

    monkeypatch.setattr("examples.broker.storage.segment.sync_path", rejects)
    with pytest.raises(BrokerError, match="t-0"):
        log.append(BATCH, parse(BATCH))
    assert 4 == log.next_offset
    log.close()


def test_records_are_secured_once_they_are_forced_to_the_disk(log):
    """Everything that was appended before the sync. Records after a cut are not, although the offsets were before."""
    assert 0 == log.secured_offset
    log.sync()
    log.append(BATCH, parse(BATCH))
    assert 10 == log.secured_offset
    log.truncate_to(5)
    log.append(BATCH, parse(BATCH))
    assert 0 == log.secured_offset
    log.sync()
    assert 6 == log.secured_offset


def test_records_of_the_last_process_are_secured_by_the_first_sync(log):
    """A log that is opened again may have records that the last process had not forced to the disk."""
    again = Log(log.folder)
    assert 0 == again.secured_offset
    again.sync()
    assert log.next_offset == again.secured_offset
    again.close()


def test_a_record_that_is_appended_during_a_sync_is_not_secured(log, monkeypatch):
    """The next sync secures it."""
    real = Segment.sync

    def appends(segment):
        monkeypatch.setattr(Segment, "sync", real)
        log.append(BATCH, parse(BATCH))
        real(segment)

    monkeypatch.setattr(Segment, "sync", appends)
    log.sync()
    assert 10 == log.secured_offset
    log.sync()
    assert 11 == log.secured_offset


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.NEVER])
def test_other_policies_secure_at_once(tmp_path, fsync):
    """Each append is forced to the disk, or none is waited for."""
    log = Log(tmp_path / "t-0", fsync=fsync)
    log.append(BATCH, parse(BATCH))
    assert 1 == log.secured_offset
    log.close()
