"""Leadership that comes and goes: epochs, requested in-sync replicas, and the answers of parked operations."""

import time
from unittest.mock import Mock

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import batches
from examples.broker.replication.leadership import Leadership
from examples.broker.storage.topics import Topic
from examples.broker.tests.support import batch_of, rejected
from examples.broker.tests.unit.replication.conftest import KEY

ALL = (1, 2, 3)


def test_thousands_parked_are_answered_when_leadership_moves(node):
    node.decide(1, 0)
    for _ in range(3_000):
        node.append()
        node.fetch()
    waiting = node.manager.produces, node.manager.fetches.purgatory
    assert [3_000, 3_000] == [each.num_delayed for each in waiting]
    node.decide(2, 1)
    assert 3_000 == node.answers.count({KEY: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)})
    assert {ErrorCode.NOT_LEADER_OR_FOLLOWER: 3_000} == node.codes
    assert [0, 0] == [each.num_delayed for each in waiting]
    assert [("leads", KEY), ("follows", KEY)] == node.told


def test_stopped_replica_answers_what_waits_and_keeps_its_records(node):
    node.decide(1, 0)
    node.append()
    node.manager.stop_replica(KEY)
    node.run()
    assert [{KEY: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}] == node.answers
    assert 1 == node.partition.log.next_offset


def test_stopped_leader_does_not_write_the_in_sync_replicas_that_it_wanted(node):
    node.decide(1, 0)
    node.partition.adapt_isr(time.monotonic() + 100, 3.0)
    assert node.partition.wanted_isr == {1}
    node.manager.stop_replica(KEY)
    node.manager.adapt_isrs()
    assert [] == node.wishes


def test_older_decision_is_ignored(node):
    node.decide(1, 5)
    node.manager.lead_or_follow(KEY, Leadership(2, 4, ALL, 9), ALL)
    assert (True, 5) == (node.partition.is_leader, node.partition.leader_epoch)


