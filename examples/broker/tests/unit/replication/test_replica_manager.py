"""Operations that wait for partitions: produces, fetches and deletions, on a clock moved by hand."""

import os
from pathlib import Path

import pytest

from examples.broker.protocol.errors import ErrorCode
from examples.broker.replication.fetching.delayed_fetch import DelayedFetch
from examples.broker.replication.fetching.fetch_sessions import Wanted
from examples.broker.replication.leadership import Leadership
from examples.broker.storage.disk import Disk, Fsync
from examples.broker.storage.topics import OFFSETS_TOPIC, TopicStore
from examples.broker.tests.support import delete, lead
from examples.broker.tests.unit.replication.conftest import BATCH, KEY


def test_acks_one_is_answered_at_once(leader):
    leader.append(acks=1)
    assert [{KEY: (ErrorCode.NONE, 0)}] == leader.answers


def test_acks_all_waits_for_the_in_sync_replicas(leader):
    leader.append()
    leader.followers_reach(1, nodes=[2])
    leader.run()
    assert [] == leader.answers
    leader.followers_reach(1, nodes=[3])
    assert [] == leader.answers, "not before the current handler's own answer"
    leader.run()
    assert [{KEY: (ErrorCode.NONE, 0)}] == leader.answers
    assert 0 == leader.timer.size


def test_each_partition_is_settled_for_itself(leader):
    """One whose followers are late is answered when the time is over. Its record stays."""
    other = ("t", 1)
    leader.append(KEY, other, ("nope", 0))
    leader.followers_reach(1)
    leader.run()
    leader.timer.advance_clock(1_499)
    assert [] == leader.answers
    leader.timer.advance_clock(1)
    expected = {KEY: (ErrorCode.NONE, 0), other: (ErrorCode.REQUEST_TIMED_OUT, -1)}
    assert [expected | {("nope", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}] == leader.answers
    assert 1 == leader.manager.partitions[other].log.next_offset


@pytest.mark.parametrize(
    ("end", "produced", "fetched"),
    [
        (lambda manager: delete(manager, "t"), ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda manager: manager.shut_down(), ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE),
    ],
    ids=["the topic is deleted", "the node stops"],
)
def test_what_waits_is_answered_when(leader, end, produced, fetched):
    leader.append()
    leader.fetch()
    end(leader.manager)
    leader.run()
    assert [{KEY: (produced, -1)}, "fetched"] == leader.answers
    assert fetched is leader.found[KEY].code


def test_a_consumer_is_woken_by_the_watermark(leader):
    """A consumer's fetch is answered when the record is committed, a follower's when it is appended."""
    assert leader.fetch() is not None
    assert leader.fetch(by_follower=True) is not None
    leader.write()
    assert 1 == leader.answers.count("fetched")
    leader.followers_reach(1)
    leader.run()
    assert 2 == leader.answers.count("fetched")


def test_a_fetch_waits_for_its_bytes_or_the_end_of_its_time(leader):
    leader.fetch(min_bytes=2 * len(BATCH))
    for answered in (0, 1):
        leader.commit()
        assert answered == leader.answers.count("fetched")
    leader.fetch(2)
    leader.timer.advance_clock(500)
    assert 2 == leader.answers.count("fetched")


@pytest.mark.parametrize("offset", [0, 99], ids=["there", "out of range"])
def test_a_fetch_that_can_be_answered_is_not_parked(leader, offset):
    leader.commit()
    assert leader.fetch(offset) is None
    purgatory = leader.manager.fetches.purgatory
    assert (0, 0) == (purgatory.parked, purgatory.snapshot().totals.immediate)


@pytest.mark.parametrize("by_follower", [True, False])
@pytest.mark.parametrize("offset", [0, 99])
def test_who_is_out_of_range_learns_the_range(leader, offset, by_follower):
    leader.commit(2)
    leader.append(acks=1)
    leader.partition.delete_before(1)
    leader.fetch(offset, by_follower=by_follower)
    found = leader.found[KEY]
    assert (ErrorCode.OFFSET_OUT_OF_RANGE, 1, 2) == (found.code, found.log_start, found.high_watermark)


def test_a_fetch_from_an_older_segment_does_not_wait(make_leader):
    """No more will come into an older segment: the fetch is answered with less than it wants."""
    leader = make_leader(segment_bytes=100)
    leader.append(acks=1)
    leader.append(acks=1)
    assert leader.fetch(0, min_bytes=1 << 20, by_follower=True) is None
    assert leader.fetch(1, min_bytes=1 << 20, by_follower=True) is not None


def test_a_client_that_leaves_takes_its_fetch_out(leader):
    operation = leader.fetch()
    assert operation.cancel()
    leader.timer.advance_clock(1_000)
    assert ([], 0) == (leader.answers, leader.timer.size)


def test_deletion_waits_for_the_followers_log_starts(leader):
    leader.commit()
    leader.answers.clear()
    for _ in range(2):
        leader.delete(1, timeout_ms=1_000)
    leader.timer.advance_clock(999)
    leader.followers_reach(1, nodes=[2], log_start=1)
    leader.run()
    assert [] == leader.answers
    leader.followers_reach(1, nodes=[3], log_start=1)
    leader.run()
    assert 2 * [{KEY: (ErrorCode.NONE, 1)}] == leader.answers
    leader.delete(7)
    assert {KEY: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)} == leader.answers[-1]


