"""What waits for partitions: produces, fetches and deletions, on a clock moved by hand."""

import pytest

from examples.broker.config import Config
from examples.broker.delayed_fetch import Wanted
from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.records import build
from examples.broker.replica_manager import ReplicaManager
from examples.broker.topics import TopicStore
from purgatory import ActionQueue
from timer import MockTimer

KEY = ("t", 0)
BATCH = build([(None, b"x" * 50)], timestamps=[1])


class Fixture:
    """A leader of three nodes with a topic, and what it answered."""

    def __init__(self, folder, **settings):
        self.timer = MockTimer()
        self.actions = ActionQueue()
        config = Config(data=folder, ports=(1, 2, 3), replica_lag_ms=3_000, **settings)
        self.manager = ReplicaManager(config, TopicStore(folder), self.timer, self.actions)
        self.manager.create_topic("t", partitions=2)
        self.partition = self.manager.partitions[KEY]
        self.answers = []

    def run(self):
        while len(self.actions):
            self.actions.try_complete_actions()

    def append(self, *keys, acks=-1):
        self.manager.append(
            dict.fromkeys(keys or (KEY,), BATCH), acks=acks, timeout_ms=1_500, respond=self.answers.append
        )

    def fetch(self, offset=0, *, min_bytes=1, by_follower=False, max_bytes=1 << 20):
        return self.manager.fetch(
            [Wanted(self.partition, offset, max_bytes)],
            max_wait_ms=500,
            min_bytes=min_bytes,
            by_follower=by_follower,
            respond=lambda: self.answers.append("fetched"),
        )

    def followers_reach(self, offset, nodes=(2, 3), key=KEY, log_start=0):
        for node in nodes:
            self.manager.follower_fetches(node, self.manager.partitions[key], offset, log_start)


@pytest.fixture
def leader(tmp_path):
    fixture = Fixture(tmp_path)
    yield fixture
    fixture.manager.shut_down()
    fixture.manager.close()
    fixture.timer.shutdown()


def test_acks_one_is_answered_at_once(leader):
    """Without acks=all nothing waits for the followers."""
    leader.append(acks=1)
    assert [{KEY: (ErrorCode.NONE, 0)}] == leader.answers


def test_acks_all_waits_for_the_in_sync_replicas(leader):
    """An acks=all write is answered when the last in-sync replica has it."""
    leader.append()
    leader.followers_reach(1, nodes=[2])
    leader.run()
    assert [] == leader.answers
    leader.followers_reach(1, nodes=[3])
    assert [] == leader.answers, "not before the current handler's own answer"
    leader.run()
    assert [{KEY: (ErrorCode.NONE, 0)}] == leader.answers
    assert 0 == leader.timer.size


def test_acks_all_times_out(leader):
    """At the producer's timeout, and not before, the answer is REQUEST_TIMED_OUT; the record stays."""
    leader.append()
    leader.timer.advance_clock(1_499)
    assert [] == leader.answers
    leader.timer.advance_clock(1)
    assert [{KEY: (ErrorCode.REQUEST_TIMED_OUT, -1)}] == leader.answers
    assert 1 == leader.partition.log.next_offset


def test_each_partition_is_settled_for_itself(leader):
    """Of two partitions, the one that was committed says so, and the other that it timed out."""
    leader.append(KEY, ("t", 1), ("nope", 0))
    leader.followers_reach(1)
    leader.run()
    leader.timer.advance_clock(1_500)
    assert [
        {
            KEY: (ErrorCode.NONE, 0),
            ("t", 1): (ErrorCode.REQUEST_TIMED_OUT, -1),
            ("nope", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        }
    ] == leader.answers


def test_a_write_waiting_for_a_deleted_topic_is_told(leader):
    """Deleting the topic answers what waits for it."""
    leader.append()
    leader.fetch()
    leader.manager.delete_topic("t")
    leader.run()
    assert [{KEY: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}, "fetched"] == leader.answers


def test_a_consumer_is_woken_by_the_watermark(leader):
    """A consumer's fetch is answered when the record is committed, a follower's when it is appended."""
    assert leader.fetch() is not None
    assert leader.fetch(by_follower=True) is not None
    leader.append(acks=1)
    leader.run()
    assert 1 == leader.answers.count("fetched")
    leader.followers_reach(1)
    leader.run()
    assert 2 == leader.answers.count("fetched")


def test_a_fetch_waits_for_its_bytes(leader):
    """A fetch is answered once min.bytes have gathered, and at the end of its wait with what there is."""
    leader.fetch(min_bytes=2 * len(BATCH))
    for count, answered in ((1, 0), (2, 1)):
        leader.append(acks=1)
        leader.followers_reach(count)
        leader.run()
        assert answered == leader.answers.count("fetched")
    leader.fetch(2)
    leader.timer.advance_clock(500)
    assert 2 == leader.answers.count("fetched")


def test_a_fetch_of_what_is_there_does_not_wait(leader):
    """What can be answered is not parked; neither is a fetch out of range."""
    leader.append(acks=1)
    leader.followers_reach(1)
    assert leader.fetch(0) is None
    assert leader.fetch(99) is None
    assert 0 == leader.manager.fetches.parked


def test_a_fetch_from_an_older_segment_does_not_wait(tmp_path):
    """No more will come into an older segment: the fetch is answered with less than it wants."""
    leader = Fixture(tmp_path, segment_bytes=100)
    leader.append(acks=1)
    leader.append(acks=1)
    assert leader.fetch(0, min_bytes=1 << 20, by_follower=True) is None
    assert leader.fetch(1, min_bytes=1 << 20, by_follower=True) is not None
    leader.manager.shut_down()
    leader.manager.close()


def test_a_client_that_leaves_takes_its_fetch_out(leader):
    """A parked fetch that is cancelled is neither answered nor expired."""
    operation = leader.fetch()
    assert operation.cancel()
    leader.timer.advance_clock(1_000)
    assert ([], 0) == (leader.answers, leader.timer.size)


def test_deletion_waits_for_the_followers_log_starts(leader):
    """Records are gone when each replica says that its log starts later; until then, or the timeout, it waits."""
    leader.append(acks=1)
    leader.followers_reach(1)
    leader.run()
    for _ in range(2):
        leader.manager.delete_records({KEY: 1}, timeout_ms=1_000, respond=leader.answers.append)
    leader.answers.clear()
    leader.timer.advance_clock(999)
    leader.followers_reach(1, nodes=[2], log_start=1)
    leader.run()
    assert [] == leader.answers
    leader.followers_reach(1, nodes=[3], log_start=1)
    leader.run()
    assert 2 * [{KEY: (ErrorCode.NONE, 1)}] == leader.answers
    leader.manager.delete_records({KEY: 7}, timeout_ms=1_000, respond=leader.answers.append)
    assert {KEY: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)} == leader.answers[-1]


