"""A node's part in a cluster.

    controller (here or elsewhere) --> ``instructions``
    replica manager --> wanted in-sync replicas --> tree
    clients         --> elections                         --> controller
    stop, disk      --> /brokers/offline                  --> tree

Used on the broker's loop. The controller and calls to the tree have their own threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import REGISTRY

from examples.broker.controller.controller import Controller
from examples.broker.controller.tree import layout
from examples.broker.coordination.opening import open_store, tree_file
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import controller as m
from examples.broker.replication.leadership import NO_LEADER, Leadership
from examples.broker.replication.peers.follower import Follower
from examples.broker.replication.peers.node_key import NodeKey
from examples.broker.service.cluster.channels import Channels
from examples.broker.service.cluster.former_topics import bring_over
from examples.broker.service.cluster.group_moves import GroupMoves
from examples.broker.service.cluster.instructions import Instructions
from examples.broker.service.cluster.metrics import ControllerMetrics
from examples.broker.service.cluster.topics import ClusterTopics
from examples.broker.service.cluster.tree_client import TreeClient, TreeJobs
from examples.broker.service.event_loop import OnLoop
from examples.broker.storage.disk import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.controller.duties import Duties
    from examples.broker.controller.partitions.requests import Message
    from examples.broker.coordination.store import Store, Watch
    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.protocol.errors import BrokerError
    from examples.broker.replication.partition import Partition
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.config import Config
    from examples.broker.storage.topics import TopicStore
    from timer import Timer

_log = structlog.get_logger(__name__)
_INTRODUCED_S = 10.0
_LEAVE_S = 2.0
_LEAVE_RETRY_S = 0.05
_RETRY_S = 0.5
_POLL_ALONE_MS = 1_000
_ENDLESS_MS = 100 * 365 * 24 * 3_600_000


def _open_store(config: Config, topics: TopicStore) -> Store:
    """Open the store of the tree. That of a node alone has its topics afterwards.

    No other node could take over from a node alone, so its session need not be renewed. Other processes hardly ever
    write to its tree.
    """
    folder, durable = config.shared_folder, config.replication.fsync is Fsync.ALWAYS
    if not config.is_alone:
        return open_store(config.coordination, folder, session_ms=config.session_ms, durable=durable)
    open_own = partial(open_store, "", folder, session_ms=_ENDLESS_MS, durable=durable, poll_ms=_POLL_ALONE_MS)
    bring_over(topics, open_own(), tree_file(folder), config.cluster.node_id)
    return open_own()  # a store is started once


class Membership:
    """Connects a node's parts with the cluster."""

    def __init__(
        self,
        config: Config,
        replicas: ReplicaManager,
        coordinator: Coordinator,
        timer: Timer,
        run_actions: Callable[[], None],
        *,
        folder_id: str,
    ) -> None:
        here = config.cluster
        self.config = config
        self.replicas = replicas
        self.coordinator = coordinator
        self._loop = asyncio.get_running_loop()
        self._on_loop = OnLoop(run_actions)
        self._watching = self._is_leaving = False
        self._introduced: asyncio.Future[None] = self._loop.create_future()
        """Done once a controller has sent this node all metadata, or after a timeout."""
        self._in_conflict_since: float | None = None
        self.key = NodeKey(here.node_id)
        self.follower = Follower(replicas, self.key)
        self._store = store = _open_store(config, replicas.store)
        self._tree = TreeClient(TreeJobs(store, here.node_id), self._on_loop)
        self.topics = ClusterTopics(config, replicas, self._tree, timer)
        self.instructions = Instructions(
            replicas=replicas,
            follower=self.follower,
            coordinator=coordinator,
            topics=self.topics,
            tree=self._tree,
            incarnation=lambda: self.controller.info.incarnation,
            introduced=self._introduce,
            run_actions=run_actions,
            turn_ms=config.turn_ms,
        )
        self.channels = Channels(self.key, self.instructions.deliver, self._answered)
        replicas.folders.open_all()
        self.controller = self._make_controller(timer, folder_id)
        self._metrics = ControllerMetrics(self.controller)
        REGISTRY.register(self._metrics)
        self._groups = GroupMoves(coordinator, self._tree, run_actions=run_actions, turn_ms=config.turn_ms)
        self._set_callbacks()

    def _make_controller(self, timer: Timer, folder_id: str) -> Controller:
        config, here = self.config, self.config.cluster
        # A node alone continues to lead what it led, so it need not elect itself when it starts again.
        incarnation = folder_id if config.is_alone else ""
        info = layout.BrokerInfo(here.node_id, here.advertised_host, here.port, incarnation, folder_id)
        controller = Controller(
            info,
            self._store,
            self.channels,
            timer,
            ends=self._ends,
            rebalance_ms=config.rebalance_ms,
            key=self.key,
        )
        controller.on_registered = self._registered
        return controller

    def _set_callbacks(self) -> None:
        replicas = self.replicas
        replicas.propose_isr, replicas.on_disk = self._propose_isr, self._disk_changed
        replicas.on_leading, replicas.on_following = self._groups.led, self._groups.followed
        self.coordinator.store.make_topic = self.topics.make_offsets_topic

    def _ends(self) -> Mapping[str, tuple[int, int]]:
        """Read the ends of the logs for a registration. Called on the controller's thread."""

        async def on_loop() -> Mapping[str, tuple[int, int]]:
            return self._resign()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result()

    def _resign(self) -> Mapping[str, tuple[int, int]]:
        """Neither lead nor follow, until a controller knows the new registration. Returns the ends of the logs.

        Elections go by these ends, so nothing is appended until then. Another machine may also be registered with this
        node's id, and a leader must not count what this one fetches.
        """
        for key in self.replicas.partitions:
            self.replicas.stop_replica(key)
        self.follower.refresh()
        return self.replicas.folders.ends()

    # -- start and stop

    async def start(self) -> None:
        """Register, and take part in the election of a controller.

        Raises:
            OSError: if the store is unreachable, or another machine is registered with this node's id.
        """
        await asyncio.to_thread(self.controller.start)
        await asyncio.wait([self._introduced], timeout=_INTRODUCED_S)
        if self.controller.conflict is not None:
            await self.close()
            raise self.controller.conflict
        self._introduce()  # serve anyway; clients will ask again
        if self.config.is_alone:
            self.coordinator.store.ensure_topic()  # so that the first group need not wait for it

    def lasting_conflict(self) -> OSError | None:
        """Return the reason if another machine has had this node's id for some time. Called periodically."""
        conflict, now = self.controller.conflict, self._loop.time()
        if conflict is None:
            self._in_conflict_since = None
            return None
        self._in_conflict_since = self._in_conflict_since or now
        return conflict if now - self._in_conflict_since > _INTRODUCED_S else None

    def _introduce(self) -> None:
        if not self._introduced.done():
            self._introduced.set_result(None)

    def once_introduced(self, function: Callable[[], None]) -> None:
        """Call a function once this node has its metadata, or now if it has."""
        if self._introduced.done():
            function()
        else:
            self._introduced.add_done_callback(lambda _: function())

    async def leave(self) -> None:
        """Move every leadership away from this node, as far as other replicas can take over soon."""
        self._is_leaving = True
        if not self.controller.is_registered:
            return
        self._report_offline()
        give_up = self._loop.time() + _LEAVE_S
        while self._is_needed():
            if self._loop.time() > give_up:
                _log.warning("stopping without a successor", node=self.config.cluster.node_id)
                break
            await asyncio.sleep(_LEAVE_RETRY_S)
        await self.channels.drained(_LEAVE_S)

    def _is_needed(self) -> bool:
        """Whether this node counts as in sync where another in-sync replica can take over."""
        node = self.config.cluster.node_id
        known = (each.leadership for topic in self.replicas.metadata.topics.values() for each in topic.values())
        return any(each.leader != NO_LEADER and node in each.isr and len(each.isr) > 1 for each in known)

    async def close(self) -> None:
        """End the session, and answer the requests that wait."""
        REGISTRY.unregister(self._metrics)
        self.follower.close()
        await self.channels.close()
        self.instructions.close()
        self._groups.close()
        await asyncio.to_thread(self._tree.close)
        await asyncio.to_thread(self.controller.close)
        self.topics.shut_down()

    def _registered(self) -> None:
        """Begin to watch the tree with the first registration. Called on the controller's thread."""
        self._loop.call_soon_threadsafe(self._report_offline)
        if not self._watching:
            self._watching = True
            self._watch(self._store.watch, layout.CONFIG_CHANGES, self.topics.read_settings)
            self._watch(self._store.watch_children, layout.DELETIONS, self.topics.read_leaving)

    def _watch(self, watch: Callable[[str, Callable[[], None]], Watch], path: str, look: Callable[[], None]) -> None:
        """Call ``look`` on the loop now and after every change. May be called from any thread."""

        def changed() -> None:
            self._loop.call_soon_threadsafe(look)

        def again(_: BrokerError) -> None:
            self._loop.call_later(_RETRY_S, self._watch, watch, path, look)

        self._tree.run(lambda _: watch(path, changed), lambda _: look(), again)

    def _disk_changed(self, is_failing: bool) -> None:
        """Report a disk that fails. When it accepts writes again, register first.

        Elections go by the registered ends. While the node could not lead, its logs may have become the longest.
        """
        if is_failing:
            self._report_offline()
        else:
            self.controller.register_again()

    def _report_offline(self) -> None:
        """Write to the tree whether this node can lead, for the controller. Called after each registration, too."""
        if not self.controller.is_registered:
            return  # another machine may be registered with this node's id
        is_offline = self._is_leaving or self.replicas.store.disk.is_failing

        def again(_: BrokerError) -> None:
            self._loop.call_later(_RETRY_S, self._report_offline)

        self._tree.run(lambda jobs: jobs.report_offline(is_offline=is_offline), failed=again)

    # -- to the controller

    def _answered(self, node: int, message: Message, answer: Any) -> None:
        """Handle a node's answer to this node's controller."""
        if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self.controller.rejected_as_stale()
        elif isinstance(message, m.StopReplicaRequest) and message.delete:
            outcomes = [((p.topic, p.partition), p.error_code == ErrorCode.NONE) for p in answer.partitions]
            self.controller.ask("stopped", lambda duties: duties.deletion.answered(node, outcomes), lambda: None)

    # -- in-sync replicas

    def _propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        key, epoch = partition.key, partition.leader_epoch
        if isr == partition.isr_being_written:
            return
        partition.isr_being_written = isr
        node = self.config.cluster.node_id
        now = Leadership(node, epoch, tuple(sorted(partition.isr)), partition.version)

        def settle(found: Leadership) -> None:
            partition.isr_being_written = None
            if partition.is_leader and partition.leader_epoch == epoch == found.leader_epoch:
                _log.info("isr changed", key=key, isr=found.isr)
                partition.settle_isr(found.isr, found.version)
                self.replicas.changed(partition)

        def give_up(error: BrokerError) -> None:
            # It may be written or not. They stay wanted and count. They are proposed again.
            partition.isr_being_written = None
            if self._tree.is_reachable:  # an outage is logged once, by the client of the tree
                _log.warning("isr not changed", key=key, reason=str(error))

        self._tree.run(lambda jobs: jobs.change_isr(key, now, isr), settle, give_up)

    # -- asking the controller, if it is here

    def ask_controller(self, kind: str, what: Callable[[Duties], Any], answer: Callable[[Any], object]) -> None:
        """Queue a request to this node's active controller. Answers on the loop, None if it is not active."""

        def handle(duties: Duties) -> None:
            result = what(duties)
            # In a second event: the first one sends its requests at its end, and they come first.
            self.controller.events.put("answer", lambda: self._on_loop.submit(answer, result))

        self.controller.ask(kind, handle, lambda: self._on_loop.submit(answer, None))