@pytest.mark.parametrize(("epoch", "code"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_other_epochs_are_refused(node, epoch, code):
    node.decide(1, 5)
    node.fetch(by_follower=True, leader_epoch=epoch)
    assert {code: 1} == node.codes
    with rejected(code):
        node.partition.check_epoch(epoch)


def test_growing_counts_before_it_is_written(node):
    """A follower that is to join is waited for from then on: the controller may know before us that it is in sync."""
    node.decide(1, 0, isr=(1, 2))
    node.append()
    for follower, offset, watermark in ((2, 1, 1), (3, 1, 1), (2, 2, 1), (3, 2, 2)):
        node.fetched(follower, offset)
        assert watermark == node.partition.high_watermark
        node.append()
    assert {1, 2, 3} == node.partition.wanted_isr


def test_joining_takes_all_that_earlier_leaders_committed(node):
    """A follower below the end at which this leader began is not in sync, though it passed a watermark that is old."""
    node.decide(2, 0)
    node.partition.log.append_replicated(batch_of(*[b"x"] * 5))
    node.decide(1, 1, isr=(1, 2))
    assert 0 == node.partition.high_watermark
    node.fetched(3, 3)
    assert None is node.partition.wanted_isr
    node.fetched(3, 5)
    assert {1, 2, 3} == node.partition.wanted_isr


@pytest.mark.parametrize(("now", "wanted"), [(3.9, {1, 2, 3}), (4.1, None)])
def test_node_that_could_not_join_at_once_joins_later(node, now, wanted):
    """A node that is about to stop is not taken in. If it stays, it is taken in unless it lags by then."""
    node.decide(1, 0, isr=(1, 2))
    node.manager.metadata.set_live_nodes({each: ("host", each) for each in ALL}, [3])
    node.fetched(2, 0, now=5.0)
    node.fetched(3, 0, now=1.0)
    node.partition.adapt_isr(1.0, 3.0)
    assert None is node.partition.wanted_isr
    node.manager.metadata.set_live_nodes({each: ("host", each) for each in ALL})
    node.partition.adapt_isr(now, 3.0)
    assert wanted == node.partition.wanted_isr


def test_leader_forgets_what_its_followers_had_under_another_leader(node):
    """They may have been cut since."""
    node.decide(1, 0)
    node.append()
    node.fetched(2, 1)
    node.decide(2, 1)
    node.decide(1, 2)
    node.fetched(3, 1)
    assert 0 == node.partition.high_watermark


def test_epoch_is_written_into_batches(node):
    node.decide(1, 3)
    node.append()
    node.decide(2, 4)
    node.decide(1, 5)
    node.append()
    data = node.partition.log.read(0, 2, 1 << 20)
    assert [3, 5] == [batch.leader_epoch for batch in batches(data)]


def test_cut_where_epochs_part(node):
    """A former leader drops what its successor doesn't have, by epoch, and is aligned then."""
    node.decide(1, 3)
    for _ in range(4):
        node.append()
    node.decide(2, 4)
    assert not node.partition.is_aligned
    assert node.partition.align(3, 2)
    assert (2, True) == (node.partition.log.next_offset, node.partition.is_aligned)


def test_cut_asks_again_when_epochs_differ(node):
    """When the leader never had our newest epoch, it goes, and the one before is asked for."""
    for epoch in (1, 3):
        node.decide(1, epoch)
        node.append()
        node.decide(2, epoch + 1)
    assert not node.partition.align(2, 1)
    assert 1 == node.partition.log.epochs.latest
    assert node.partition.align(1, 1)
    assert 1 == node.partition.log.next_offset


def test_an_epoch_without_records_is_cut_off(node):
    """With that epoch, a former leader would give its followers a wrong answer, and they would ask for ever."""
    node.decide(1, 4)
    node.append()
    node.decide(1, 5)
    node.decide(2, 6)
    assert 5 == node.partition.log.epochs.latest
    assert node.partition.align(4, 7)
    node.partition.log.append_replicated(batch_of(b"y", base_offset=1))
    assert (4, 2) == node.partition.log.epochs.end_of(6, node.partition.log.next_offset)


@pytest.mark.parametrize(("removal", "leader"), [("delete_replica", 1), ("drop_stray", 2)])
def test_removed_replica_leaves_nothing(node, removal, leader):
    """One that is deleted, or a stray that other nodes have, leaves no folder, opened in this run or not."""
    node.decide(leader, 0)
    node.append()
    folder, remove = node.partition.log.folder, getattr(node.manager, removal)
    remove(KEY)
    assert (False, {}) == (folder.exists(), node.manager.partitions)
    folder.mkdir()
    remove(KEY)
    remove(("never", 0))
    assert not folder.exists()


def test_other_replicas_under_one_leadership(node):
    """A node that joins without an election may be requested as in sync. One that leaves counts while it is in sync."""
    node.decide(1, 0)
    node.append()
    now = Leadership(1, 0, ALL, node.version)
    with pytest.raises(BrokerError):
        node.fetched(4, 1)
    node.manager.metadata.set_live_nodes({each: ("host", each) for each in (*ALL, 4)})

    node.manager.lead_or_follow(KEY, now, (*ALL, 4))
    node.fetched(4, 1)
    assert {1, 2, 3, 4} == node.partition.wanted_isr

    node.manager.lead_or_follow(KEY, now, (1, 4))
    assert ({1, 2, 3, 4}, (1, 4)) == (node.partition.wanted_isr, node.partition.replicas)
    node.fetched(2, 1)
    assert 0 == node.partition.high_watermark
    assert node.partition.settle_isr((1, 4), node.version + 1)
    assert 1 == node.partition.high_watermark


def test_a_node_on_a_full_disk_leads_its_replicas_again(node, monkeypatch):
    """It writes nothing before it leads, and does not lose the ids of the topics."""
    node.manager.store.topics["t"] = Topic("t", 1, ALL, topic_id="first")
    node.decide(1, 0)
    node.append()
    node.forget()
    monkeypatch.setattr("pathlib.Path.write_text", Mock(side_effect=OSError(28, "No space left on device")))
    node.decide(1, 1)
    assert (True, 1) == (node.partition.is_leader, node.partition.log.next_offset)


def test_what_is_left_of_another_topic_is_removed(node):
    """A folder that belongs to an earlier topic of the name is begun again. One of the same, or of none, is kept."""
    topics, kept = node.manager.store.topics, []
    for topic_id in ("first", "first", "", "second"):
        topics["t"] = Topic("t", 1, ALL, topic_id=topic_id)
        node.decide(1, len(kept))
        kept.append(node.partition.log.next_offset)
        node.append()
        node.forget()
    assert [0, 1, 2, 0] == kept
