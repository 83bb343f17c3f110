"""A node of three on a clock moved by hand."""

from collections import Counter

import pytest

from examples.broker.replication.fetching.fetch_sessions import CONSUMER, Wanted
from examples.broker.replication.followers import FetchClock
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.storage.topics import Topic
from examples.broker.tests.support import batch_of, lead

KEY = ("t", 0)
BATCH = batch_of(b"x" * 50)


class Node:
    """Node 1 of three. It notes its answers, and what it reports."""

    def __init__(self, manager, timer):
        self.manager, self.timer, self.actions = manager, timer, manager.actions
        manager.metadata.set_live_nodes({node: ("host", node) for node in (1, 2, 3)})
        manager.store.topics["t"] = Topic("t", 2, (1, 2, 3))
        self.topics = TopicManager(manager)
        self.answers, self.told, self.wishes, self.version = [], [], [], 0
        self.codes = Counter()
        """Those of fetches."""
        manager.propose_isr = lambda _, isr: self.wishes.append(sorted(isr))
        manager.on_leading = lambda key: self.told.append(("leads", key))
        manager.on_following = lambda key: self.told.append(("follows", key))

    @property
    def partition(self):
        return self.manager.partitions[KEY]

    def run(self):
        while len(self.actions):
            self.actions.try_complete_actions()

    def decide(self, leader, epoch, isr=(1, 2, 3)):
        """Have a controller name the leader."""
        self.version += 1
        self.manager.lead_or_follow(KEY, Leadership(leader, epoch, tuple(isr), self.version), (1, 2, 3))
        self.run()

    def forget(self):
        """Have the replica closed, as by a restart."""
        self.manager.partitions.pop(KEY)
        self.manager.folders.close()

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

    def fetch(self, offset=0, *, min_bytes=1, by_follower=False, leader_epoch=-1):
        """Fetch without a session, and give the operation if it waits."""
        wanted = {KEY: Wanted(offset, 1 << 20, leader_epoch=leader_epoch)}
        return self.fetch_in_session(wanted, epoch=-1, min_bytes=min_bytes, node=2 if by_follower else CONSUMER)

    def fetch_in_session(
        self, wanted=(), forgotten=(), *, session_id=0, epoch=0, node=CONSUMER, min_bytes=1, room=1 << 20
    ):
        """Fetch, and give the operation if it waits. The session is ``self.session``, the answer "fetched" and what."""
        self.session = self.manager.fetches.open_session(
            session_id, epoch, node=node, wanted=dict(wanted), forgotten=list(forgotten)
        )

        def respond(found):
            self.answers.append("fetched")
            self.found = {each.key: each for each in found}
            self.codes.update(each.code for each in found)

        return self.manager.fetches.fetch(
            self.session, max_wait_ms=500, min_bytes=min_bytes, max_bytes=room, respond=respond
        )

    def followers_reach(self, offset, nodes=(2, 3), key=KEY, log_start=0):
        for node in nodes:
            wanted = {key: Wanted(offset, 1, log_start)}
            self.manager.fetches.open_session(0, -1, node=node, wanted=wanted, forgotten=[])

    def fetched(self, node, offset, now=1.0):
        self.partition.follower_fetches(node, offset, 0, FetchClock(now))


@pytest.fixture
def make_node(make_replicas, mock_timer):
    """Make a node with settings of its own."""
    return lambda **settings: Node(make_replicas((1, 2, 3), lag_ms=3_000, **settings), mock_timer)


@pytest.fixture
def node(make_node):
    """A node that neither leads nor follows yet."""
    return make_node()


@pytest.fixture
def make_leader(make_node):
    """Make a node that leads both partitions of a topic."""

    def make_leader(**settings):
        leader = make_node(**settings)
        lead(leader.manager, "t", 2)
        leader.run()
        return leader

    return make_leader


@pytest.fixture
def leader(make_leader):
    return make_leader()