def test_deletion_does_not_wait_for_a_dead_node(leader):
    """Its replica deletes when it is back."""
    leader.commit()
    leader.delete(1, timeout_ms=1_000)
    leader.followers_reach(1, nodes=[2], log_start=1)
    leader.manager.metadata.set_live_nodes({1: ("h", 1), 2: ("h", 2)})
    leader.manager.changed(leader.partition)
    leader.run()
    assert {KEY: (ErrorCode.NONE, 1)} == leader.answers[-1]


def test_deletion_times_out(leader):
    leader.commit()
    leader.delete(1, timeout_ms=1_000)
    leader.timer.advance_clock(1_000)
    assert {KEY: (ErrorCode.REQUEST_TIMED_OUT, 0)} == leader.answers[-1]


def test_without_room_to_park_the_answer_is_what_there_is(make_leader):
    leader = make_leader(max_parked=1)
    leader.append()
    leader.append()
    assert [{KEY: (ErrorCode.REQUEST_TIMED_OUT, -1)}] == leader.answers


def test_topics_and_watermarks_are_found_again(leader, make_replicas):
    leader.commit()
    leader.delete(1)
    leader.manager.checkpoint()
    again = make_replicas((1, 2, 3))
    lead(again, "t", 2)
    partition = again.partitions[KEY]
    assert (1, 1, 1) == (partition.log.start_offset, partition.high_watermark, partition.log.next_offset)


@pytest.mark.parametrize(("policy", "at_once"), [(Fsync.INTERVAL, 0), (Fsync.ALWAYS, 2)])
def test_a_deletion_is_on_the_disk_when_the_logs_are(make_leader, monkeypatch, policy, at_once):
    """With INTERVAL, the fsync thread forces the checkpoint, before the logs. With ALWAYS, it is there at once."""
    synced = []
    leader = make_leader(fsync=policy)
    leader.commit()
    leader.manager.sync()
    leader.append(acks=1)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))  # noqa: PTH115
    leader.delete(1)
    assert at_once == len(synced)
    synced.clear()
    leader.manager.sync()
    if policy is Fsync.INTERVAL:
        assert ["checkpoint.json", leader.manager.store.folder.name, f"{0:020d}.log"] == synced


def test_producer_ids_are_never_given_twice(tmp_path):
    stores = (TopicStore(tmp_path) for _ in range(3))
    ids = [store.next_producer_id() for store in stores for _ in range(1_500)]
    assert len(ids) == len(set(ids))


def test_a_write_to_many_partitions_checks_each_operation_once(leader, monkeypatch):
    calls = []
    check = DelayedFetch.try_complete
    monkeypatch.setattr(DelayedFetch, "try_complete", lambda self: calls.append(self) or check(self))
    wanted = {KEY: Wanted(0, 1 << 20), ("t", 1): Wanted(0, 1 << 20)}
    operation = leader.fetch_in_session(wanted, epoch=-1, min_bytes=1 << 20, node=2)
    calls.clear()
    leader.write(KEY, ("t", 1))
    assert [operation] == calls


def test_ends_are_those_of_now(leader, make_replicas):
    """A node registers with the ends that its logs have then, those included that no controller has named yet."""
    leader.append()
    leader.manager.checkpoint()
    leader.manager.close()
    restarted = make_replicas((1, 2, 3))
    for index in (0, 1):
        (leader.manager.store.folder / f"t-{index}" / "topic_id").write_text("a")
    restarted.folders.open_all()
    restarted.lead_or_follow(KEY, Leadership(1, 4, (1,)), (1,))
    restarted.append({KEY: BATCH}, acks=1, timeout_ms=0, respond=lambda _: None)
    assert {"t-0": (4, 2), "t-1": (0, 0)} == restarted.folders.ends()


@pytest.mark.parametrize(("is_cut", "end"), [(False, (4, 2)), (True, (0, 1))])
def test_an_epoch_without_records_is_remembered(leader, make_replicas, is_cut, end):
    """A leader may have committed records of earlier epochs alone. A cut forgets the epoch, as any other."""
    leader.append()
    leader.append()
    leader.manager.lead_or_follow(KEY, Leadership(1, 4, (1,)), (1, 2, 3))
    if is_cut:
        leader.partition.log.truncate_to(1)
    leader.manager.checkpoint()
    restarted = make_replicas((1, 2, 3))
    (leader.manager.store.folder / "t-0" / "topic_id").write_text("a")
    restarted.folders.open_all()
    assert end == restarted.folders.ends()["t-0"]


def test_records_of_the_offsets_topic_stay(leader):
    """A client must not delete committed offsets, not even through DeleteRecords."""
    key = (OFFSETS_TOPIC, 0)
    lead(leader.manager, OFFSETS_TOPIC)
    leader.append(key, acks=1)
    leader.followers_reach(1, key=key)
    leader.manager.delete_records({key: -1}, timeout_ms=0, respond=leader.answers.append)
    assert {key: (ErrorCode.INVALID_TOPIC, -1)} == leader.answers[-1]
    assert 0 == leader.manager.partitions[key].log.start_offset


def test_a_failure_of_the_disk_that_is_over_is_reported(leader, tmp_path):
    """A node that registers meanwhile reports the failing disk by itself. So the end of every failure is reported."""
    now = [0.0]
    disk = leader.manager.store.disk = Disk(tmp_path, lambda: now[0])
    reports = []
    leader.manager.on_disk = reports.append
    disk.failed(OSError("no space left on device"))
    now[0] = 100.0
    for expected in ([True], [True, False], [True, False]):
        leader.manager.check_disk()
        assert expected == reports
