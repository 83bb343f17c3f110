"""One simulated node: the broker's own parts, except sockets, threads and the clock."""

from __future__ import annotations

import contextlib
from unittest import mock

from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import StoreError, Unreachable
from examples.broker.groups.coordinator import Coordinator
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.service.cluster import membership, tree_client
from examples.broker.service.config import Config
from examples.broker.service.handlers import by_api
from examples.broker.service.handlers.nodes import NodeHandlers
from examples.broker.service.handlers.records import RecordHandlers
from examples.broker.storage.disk import Disk, Fsync
from examples.broker.storage.topics import TopicStore
from examples.broker.tests.simulation.loop import SimulatedLoop, Worker
from purgatory import ActionQueue
from timer import MockTimer

SESSION_MS = 2_000
_LAG_MS = 3_000


class Tree(EmbeddedStore):
    """The shared tree. It has no thread, and may lose answers."""

    def __init__(self, path, clock):
        super().__init__(path, session_ms=SESSION_MS, clock=clock.nanoseconds, thread=False)
        self.loses_answers = False

    def multi(self, operations, *, durable=False):
        super().multi(operations, durable=durable)
        if self.loses_answers:
            raise Unreachable("", "the answer was lost")

    def abandon(self):
        """Close the file as a killed process does. The session stays until its lease ends."""
        self._closed = True
        self._db.close()
        self._watches.close()


class SimulatedMembership(membership.Membership):
    def _ends(self):
        """Read the ends at once. There are no other threads."""
        with self._loop.running():
            return self._resign()


class Node:
    """A node that can be killed and started again.

    Args:
        number: its id.
        folder: of the cluster.
        nodes: the number of nodes.
        clock: of all nodes.
        segment_bytes, rebalance_ms: settings.
    """

    def __init__(self, number, folder, nodes, clock, *, segment_bytes, rebalance_ms):
        self.number = number
        self.folder = folder / f"node-{number}"
        self.life = 0
        self.alive = self.paused = False
        self._clock = clock
        self._config = Config(
            data=self.folder,
            cluster=Cluster(number, tuple(range(1, nodes + 1))),
            replication=ReplicationSettings(lag_ms=_LAG_MS, segment_bytes=segment_bytes, fsync=Fsync.NEVER),
            session_ms=SESSION_MS,
            rebalance_ms=rebalance_ms,
        )

    def start(self):
        self.life += 1
        self.paused = False
        self._timer_ms = self._clock.ms
        config = self._config
        self.loop = SimulatedLoop(self._clock, self.number)
        self.timer, self.actions = MockTimer(), ActionQueue()
        store = TopicStore(self.folder)
        store.disk = Disk(self.folder, self._clock.seconds)
        self.replicas = ReplicaManager(config.cluster, config.replication, store, self.timer, self.actions)
        self.replicas.checkpoint_beside = self.checkpoint_at_once
        topics = TopicManager(self.replicas)
        self.coordinator = Coordinator(config.groups, self.replicas, topics, self.timer, self.actions)
        self.tree = Tree(self.folder.parent / "coordination.sqlite", self._clock)
        with (
            self.loop.running(),
            mock.patch.object(membership, "open_store", lambda *_, **__: self.tree),
            mock.patch.object(membership, "REGISTRY"),
            mock.patch.object(tree_client, "ThreadPoolExecutor", Worker),
        ):
            self.membership = SimulatedMembership(
                config,
                self.replicas,
                self.coordinator,
                self.timer,
                self.run_actions,
                folder_id=f"folder {self.number}",
            )
        self.worker = self.membership._tree._thread
        self.controller = self.membership.controller
        self.handlers = {
            **by_api(RecordHandlers(config, self.replicas)),
            **by_api(NodeHandlers(self.membership, self.replicas)),
        }
        self.controller.start(thread=False)
        self.alive = True

    async def checkpoint_at_once(self):
        """Write the checkpoint. There are no other threads."""
        self.replicas.checkpoint()

    def kill(self):
        """End the node as by ``kill -9``. Its files stay as they are."""
        self.alive = False
        self.loop.kill()
        for purgatory in (self.replicas.produces, self.replicas.fetches.purgatory, self.replicas.deletions):
            purgatory.shutdown("cancel")
        self.coordinator.shut_down()
        self.timer.shutdown()
        self.replicas.folders.close()
        self.tree.abandon()

    def leave(self):
        """Hand the leaderships over, as a node does before it stops."""
        self.leaving = self.loop.create_task(self.membership.leave())

    @property
    def is_running(self):
        return self.alive and not self.paused

    @property
    def is_controller(self):
        return self.is_running and self.controller.is_active

    def partition(self, key):
        """Return this node's replica of a partition, or None."""
        return self.replicas.partitions.get(key) if self.alive else None

    def leads(self, key):
        partition = self.partition(key)
        return partition is not None and partition.is_leader

    # -- steps

    def run_actions(self):
        while len(self.actions):
            self.actions.try_complete_actions()

    def step_loop(self):
        self.loop.step()
        self.run_actions()

    def advance(self):
        """Run the deadlines that have passed."""
        self.timer.advance_clock(self._clock.ms - self._timer_ms)
        self._timer_ms = self._clock.ms
        self.run_actions()

    def look(self):
        """Look for changes of the tree, as its thread does."""
        with contextlib.suppress(StoreError):
            self.tree.poll()

    def control(self):
        """Handle the controller's events. Returns whether there were any."""
        self.look()
        return bool(self.controller.events.run_pending())

    def work(self, *, loses_answer=False):
        """Do one job of the thread that calls the tree. Returns whether there was one."""
        if not self.worker.jobs:
            return False
        self.tree.loses_answers = loses_answer
        self.worker.run_one()
        self.tree.loses_answers = False
        return True

    def keep_house(self):
        self.replicas.adapt_isrs()
        self.replicas.check_disk()
        self.run_actions()
        self.replicas.checkpoint()
