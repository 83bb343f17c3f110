"""A cluster of controllers without threads, processes or sockets: stores on a clock that is moved by hand."""

import pytest

from examples.broker.controller.controller import Controller
from examples.broker.controller.tree import layout
from examples.broker.controller.tree.layout import BrokerInfo
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Create, Set
from examples.broker.protocol.messages.controller import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from timer import ManualClock, MockTimer

SESSION_MS = 2_000


class Channel:
    """Keeps what was sent, and answers a StopReplica that deletes as a node would that has nothing in its way."""

    def __init__(self):
        self.sent = []
        self.node = None
        self.refuses_deletion = set()

    def set_addresses(self, brokers):
        self.known = sorted(brokers)

    def send(self, node, message):
        self.sent.append((node, message))
        if isinstance(message, StopReplicaRequest) and message.delete:
            outcomes = [((p.topic, p.partition), node not in self.refuses_deletion) for p in message.partitions]
            self.node.controller.ask("stopped", lambda duties: duties.deletion.answered(node, outcomes), lambda: None)

    def of(self, kind, node=None):
        return [message for to, message in self.sent if isinstance(message, kind) and node in (None, to)]


class Node:
    def __init__(self, cluster, node_id, folder_id="folder"):
        self.cluster, self.node_id, self.folder_id = cluster, node_id, folder_id
        self.start()

    def start(self, ends=None):
        self.stopped = False
        self.channel = Channel()
        self.channel.node = self
        self.store = EmbeddedStore(self.cluster.path, session_ms=SESSION_MS, clock=self.cluster.clock, thread=False)
        info = BrokerInfo(self.node_id, "host", 9000 + self.node_id, folder_id=self.folder_id)
        self.ends = ends or {}
        self.controller = Controller(
            info, self.store, self.channel, self.cluster.timer, ends=lambda: self.ends, rebalance_ms=0
        )
        self.controller.start(thread=False)

    def run(self):
        if not self.stopped:
            self.store.poll()
        return 0 if self.stopped else self.controller.events.run_pending()

    def close(self):
        self.stopped = True
        self.controller.events.put("close", self.controller._end_term)
        self.controller.events.run_pending()
        self.store.close()

    @property
    def duties(self):
        return self.controller._duties


class Cluster:
    def __init__(self, path):
        self.path, self.clock, self.timer = path, ManualClock(10**9), MockTimer()
        self.nodes = {}

    def add_double(self, node_id):
        """Start another machine with the id of a node, and return it."""
        double = self.nodes[f"double of {node_id}"] = Node(self, node_id, "another folder")
        self.settle()
        return double

    def add(self, *node_ids):
        for node_id in node_ids:
            self.nodes[node_id] = Node(self, node_id)
            self.settle()
        return self

    def settle(self):
        """Let every node that isn't stopped look and handle its events, until nothing happens any more."""
        quiet = 0
        while quiet < 2:
            quiet = quiet + 1 if not sum(node.run() for node in self.nodes.values()) else 0

    def advance(self, ms):
        """Move time on in steps in which the living renew their sessions."""
        for _ in range(0, ms, 400):
            self.clock.advance(400)
            self.settle()
            self.timer.advance_clock(400)
            self.settle()

    def die(self, *node_ids):
        """As by kill -9 or by a stop: nothing more is heard of them, and their sessions run out."""
        for node_id in node_ids:
            self.nodes[node_id].stopped = True
        self.advance(SESSION_MS + 1_000)

    def restart(self, node_id, ends=None):
        self.nodes[node_id].start(ends)
        self.settle()

    @property
    def active(self):
        found = [node for node in self.nodes.values() if node.controller.is_active and not node.stopped]
        assert 1 == len(found), found
        return found[0]

    @property
    def store(self):
        return next(node for node in self.nodes.values() if not node.stopped).store

    def write(self, *operations):
        self.store.multi(operations)
        self.settle()

    def create_topic(self, name, assignment, **config):
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.write(
            Create(layout.config_path(name), layout.write_config(settings)),
            Create(layout.topic_path(name), layout.write_assignment(assignment)),
        )

    def delete_topic(self, name):
        self.write(Create(f"{layout.DELETIONS}/{name}"))

    def go_offline(self, node_id):
        """As a node does that is about to stop, or whose disk rejects writes."""
        self.nodes[node_id].store.multi([Create(f"{layout.OFFLINE}/{node_id}", ephemeral=True)])
        self.settle()

    def offline(self, node_id):
        """Which nodes are offline, by the last metadata that a node got."""
        live = self.active.channel.of(UpdateMetadataRequest, node_id)[-1].live_brokers
        return {broker.broker_id: broker.is_offline for broker in live}

    def state(self, key):
        node = self.store.get(layout.state_path(key))
        return layout.state_of(node.data, node.version)

    def leader(self, topic, index=0):
        return self.state((topic, index)).leader

    def isr(self, topic, index=0):
        return self.state((topic, index)).isr

    def led(self, index=0):
        """The leader and the in-sync replicas of a partition of the topic "t"."""
        return self.leader("t", index), self.isr("t", index)

    def ask(self, job):
        """Have the active controller do something with its duties."""
        self.active.controller.ask("a test", job, pytest.fail)
        self.settle()

    def change_isr(self, key, isr):
        """As the leader would."""
        now = self.state(key)
        self.counter = getattr(self, "counter", 0) + 1
        self.write(
            Set(layout.state_path(key), layout.write_state(now.with_isr(isr)), now.version),
            Create(f"{layout.ISR_CHANGES}/test-{self.counter}", layout.write_keys([key])),
        )

    def forget_messages(self):
        for node in self.nodes.values():
            node.channel.sent.clear()

    def told(self, node_id, key):
        """The last leadership that a node got, from any controller."""
        messages = [each for node in self.nodes.values() for each in node.channel.of(LeaderAndIsrRequest, node_id)]
        found = _last(messages, key)
        return found and (found.leader, tuple(found.isr))

    def metadata(self, node_id, key):
        """The last leader that the active controller named to a node."""
        found = _last(self.active.channel.of(UpdateMetadataRequest, node_id), key)
        return found and found.leader


def _last(messages, key):
    """The last state of a partition in these messages."""
    states = [state for message in messages for state in message.states if (state.topic, state.partition) == key]
    return states[-1] if states else None


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path / "tree.sqlite")
    yield made
    for node in made.nodes.values():
        node.stopped or node.close()
    made.timer.shutdown()
