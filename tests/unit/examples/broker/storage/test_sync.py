"""Forcing logs to the disk, beside the loop that writes them."""

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from examples.broker.broker import Broker
from examples.broker.protocol.records import build, parse
from examples.broker.storage.log import Fsync, Log
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


def test_a_segment_that_was_cut_off_is_no_error(log, monkeypatch):
    """A segment may be removed while the fsync thread forces it to the disk. The next round takes the new last one."""
    real, synced = Segment.sync, []

    def cut(segment):
        synced.append(segment.base_offset)
        log.truncate_to(3)
        real(segment)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", cut)
        log.sync()
        log.sync()

    assert [9, 2] == synced


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


def test_the_names_of_new_files_are_on_the_disk(tmp_path, monkeypatch):
    """A record that was forced to the disk is in a file that a power cut leaves in its folder."""
    synced = []
    monkeypatch.setattr("examples.broker.storage.log.sync_folder", lambda folder: synced.append(folder.name))
    log = Log(tmp_path / "data" / "t-0", segment_bytes=2 * len(BATCH), fsync=Fsync.ALWAYS)
    for expected in (["t-0", "data"], [], ["t-0", "data"]):
        synced.clear()
        log.append(BATCH, parse(BATCH))
        assert expected == synced
    log.close()
