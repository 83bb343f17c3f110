"""A leader of three nodes on a clock moved by hand."""

import pytest

from examples.broker.protocol.records import build
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.fetching.fetch_sessions import CONSUMER, Wanted
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.storage.disk import Fsync
from examples.broker.storage.topics import TopicStore
from purgatory import ActionQueue
from timer import MockTimer

KEY = ("t", 0)
BATCH = build([(None, b"x" * 50)], timestamps=[1])


class Fixture:
    """A leader of three nodes with a topic, and what it answered."""

    def __init__(self, folder, **settings):
        self.timer = MockTimer()
        self.actions = ActionQueue()
        self.manager = ReplicaManager(
            Cluster(ports=(1, 2, 3)),
            ReplicationSettings(lag_ms=3_000, **settings),
            TopicStore(folder, durably=settings.get("fsync") is Fsync.ALWAYS),
            self.timer,
            self.actions,
        )
        self.manager.metadata.set_live_nodes({node: ("host", node) for node in (1, 2, 3)})
        self.topics = TopicManager(self.manager)
        self.topics.create(self.topics.plan("t", partitions=2))
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
            self.manager.fetches.open_session(
                0, -1, node=node, wanted={key: Wanted(offset, 1, log_start)}, forgotten=[]
            )


@pytest.fixture
def closes():
    """Takes what has a replica manager and a timer, returns it, and closes both in the end."""
    made = []
    yield lambda node: made.append(node) or node
    for node in made:
        node.manager.shut_down()
        node.manager.close()
        node.timer.shutdown()


@pytest.fixture
def make_leader(tmp_path, closes):
    """Make a leader with settings of its own."""
    return lambda **settings: closes(Fixture(tmp_path, **settings))


@pytest.fixture
def leader(make_leader):
    return make_leader()
