"""A disk that rejects writes: its effect on the log, the producers' sequences and the small files."""

import asyncio
import os
import threading
from unittest import mock

import pytest
from structlog.testing import capture_logs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.storage import topics
from examples.broker.storage.disk import Disk, Fsync
from examples.broker.storage.topics import TopicStore
from examples.broker.tests.support import append, outcome

FULL = OSError(28, "No space left on device")
REJECTED = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def full(monkeypatch):
    """Have the disk of these tests reject writes to logs and probes while the fixture's only element is True."""
    is_full, pwrite = [True], os.pwrite

    def write(fd, data, position):
        if is_full[0]:
            raise FULL
        return pwrite(fd, data, position)

    monkeypatch.setattr("examples.broker.storage.segment.os.pwrite", write)
    return is_full


@pytest.fixture
def now():
    """The time of the disk, which a test moves."""
    return [1_000.0]


@pytest.fixture
def disk(tmp_path, now):
    return Disk(tmp_path, lambda: now[0])


@pytest.fixture
def heal(disk, now, full):
    """Have the disk accept writes again, and found out."""

    def heal():
        full[0] = False
        now[0] += 60
        disk.probe()

    return heal


@pytest.fixture
def log(open_log, disk):
    return open_log(disk=disk)


def send(log, *sequences):
    """Append batches of an idempotent producer. Gives the offset or the error code of each."""
    return [outcome(append, log, b"x", producer=(9, 0, sequence)) for sequence in sequences]


def test_while_the_disk_fails_nothing_is_tried(log, full, heal):
    """After one failed write every append is rejected, without a write, until a probe succeeds."""
    for full[0] in (True, False):
        assert [REJECTED] == send(log, 0)
    heal()
    assert [0] == send(log, 0)


def test_a_batch_behind_a_rejected_one_is_not_out_of_order(log, full, heal):
    """Batches in flight behind it get the storage error until it has come again. A known duplicate is answered."""
    full[0] = False
    send(log, 0)
    full[0] = True
    assert [REJECTED, REJECTED, REJECTED, 0] == send(log, 1, 2, 3, 0)
    heal()
    assert [REJECTED, 1, 2, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] == send(log, 2, 1, 2, 3, 9)


def test_what_cannot_be_forced_to_the_disk_is_taken_back(open_log, disk, full, heal, monkeypatch):
    """With ``always``, a batch that fsync rejects is not in the log afterwards, and appended when it comes again."""
    full[0] = False
    log = open_log(fsync=Fsync.ALWAYS, disk=disk)
    send(log, 0)
    with monkeypatch.context() as patch:
        rejects = mock.Mock(side_effect=OSError(5, "Input/output error"))
        patch.setattr("examples.broker.storage.segment.os.fsync", rejects)
        assert [REJECTED] == send(log, 1)
    assert 1 == log.next_offset
    heal()
    assert [1] == send(log, 1)


def test_an_incident_is_two_lines(log, full, heal):
    with capture_logs() as lines:
        send(log, *[0] * 50)
        heal()
    assert ["a write failed", "writes succeed again"] == [line["event"] for line in lines]


def test_the_cause_is_named(disk):
    """Writes fail for other reasons than a full disk. The error of a rejected write names the first one."""
    disk.failed(OSError(24, "Too many open files"))
    disk.failed(FULL)
    with pytest.raises(BrokerError, match="Too many open files"):
        disk.check()


def test_a_disk_that_fails_again_soon_is_probed_less_often(disk, now):
    """The wait before a probe doubles with each incident that follows soon, up to half a minute."""

    def wait_for_probe():
        disk.failed(FULL)
        began = now[0]
        while disk.is_failing:
            now[0] += 0.5
            disk.probe()
        return now[0] - began

    assert [2, 4, 8, 16, 30, 30, 30] == [wait_for_probe() for _ in range(7)]
    now[0] += 600
    assert wait_for_probe() <= 1


@pytest.fixture
def store(tmp_path):
    return TopicStore(tmp_path)


def small_files_rejected():
    """Have the disk reject the files that are replaced as a whole."""
    return mock.patch("examples.broker.storage.topics.replace_file", side_effect=FULL)


def test_a_full_disk_gives_no_producer_id_twice(store, tmp_path):
    """When the next block of producer ids cannot be reserved, none of it is given, also after a restart."""
    with small_files_rejected():
        assert [REJECTED, REJECTED] == [outcome(store.next_producer_id) for _ in range(2)]
    first = store.next_producer_id()
    assert first < TopicStore(tmp_path).next_producer_id()


async def test_a_checkpoint_is_written_beside_the_loop(tmp_path, monkeypatch):
    store, threads = TopicStore(tmp_path, durably=True), []
    monkeypatch.setattr(topics, "replace_file", lambda *_, **__: threads.append(threading.current_thread()))
    await store.save_checkpoint_beside({"t-0": [1, 2]})
    await store.save_checkpoint_beside({"t-0": [1, 2]})
    assert (1, (1, 2)) == (len(threads), store.checkpoint_of("t-0"))
    assert threading.current_thread() not in threads


async def test_a_checkpoint_beside_the_loop_replaces_none_that_follows(store, tmp_path, monkeypatch):
    """While a thread is about to write it, records are deleted. That checkpoint is the one in the file."""
    real = asyncio.to_thread

    async def late(write, *arguments):
        store.save_checkpoint({"t-0": [5, 6]})
        return await real(write, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", late)
    await store.save_checkpoint_beside({"t-0": [1, 2]})
    assert (5, 6) == store.checkpoint_of("t-0") == TopicStore(tmp_path).checkpoint_of("t-0")


async def test_a_partition_that_is_removed_during_a_checkpoint_is_written_later(store, tmp_path, monkeypatch):
    """A new partition of that name does not begin where the removed one was."""
    store.save_checkpoint({"t-0": [1, 2]})
    real = topics.replace_file

    def removes(*arguments, **options):
        store.forget_checkpoint("t-0")
        real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(topics, "replace_file", removes)
        await store.save_checkpoint_beside({"t-1": [3, 4]})
    store.secure_removals()
    assert (0, 0) == store.checkpoint_of("t-0") == TopicStore(tmp_path).checkpoint_of("t-0")


def test_a_checkpoint_that_was_not_written_is_written_later(store, tmp_path):
    with small_files_rejected():
        store.save_checkpoint({"t-0": [1, 2]})
    store.disk.is_failing = False
    store.save_checkpoint({"t-0": [1, 2]})
    assert (1, 2) == TopicStore(tmp_path).checkpoint_of("t-0")
