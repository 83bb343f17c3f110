"""Forcing logs to the disk, beside the loop that writes them."""

import errno
import os
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from examples.broker.broker import Broker
from examples.broker.protocol.errors import BrokerError
from examples.broker.storage.disk import Fsync
from examples.broker.storage.segment import Segment
from examples.broker.tests import support

VALUE = b"x" * 100
BATCH = support.batch_of(VALUE)


def append(log):
    return support.append(log, VALUE)


@pytest.fixture
def log(open_log):
    """Ten batches in ten segments."""
    log = open_log(segment_bytes=100)
    for _ in range(10):
        append(log)
    return log


@pytest.fixture
def synced(monkeypatch):
    """The segments that were forced to the disk, by their first offset and their next."""
    synced = []
    record = synced.append
    monkeypatch.setattr(Segment, "sync", lambda segment: record((segment.base_offset, segment.next_offset)))
    return synced


def test_a_log_can_be_synced_while_it_is_restarted(log, monkeypatch):
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
        for _ in range(2):  # the second round has nothing left to do
            log.sync()
            assert list(range(10)) == synced


def test_a_new_segment_forces_nothing_on_the_loop(log, synced):
    append(log)
    assert [] == synced
    log.sync()
    assert [(offset, offset + 1) for offset in range(11)] == synced


def test_an_error_of_the_last_segment_is_raised(log, monkeypatch):
    monkeypatch.setattr(Segment, "sync", Mock(side_effect=OSError(errno.EIO, "broken")))
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            log.sync()
    monkeypatch.undo()


def test_an_error_does_not_end_the_fsync_thread():
    rounds, over = [], threading.Event()

    def sync():
        rounds.append(1)
        if len(rounds) == 1:
            raise IndexError
        over.set()

    settings = SimpleNamespace(replication=SimpleNamespace(fsync_interval_ms=1))
    Broker._sync(SimpleNamespace(config=settings, replicas=SimpleNamespace(sync=sync), _syncing=over))
    assert 2 == len(rounds)


def test_a_killed_process_leaves_no_batch_that_is_not_on_the_disk(open_log, synced):
    """With ALWAYS, the batch may be acknowledged by the next process, as a duplicate or as a follower's position."""
    append(open_log(fsync=Fsync.NEVER))
    open_log(fsync=Fsync.ALWAYS)
    assert [(0, 1)] == synced


def test_batches_before_an_error_are_on_the_disk(open_log, synced):
    """A follower's next fetch acknowledges the batches of a response that came before the one that failed."""
    gap = support.batch_of(b"x", base_offset=5)
    with pytest.raises(BrokerError, match="must begin at 1"):
        open_log(fsync=Fsync.ALWAYS).append_replicated(BATCH + gap)
    assert [(0, 1)] == synced


def test_the_names_of_new_files_are_on_the_disk(tmp_path, open_log, monkeypatch):
    """A record that was forced to the disk is in a file that a power cut leaves in its folder. So is the folder's."""
    forced = []
    monkeypatch.setattr("examples.broker.storage.segment.sync_path", lambda folder: forced.append(folder.name))
    log = open_log(tmp_path / "data" / "t-0", segment_bytes=2 * len(BATCH), fsync=Fsync.ALWAYS)
    for expected in (["data", "t-0"], [], ["t-0"]):
        forced.clear()
        append(log)
        assert expected == sorted(forced)


def test_a_name_and_the_bytes_are_forced_at_once(open_log, monkeypatch):
    """A batch that begins a segment takes as long as any other. A name that the disk rejects is an error."""
    log = open_log(segment_bytes=2 * len(BATCH), fsync=Fsync.ALWAYS)
    for _ in range(2):
        append(log)
    together = threading.Barrier(2, timeout=60)
    real = os.fsync

    def forced(fd):
        together.wait()
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", forced)
        append(log)
    append(log)
    rejects = Mock(side_effect=OSError(errno.EIO, "t-0"))
    monkeypatch.setattr("examples.broker.storage.segment.sync_path", rejects)
    with pytest.raises(BrokerError, match="t-0"):
        append(log)
    assert 4 == log.next_offset


@pytest.mark.usefixtures("log")
def test_records_are_secured_once_they_are_forced_to_the_disk(open_log):
    """All records of before the sync are, those of the last process, too. After a cut, other ones had their offsets."""
    log = open_log()
    assert 0 == log.secured_offset
    log.sync()
    append(log)
    assert 10 == log.secured_offset
    log.truncate_to(5)
    append(log)
    assert 0 == log.secured_offset
    log.sync()
    assert 6 == log.secured_offset
    log.truncate_to(3)
    log.sync()
    assert 3 == log.secured_offset


def test_a_record_that_is_appended_during_a_sync_is_not_secured(log, monkeypatch):
    real = Segment.sync

    def appends(segment):
        monkeypatch.setattr(Segment, "sync", real)
        append(log)
        real(segment)

    monkeypatch.setattr(Segment, "sync", appends)
    for secured in (10, 11):
        log.sync()
        assert secured == log.secured_offset


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.NEVER])
def test_other_policies_secure_at_once(open_log, fsync):
    """Each append is forced to the disk, or none is waited for."""
    log = open_log(fsync=fsync)
    append(log)
    assert 1 == log.secured_offset
