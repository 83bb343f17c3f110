"""A node of three on a clock moved by hand."""

import pytest

from examples.broker.replication.fetching.fetch_sessions import CONSUMER, Wanted
from examples.broker.replication.followers import FetchClock
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.storage.topics import Topic
from tests.support.broker import batch_of, lead

KEY = ("t", 0)
BATCH = batch_of(b"x" * 50)


class Fixture:
    """Node 1 of three."""

    def __init__(self, manager, timer):
        self.manager, self.timer, self.actions = manager, timer, manager.actions
        self.manager.metadata.set_live_nodes({node: ("host", node) for node in (1, 2, 3)})

    @property
    def partition(self):
        return self.manager.partitions[KEY]

    def run(self):
        while len(self.actions):
            self.actions.try_complete_actions()


class Leader(Fixture):
    """A leader with a topic, and what it answered."""

    def __init__(self, manager, timer):
        super().__init__(manager, timer)
        self.topics = TopicManager(self.manager)
        lead(self.manager, "t", 2)
        self.run()
        self.answers = []

    def append(self, *keys, acks=-1):
        self.manager.append(
            dict.fromkeys(keys or (KEY,), BATCH), acks=acks, timeout_ms=1_500, respond=self.answers.append
        )

    def write(self, *keys):
        """Append with acks=1, and run what follows."""
        self.append(*keys, acks=1)
        self.run()

    def commit(self, count=1):
        """Append so many batches that the followers fetch."""
        for _ in range(count):
            self.append(acks=1)
        self.followers_reach(self.partition.log.next_offset)
        self.run()

    def delete(self, before, *, timeout_ms=0):
        self.manager.delete_records({KEY: before}, timeout_ms=timeout_ms, respond=self.answers.append)

    def configure(self, **settings):
        """Change the settings of the topic, whose names have points in the place of underscores."""
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        topic = self.manager.store.topics["t"] = self.topics.with_settings(self.topics.existing("t"), dotted)
        for index in range(topic.partitions):
            partition = self.manager.partitions["t", index]
            self.manager.apply_settings(partition, topic)
            self.manager.changed(partition)

    def fetch(self, offset=0, *, min_bytes=1, by_follower=False, max_bytes=1 << 20):
        """Fetch without a session, and give the operation if it waits."""
        return self.fetch_in_session(
            {KEY: Wanted(offset, max_bytes)}, epoch=-1, min_bytes=min_bytes, node=2 if by_follower else CONSUMER
        )

    def fetch_in_session(
        self, wanted=(), forgotten=(), *, session_id=0, epoch=0, node=CONSUMER, min_bytes=1, room=1 << 20
    ):
        """Fetch, and give the operation if it waits. The session is `self.session`, the answer "fetched" and what."""
        self.session = self.manager.fetches.open_session(
            session_id, epoch, node=node, wanted=dict(wanted), forgotten=list(forgotten)
        )

        def respond(found):
            self.answers.append("fetched")
            self.found = {each.key: each for each in found}

        return self.manager.fetches.fetch(
            self.session, max_wait_ms=500, min_bytes=min_bytes, max_bytes=room, respond=respond
        )

    def followers_reach(self, offset, nodes=(2, 3), key=KEY, log_start=0):
        for node in nodes:
            wanted = {key: Wanted(offset, 1, log_start)}
            self.manager.fetches.open_session(0, -1, node=node, wanted=wanted, forgotten=[])


class Node(Fixture):
    """A node whose leader is named by a controller."""

    def __init__(self, manager, timer):
        super().__init__(manager, timer)
        manager.store.topics["t"] = Topic("t", 1, (1, 2, 3), {"min.insync.replicas": "2"})
        self.told, self.wishes, self.version = [], [], 0
        self.manager.propose_isr = lambda _, isr: self.wishes.append(sorted(isr))
        self.manager.on_leading = lambda key: self.told.append(("leads", key))
        self.manager.on_following = lambda key: self.told.append(("follows", key))

    def decide(self, leader, epoch, isr=(1, 2, 3)):
        self.version += 1
        self.manager.lead_or_follow(KEY, Leadership(leader, epoch, tuple(isr), self.version), (1, 2, 3))
        self.run()

    def append(self, respond=lambda _: None):
        self.manager.append({KEY: BATCH}, acks=-1, timeout_ms=60_000, respond=respond)

    def fetch(self, respond, *, by=CONSUMER, epoch=-1, max_bytes=1 << 20):
        wanted = {KEY: Wanted(0, max_bytes, 0, epoch)}
        session = self.manager.fetches.open_session(0, -1, node=by, wanted=wanted, forgotten=[])
        self.manager.fetches.fetch(session, max_wait_ms=60_000, min_bytes=1, max_bytes=max_bytes, respond=respond)

    def fetched(self, node, offset, now=1.0):
        self.partition.follower_fetches(node, offset, 0, FetchClock(now))

    def forget(self):
        """Have the replica closed, as by a restart."""
        self.manager.partitions.pop(KEY)
        self.manager.folders.close()


@pytest.fixture
def make_leader(make_replicas, mock_timer):
    """Make a leader with settings of its own."""
    return lambda **settings: Leader(make_replicas((1, 2, 3), lag_ms=3_000, **settings), mock_timer)


@pytest.fixture
def leader(make_leader):
    return make_leader()


@pytest.fixture
def node(make_replicas, mock_timer):
    return Node(make_replicas((1, 2, 3), lag_ms=3_000), mock_timer)
