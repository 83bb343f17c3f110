"""Topics: planned, grown, changed and deleted, on a node that leads."""

import shutil

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication import topic_manager
from examples.broker.storage.topics import OFFSETS_TOPIC, TopicStore
from examples.broker.tests.support import delete, lead, rejected

KEY = ("t", 0)


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"name": "t"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "../t"}, ErrorCode.INVALID_TOPIC),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC),
        ({"name": ""}, ErrorCode.INVALID_TOPIC),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replicas": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replicas": 2, "settings": {"min.insync.replicas": "3"}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"min.insync.replicas": "0"}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"min.insync.replicas": None}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"segment.bytes": "many"}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"retention.ms": "-2"}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"unclean.leader.election.enable": "maybe"}}, ErrorCode.INVALID_CONFIG),
        ({"settings": {"flush.ms": "1"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_impossible_topics_are_refused(leader, wish, code):
    with rejected(code):
        leader.topics.plan(**{"name": "new", "partitions": 1, **wish})


def test_long_names_are_fine(leader):
    topic = leader.topics.plan("x" * 249, partitions=1)
    lead(leader.manager, topic.name)
    assert leader.manager.partitions[topic.name, 0].log.folder.is_dir()


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compaction_of_a_topic_is_rejected_with_the_reason(leader, policy):
    with pytest.raises(BrokerError, match=f"got '{policy}': this broker does not compact topics of clients"):
        leader.topics.plan("new", partitions=1, settings={"cleanup.policy": policy})


def test_what_holds_anyway_may_be_asked_for(leader):
    """A setting that asks for what this broker does in any case is fine, and nothing is remembered of it."""
    assert {} == leader.topics.plan("new", partitions=1, settings={"cleanup.policy": "delete"}).settings


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 1_001])
def test_a_topic_does_not_shrink(leader, count):
    with rejected(ErrorCode.INVALID_PARTITIONS):
        leader.topics.plan_growth(leader.topics.existing("t"), count)


def test_partitions_leave_half_of_the_open_files(leader, monkeypatch):
    """A node that could not open its logs again would not start. Creation and growth are rejected before that."""
    monkeypatch.setattr(topic_manager, "most_partitions", lambda: 5)
    lead(leader.manager, "t", 4)
    leader.topics.plan("u", partitions=1)
    for attempt in (
        lambda: leader.topics.plan("u", partitions=2),
        lambda: leader.topics.plan_growth(leader.topics.existing("t"), 6),
        lambda: leader.topics.check_files(2),
    ):
        with rejected(ErrorCode.POLICY_VIOLATION):
            attempt()


def test_settings_are_heeded_at_once(leader):
    """A topic's own settings take the place of the node's, for what is appended next. Without them the node's hold."""
    leader.configure(max_message_bytes="100")
    leader.append(acks=1)
    assert [{KEY: (ErrorCode.MESSAGE_TOO_LARGE, -1)}] == leader.answers
    leader.configure()
    leader.append(acks=1)
    assert {KEY: (ErrorCode.NONE, 0)} == leader.answers[-1]


def test_a_write_that_waits_is_judged_by_the_new_settings(leader):
    """When more in-sync replicas are needed while a write waits, it is answered by what is needed then."""
    leader.append()
    leader.manager.partitions[KEY].isr = {1, 2}
    leader.configure(min_insync_replicas="3")
    leader.followers_reach(1, nodes=[2])
    leader.run()
    assert [{KEY: (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)}] == leader.answers


def test_what_groups_have_committed_does_not_expire(leader):
    for name in ("old", OFFSETS_TOPIC):
        lead(leader.manager, name, settings={"retention.ms": "1000"})
        leader.append((name, 0), acks=1)
        leader.followers_reach(1, key=(name, 0))
    leader.run()
    leader.manager.retain()
    assert (1, 0) == tuple(leader.manager.partitions[name, 0].log.start_offset for name in ("old", OFFSETS_TOPIC))


@pytest.mark.parametrize("removed", ["by a request", "while the node was stopped"])
def test_a_new_topic_does_not_start_where_an_earlier_one_did(leader, tmp_path, removed):
    """After a crash, the log of a topic that was deleted and created again still has its first records."""
    leader.append(KEY, ("t", 1))
    leader.followers_reach(1)
    leader.manager.delete_records({KEY: 1}, timeout_ms=0, respond=lambda _: None)
    if removed == "by a request":
        delete(leader.manager, "t")
        lead(leader.manager, "t", 2)
    else:
        leader.manager.close()
        shutil.rmtree(tmp_path / "t-0")
        leader.manager.partitions.clear()
        lead(leader.manager, "t", 2)
    leader.append()

    assert (0, 0) == TopicStore(tmp_path).checkpoint_of("t-0")
    assert 1 == leader.manager.partitions[KEY].log.next_offset
