"""A node's part in a cluster: what the controller tells it, and what it tells the controller.

    controller (here or elsewhere) --> leader_and_isr, stop_replica --> replica manager, follower, groups
                                   --> update_metadata              --> metadata, and whoever waits for it
    replica manager --> a wish for other in-sync replicas --> tree
    clients         --> elect; a node that stops          --> controller

**Fencing.** Every request from a controller carries its epoch. A smaller one than was seen is refused, so that what a
controller sent before it was replaced changes nothing when it comes late. A larger one counts once the tree has it.

Belongs to the broker's loop; the controller has a thread of its own, and so have calls to the tree.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.controller import layout
from examples.broker.controller.controller import Controller
from examples.broker.controller.requests import BEING_DELETED
from examples.broker.coordination import SessionChange, open_store
from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.protocol.messages import controller as m
from examples.broker.replication.follower import Follower
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.link import Link
from examples.broker.replication.metadata import KnownPartition
from examples.broker.replication.node_key import NodeKey
from examples.broker.service.channels import Channels
from examples.broker.service.cluster_topics import ClusterTopics
from examples.broker.service.controller_metrics import ControllerMetrics
from examples.broker.service.group_moves import GroupMoves
from examples.broker.service.tree_client import TreeClient, TreeJobs
from examples.broker.storage.log import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from examples.broker.controller.duties import Duties
    from examples.broker.controller.requests import Message
    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.replication.partition import Key, Partition
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.config import Config
    from examples.broker.storage.topics import Topic
    from timer import Timer

__all__ = ["Membership"]

_log = structlog.get_logger(__name__)
_INTRODUCED_S = 10.0
_SHUTDOWN_S = 2.0
_SHUTDOWN_TRIES = 4
_SHUTDOWN_RETRY_S = 0.1
_REPORT_RETRY_S = 0.5
_EPOCH_TRIES = 8
_EPOCH_RETRY_S = 0.25
_RESPONSES: dict[type, type] = {
    m.LeaderAndIsrRequest: m.LeaderAndIsrResponse,
    m.UpdateMetadataRequest: m.UpdateMetadataResponse,
    m.StopReplicaRequest: m.StopReplicaResponse,
}


class Membership:
    """Connects a node's parts with the cluster."""

    def __init__(
        self,
        config: Config,
        replicas: ReplicaManager,
        coordinator: Coordinator,
        timer: Timer,
        run_actions: Callable[[], None],
    ) -> None:
        here = config.cluster
        self.config = config
        self.replicas = replicas
        self.coordinator = coordinator
        self._loop = asyncio.get_running_loop()
        self._run_actions = run_actions
        self._controller_epoch = 0
        self._watching = False
        self._introduced: asyncio.Future[None] = self._loop.create_future()
        """Done once a controller has told this node what there is, or that took too long."""
        self.key = NodeKey(here.node_id)
        self.follower = Follower(replicas, self.key)
        self.channels = Channels(self.key, self.deliver, self._answered)
        durable = config.replication.fsync is Fsync.ALWAYS
        store = open_store(config.coordination, config.shared_folder, session_ms=config.session_ms, durable=durable)
        info = layout.BrokerInfo(here.node_id, here.advertised_host, here.port, uuid.uuid4().hex, replicas.find())
        self.controller = Controller(info, store, self.channels, timer, rebalance_ms=config.rebalance_ms, key=self.key)
        self.controller.on_session = self._session_changed
        self._store = store
        self._unregister_metrics = ControllerMetrics(self.controller).register()
        self._tree = TreeClient(run_actions)
        self._jobs = TreeJobs(store, here.node_id)
        self.topics = ClusterTopics(config, replicas, self._tree, self._jobs, timer)
        replicas.propose_isr = self._propose_isr
        self._groups = GroupMoves(coordinator, self._tree, self._jobs, run_actions)
        replicas.on_disk = self._report_disk
        replicas.on_leading = self._groups.led
        replicas.on_following = self._groups.followed
        coordinator.store.make_topic = self.topics.make_offsets_topic

    # -- life

    async def start(self) -> None:
        """Register, and take part in the election of a controller.

        Raises:
            OSError: if the store can't be had.
        """
        await asyncio.to_thread(self.controller.start)
        await asyncio.wait([self._introduced], timeout=_INTRODUCED_S)
        self._introduce()  # it serves all the same; clients are told to wait

    def _introduce(self) -> None:
        if not self._introduced.done():
            self._introduced.set_result(None)

    def once_introduced(self, function: Callable[[], None]) -> None:
        """Call it when this node knows what there is: now, but for the first moments of its life."""
        if self._introduced.done():
            function()
        else:
            self._introduced.add_done_callback(lambda _: function())

    async def leave(self) -> None:
        """Have every leadership moved away from this node, as far as there is somebody to take it soon."""
        node = self.config.cluster.node_id
        for _ in range(_SHUTDOWN_TRIES):
            remaining = await self._ask_to_leave(node)
            if remaining is not None and not remaining:
                break
            await asyncio.sleep(_SHUTDOWN_RETRY_S)
        else:
            _log.warning("stopping with leaderships that nobody takes", node=node)

    async def _ask_to_leave(self, node: int) -> list[Key] | None:
        """Ask the controller; give what stays, or None if it couldn't be asked."""
        controller = self.controller.controller_id
        address = self.replicas.metadata.brokers.get(-1 if controller is None else controller)
        if controller == node:
            answer: asyncio.Future[list[Key] | None] = self._loop.create_future()
            self.shut_down(node, answer.set_result)
            remaining = await answer
            await self.channels.drained(_SHUTDOWN_S)
            return remaining
        if address is None:
            return None
        try:
            async with Link(*address, f"shutdown-{node}", 1 << 20) as link:
                await link.prove(self.key, controller or 0)
                request = m.ControlledShutdownRequest(node)
                response = await link.ask(
                    ApiKey.CONTROLLED_SHUTDOWN, 0, request, m.ControlledShutdownResponse, _SHUTDOWN_S
                )
        except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
            _log.info("controller not reached", error=repr(error))
            return None
        if response.error_code != ErrorCode.NONE:
            return None
        return [(part.topic, part.partition) for part in response.remaining]

    async def close(self) -> None:
        """End the session, and answer what waits."""
        self._unregister_metrics()
        self.follower.close()
        self.channels.close()
        self._groups.close()
        await asyncio.to_thread(self._tree.close)
        await asyncio.to_thread(self.controller.close)
        self.topics.shut_down()

    def _session_changed(self, change: SessionChange) -> None:
        """On the controller's thread: what this node watches it watches from the first session on."""
        if change is not SessionChange.ESTABLISHED:
            return
        self._loop.call_soon_threadsafe(self._report_disk)
        if self._watching:
            return
        self._watching = True

        def on_loop(look: Callable[[], None]) -> Callable[[], None]:
            def watch() -> None:
                self._loop.call_soon_threadsafe(look)

            return watch

        self._store.watch(layout.CONFIG_CHANGES, on_loop(self.topics.read_settings))
        self._store.watch_children(layout.TOPICS, on_loop(self.topics.read_names))
        self._loop.call_soon_threadsafe(self.topics.read_names)

    def _report_disk(self, *_: object) -> None:
        """Say in the tree whether this node's disk rejects writes: the controller goes by it."""
        is_failing = self.replicas.store.disk.is_failing

        def again(_: BrokerError) -> None:
            self._loop.call_later(_REPORT_RETRY_S, self._report_disk)

        self._tree.run(lambda: self._jobs.report_disk(is_failing=is_failing), lambda _: None, again)

    # -- from the controller

    def receive(self, message: Message, respond: Callable[[Any], None], tries: int = _EPOCH_TRIES) -> None:
        """Take a message from another node; an epoch that is new here must stand in the tree, now or soon."""
        if message.controller_epoch <= self._controller_epoch:
            self.deliver(message, respond)
            return

        def compare(newest: int) -> None:
            if message.controller_epoch <= newest:
                self.deliver(message, respond)
            elif tries > 1:
                self._loop.call_later(_EPOCH_RETRY_S, self.receive, message, respond, tries - 1)
            else:
                _log.error("no such controller", node=message.controller_id, epoch=message.controller_epoch)
                respond(_RESPONSES[type(message)](ErrorCode.STALE_CONTROLLER_EPOCH))

        def retry(_: BrokerError) -> None:
            self._loop.call_later(_EPOCH_RETRY_S, self.receive, message, respond, tries)

        self._tree.run(self._jobs.controller_epoch, compare, retry)

    def deliver(self, message: Message, respond: Callable[[Any], None]) -> None:
        """Do what a controller says, in the order in which it comes, unless a newer one was heard of."""
        kind = _RESPONSES[type(message)]
        if message.controller_epoch < self._controller_epoch:
            _log.warning("stale controller", node=message.controller_id, epoch=message.controller_epoch)
            respond(kind(ErrorCode.STALE_CONTROLLER_EPOCH))
            return
        self._controller_epoch = message.controller_epoch
        names: set[str] = set()
        if not isinstance(message, m.StopReplicaRequest):
            names = {state.topic for state in message.states if state.leader != BEING_DELETED}

        def carry_out(topics: Mapping[str, Topic]) -> None:
            if message.controller_epoch < self._controller_epoch:
                respond(kind(ErrorCode.STALE_CONTROLLER_EPOCH))
                return
            self.replicas.store.topics.update(topics)
            if isinstance(message, m.LeaderAndIsrRequest):
                respond(self._lead_or_follow(message))
            elif isinstance(message, m.UpdateMetadataRequest):
                self._learn(message)
                respond(m.UpdateMetadataResponse())
            else:
                respond(self._stop(message))

        # Through the tree's thread, even if there is nothing to read: what came first is done first.
        self._tree.run(
            lambda: self._jobs.read_topics(names),
            carry_out,
            lambda _: carry_out({}),  # the settings that are known will do, and none for a topic that isn't
        )

    def _lead_or_follow(self, message: m.LeaderAndIsrRequest) -> m.LeaderAndIsrResponse:
        outcomes = []
        self._know_brokers(message.live_leaders)
        for state in message.states:
            key, code = (state.topic, state.partition), ErrorCode.NONE
            # What this answers sets clients asking, before the metadata has come: they are told the same.
            self.replicas.metadata.learn(key, KnownPartition(_leadership(state), tuple(state.replicas)))
            try:
                self.replicas.lead_or_follow(key, _leadership(state), tuple(state.replicas))
            except OSError as error:
                self.replicas.store.disk.failed(error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
        self.follower.refresh()
        self.replicas.heed_disk()
        return m.LeaderAndIsrResponse(ErrorCode.NONE, outcomes)

    def _know_brokers(self, live: Collection[m.LiveBroker]) -> None:
        self.replicas.metadata.know(
            {broker.broker_id: (broker.host, broker.port) for broker in live},
            {broker.broker_id for broker in live if broker.is_leaving},
        )

    def _learn(self, message: m.UpdateMetadataRequest) -> None:
        metadata = self.replicas.metadata
        self._know_brokers(message.live_brokers)
        for state in message.states:
            key = (state.topic, state.partition)
            if state.leader == BEING_DELETED:
                metadata.forget(key)
                if state.topic not in metadata.topics:
                    self.replicas.store.topics.pop(state.topic, None)
                    self.coordinator.commits.forget_topic(state.topic)
                continue
            metadata.learn(key, KnownPartition(_leadership(state), tuple(state.replicas)))
            if self.config.cluster.node_id not in state.replicas:
                # It was moved while this node was away, or its controller died before it said so.
                self.replicas.drop_stray(key)
        self.topics.learned({state.topic for state in message.states})
        if self.config.cluster.node_id in metadata.brokers:
            self._introduce()

    def _stop(self, message: m.StopReplicaRequest) -> m.StopReplicaResponse:
        outcomes = []
        for part in message.partitions:
            key, code = (part.topic, part.partition), ErrorCode.NONE
            try:
                if message.delete:
                    self.replicas.delete_replica(key)
                else:
                    self.replicas.stop_replica(key)
            except OSError as error:
                _log.error("a replica can't be removed", key=key, error=str(error))
                code = ErrorCode.KAFKA_STORAGE_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
        self.follower.refresh()
        return m.StopReplicaResponse(ErrorCode.NONE, outcomes)

    def _answered(self, node: int, message: Message, answer: Any) -> None:
        """What a node answered this node's controller."""
        if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self.controller.refused()
        elif isinstance(message, m.StopReplicaRequest) and message.delete:
            outcomes = [((p.topic, p.partition), p.error_code == ErrorCode.NONE) for p in answer.partitions]
            self.controller.ask("stopped", lambda duties: duties.stopped(node, outcomes), lambda: None)

    # -- in-sync replicas

    def _propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        key, epoch = partition.key, partition.leader_epoch
        if isr == partition.asked_for:
            return
        partition.asked_for = isr
        node = self.config.cluster.node_id
        now = Leadership(node, epoch, tuple(sorted(partition.isr)), self._controller_epoch, partition.version)

        def settle(found: Leadership) -> None:
            partition.asked_for = None
            if partition.is_leader and partition.leader_epoch == epoch == found.leader_epoch:
                _log.info("isr changed", key=key, isr=found.isr)
                partition.settle_isr(found.isr, found.version)
                self.replicas.changed(partition)

        def give_up(error: BrokerError) -> None:
            # It was written or not. The wish stays, and counts; it is proposed again, and then it will turn out.
            partition.asked_for = None
            _log.warning("isr not changed", key=key, reason=str(error))

        self._tree.run(lambda: self._jobs.change_isr(key, now, isr), settle, give_up)

    # -- asking the controller, if it is here

    def shut_down(self, node: int, answer: Callable[[list[Key] | None], object]) -> None:
        """Have a node's leaderships moved away, if this is the controller; answer on the loop, None if it isn't."""
        self.ask_controller("shutdown", lambda duties: duties.nodes.shut_down(node), answer)

    def ask_controller(self, kind: str, what: Callable[[Duties], Any], answer: Callable[[Any], object]) -> None:
        """Have the active controller of this node do something; answer on the loop, None if it isn't here."""

        def handle(duties: Duties) -> None:
            result = what(duties)
            # As an event of its own: what the first one has to tell other nodes is sent at its end, and comes first.
            self.controller.events.put("answer", lambda: self._tell(answer, result))

        self.controller.ask(kind, handle, lambda: self._tell(answer, None))

    def _tell(self, answer: Callable[[Any], object], result: Any) -> None:
        def tell() -> None:
            answer(result)
            self._run_actions()

        self._loop.call_soon_threadsafe(tell)


def _leadership(state: m.PartitionState) -> Leadership:
    return Leadership(state.leader, state.leader_epoch, tuple(state.isr), state.controller_epoch, state.version)
