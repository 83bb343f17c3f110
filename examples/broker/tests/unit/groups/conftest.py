"""A coordinator on a clock moved by hand, with members that join it."""

import pytest

from examples.broker.groups.coordinator import Coordinator
from examples.broker.groups.settings import GroupSettings
from examples.broker.groups.state.group import GroupState
from examples.broker.groups.state.values import Identity, Join
from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.steps import run_at_once
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.storage.topics import OFFSETS_TOPIC, TopicStore
from examples.broker.tests.support import lead
from purgatory import ActionQueue
from timer import MockTimer


class Fixture:
    """A coordinator with an initial delay of 100 ms, a topic "t", and members that join."""

    def __init__(self, folder, **topics):
        self.timer = MockTimer()
        self.actions = ActionQueue()
        store = TopicStore(folder)
        self.replicas = ReplicaManager(Cluster(ports=(1,)), ReplicationSettings(), store, self.timer, self.actions)
        settings = GroupSettings(initial_rebalance_delay_ms=100)
        self.coordinator = Coordinator(settings, self.replicas, TopicManager(self.replicas), self.timer, self.actions)
        for name, partitions in {"t": 2, OFFSETS_TOPIC: 1, **topics}.items():
            lead(self.replicas, name, partitions)
        found = run_at_once(self.coordinator.store.load((OFFSETS_TOPIC, 0)))
        self.coordinator.add_loaded((OFFSETS_TOPIC, 0), found, dict.fromkeys(self.replicas.store.topics, ""))

    is_stopped = False

    def stop(self):
        if self.is_stopped:
            return
        self.is_stopped = True
        self.coordinator.shut_down()
        self.replicas.shut_down()
        self.replicas.close()
        self.timer.shutdown()

    def run(self):
        while len(self.actions):
            self.actions.try_complete_actions()

    def advance(self, ms):
        for _ in range(ms // 10):
            self.timer.advance_clock(10)
            self.run()

    def join(self, member_id="", *, known=False, rebalance_ms=5_000, instance=None, metadata=b"", protocol="range"):
        """Join, and give the list that the answers will be in."""
        answers = []
        wanted = Join(
            group_id="g",
            member_id=member_id,
            instance_id=instance,
            client_id="c",
            client_host="/127.0.0.1",
            protocol_type="consumer",
            protocols={protocol: metadata},
            session_timeout_ms=2_000,
            rebalance_timeout_ms=rebalance_ms,
            needs_known_id=known,
        )
        self.coordinator.admission.join(wanted, answers.append)
        self.run()
        return answers

    def sync(self, member_id, generation, assignments=(), instance=None):
        answers = []
        self.coordinator.sync(
            "g", Identity(member_id, generation, instance), dict(assignments), lambda *answer: answers.append(answer)
        )
        self.run()
        return answers

    def heartbeat(self, member_id, generation, instance=None):
        try:
            return self.coordinator.heartbeat("g", Identity(member_id, generation, instance))
        except BrokerError as error:
            return error.code

    def leave(self, member_id, instance=None):
        self.coordinator.leave("g", Identity(member_id, instance_id=instance))
        self.run()

    def commit(self, member_id, generation, offsets, *, group="g", instance=None):
        """Commit, and give the codes."""
        codes = []
        self.coordinator.commits.commit(group, Identity(member_id, generation, instance), offsets, codes.append)
        self.run()
        return codes[0]

    def joined(self, count, **settings):
        """Let a number of members join. Returns their ids, the leader first."""
        joins = [self.join(**settings) for _ in range(count)]
        self.advance(300)
        return [answers[0].member_id for answers in joins]

    def stable(self, count):
        """Make a stable group of a number of members. Returns their ids, the leader first."""
        ids = self.joined(count)
        generation = self.group.generation
        for member in reversed(ids):
            self.sync(member, generation, [(x, x.encode()) for x in ids])
        assert GroupState.STABLE is self.group.state
        return ids

    def keep_alive(self, ids, ms):
        """Let time pass, with heartbeats of these members."""
        for _ in range(ms // 100):
            self.advance(100)
            for member in ids:
                self.heartbeat(member, self.group.generation)

    @property
    def group(self):
        return self.coordinator.groups.find("g")


@pytest.fixture
def make_groups(tmp_path):
    """Make coordinators on one folder, one after the other, or on a copy of it."""
    made = []

    def make(folder=tmp_path, **topics):
        made.append(Fixture(folder, **topics))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def groups(make_groups):
    return make_groups()


@pytest.fixture
def restart(make_groups):
    """Stop a coordinator, and start another on its folder."""

    def restart(groups, **topics):
        groups.stop()
        return make_groups(**topics)

    return restart