def test_deletion_times_out(leader):
    """A replica that doesn't delete in time is named by REQUEST_TIMED_OUT and the low watermark."""
    leader.append(acks=1)
    leader.followers_reach(1)
    leader.manager.delete_records({KEY: 1}, timeout_ms=1_000, respond=leader.answers.append)
    leader.timer.advance_clock(1_000)
    assert {KEY: (ErrorCode.REQUEST_TIMED_OUT, 0)} == leader.answers[-1]


def test_without_room_to_park_the_answer_is_what_there_is(tmp_path):
    """A full purgatory answers as at expiry, instead of growing."""
    leader = Fixture(tmp_path, max_parked=1)
    leader.append()
    leader.append()
    assert [{KEY: (ErrorCode.REQUEST_TIMED_OUT, -1)}] == leader.answers
    leader.manager.shut_down()
    leader.manager.close()


def test_stopping_answers_everything(leader):
    """At shutdown whatever waits is answered as at expiry."""
    leader.append()
    leader.fetch()
    leader.manager.shut_down()
    assert [{KEY: (ErrorCode.REQUEST_TIMED_OUT, -1)}, "fetched"] == leader.answers


def test_topics_and_watermarks_are_found_again(tmp_path):
    """Topics, log starts and watermarks are there when the node starts anew."""
    first = Fixture(tmp_path)
    first.append(acks=1)
    first.followers_reach(1)
    first.manager.delete_records({KEY: 1}, timeout_ms=0, respond=first.answers.append)
    first.manager.shut_down()
    first.manager.close()
    config = Config(data=tmp_path, ports=(1, 2, 3))
    again = ReplicaManager(config, TopicStore(tmp_path), MockTimer(), ActionQueue())
    partition = again.partitions[KEY]
    assert (1, 1, 1) == (partition.log.start_offset, partition.high_watermark, partition.log.next_offset)
    again.shut_down()
    again.close()


def test_a_new_topic_is_empty(leader, tmp_path):
    """A topic made under the name of a deleted one has nothing of it, even if files were left behind."""
    leader.append(acks=1)
    leader.run()
    kept = (tmp_path / "t-0").rename(tmp_path / "aside")
    leader.manager.delete_topic("t")
    kept.rename(tmp_path / "t-0")
    leader.manager.create_topic("t", partitions=1)
    assert 0 == leader.manager.partitions[KEY].log.next_offset


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"name": "t"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "../t"}, ErrorCode.INVALID_TOPIC),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC),
        ({"name": ""}, ErrorCode.INVALID_TOPIC),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replicas": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replicas": 2, "min_isr": 3}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_impossible_topics_are_refused(leader, settings, code):
    """A topic that exists, has no proper name, or can't be replicated so is refused with the code for it."""
    with pytest.raises(BrokerError) as caught:
        leader.manager.create_topic(**{"name": "new", "partitions": 1, **settings})
    assert code is caught.value.code


def test_producer_ids_are_never_given_twice(tmp_path):
    """Ids go on where no earlier process had been."""
    ids = []
    for _ in range(3):
        store = TopicStore(tmp_path)
        ids += [store.next_producer_id() for _ in range(1_500)]
    assert len(ids) == len(set(ids))
