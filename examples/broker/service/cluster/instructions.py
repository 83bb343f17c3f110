"""The instructions of a controller to this node.

    LeaderAndIsr, StopReplica     --> replica manager, follower
    UpdateMetadata                --> metadata, and requests that wait for it

**Fencing.** Every instruction has the epoch of its controller. One with a smaller epoch than the newest is rejected, so
that late messages of a replaced controller have no effect. A larger epoch must be in the tree. A LeaderAndIsr also
has the node's incarnation. One from before the latest registration is rejected. Otherwise the node could begin to lead
by it, and acknowledge records beyond the ends with which it has registered. Elections go by these ends.

**Turns.** Instructions are carried out in order, in turns of ``turn_ms``. Clients are served between two turns.

Used on the broker's loop. Calls to the tree have their own thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from examples.broker.controller.partitions.requests import BEING_DELETED
from examples.broker.protocol.apis import API_OF
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import controller as m
from examples.broker.protocol.steps import Steps, run_in_turns
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.metadata import KnownPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from examples.broker.controller.partitions.requests import Message
    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.replication.peers.follower import Follower
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.cluster.topics import ClusterTopics
    from examples.broker.service.cluster.tree_client import TreeClient

_log = structlog.get_logger(__name__)
_EPOCH_TRIES = 8
_EPOCH_RETRY_S = 0.25
_TREE_RETRY_S = 0.25


@attrs.define(eq=False, kw_only=True)
class Instructions:
    """Receives and carries out a controller's messages."""

    _replicas: ReplicaManager
    _follower: Follower
    _coordinator: Coordinator
    _topics: ClusterTopics
    _tree: TreeClient
    _incarnation: Callable[[], str]
    """Returns this node's, as it is registered or about to be."""
    _introduced: Callable[[], None]
    """Called when this node has learned all metadata, its own registration included."""
    _run_actions: Callable[[], None]
    _turn_ms: int
    controller_epoch: int = attrs.field(default=0, init=False)
    """The newest epoch."""
    _loop: asyncio.AbstractEventLoop = attrs.field(init=False, factory=asyncio.get_running_loop)
    _queue: asyncio.Queue[tuple[Message, Callable[[Any], None]]] = attrs.field(init=False, factory=asyncio.Queue)
    _task: asyncio.Task[None] = attrs.field(init=False)

    @_task.default
    def _begin(self) -> asyncio.Task[None]:
        return self._loop.create_task(self._run())

    def receive(
        self,
        message: Message,
        respond: Callable[[Any], None],
        is_open: Callable[[], bool],
        tries: int = _EPOCH_TRIES,
    ) -> None:
        """Take a message from another node. An unknown epoch must be in the tree, now or soon.

        Once its connection is closed, the message is dropped, because its sender repeats it. Carried out after the
        repeated one, a StopReplica could delete the replica of a later topic.
        """
        if not is_open():
            return
        if message.controller_epoch <= self.controller_epoch:
            self.deliver(message, respond)
            return

        def compare(newest: int) -> None:
            if not is_open():
                return
            if message.controller_epoch <= newest:
                self.deliver(message, respond)
            elif tries > 1:
                self._loop.call_later(_EPOCH_RETRY_S, self.receive, message, respond, is_open, tries - 1)
            else:
                _log.error("unknown controller epoch", node=message.controller_id, epoch=message.controller_epoch)
                respond(API_OF[type(message)].response(ErrorCode.STALE_CONTROLLER_EPOCH))

        def retry(_: BrokerError) -> None:
            self._loop.call_later(_EPOCH_RETRY_S, self.receive, message, respond, is_open, tries)

        self._tree.run(lambda jobs: jobs.controller_epoch(), compare, retry)

    def deliver(self, message: Message, respond: Callable[[Any], None]) -> None:
        """Queue a message, unless there is a newer controller."""
        kind = API_OF[type(message)].response
        if message.controller_epoch < self.controller_epoch:
            _log.warning("stale controller", node=message.controller_id, epoch=message.controller_epoch)
            respond(kind(ErrorCode.STALE_CONTROLLER_EPOCH))
            return
        self.controller_epoch = message.controller_epoch
        self._queue.put_nowait((message, respond))

    async def _run(self) -> None:
        while True:
            message, respond = await self._queue.get()
            try:
                respond(await self._carry_out(message))
            except Exception:  # noqa: BLE001 - contained: without an answer, the next instructions would wait
                _log.exception("an instruction failed", kind=type(message).__name__)
                respond(API_OF[type(message)].response(ErrorCode.UNKNOWN_SERVER_ERROR))
            self._run_actions()

    async def _carry_out(self, message: Message) -> object:
        if not isinstance(message, m.StopReplicaRequest):
            await self._read_topics(message)
        if message.controller_epoch < self.controller_epoch:
            return API_OF[type(message)].response(ErrorCode.STALE_CONTROLLER_EPOCH)
        steps: Steps[object]
        if isinstance(message, m.LeaderAndIsrRequest):
            steps = self._lead_or_follow(message)
        elif isinstance(message, m.UpdateMetadataRequest):
            steps = self._learn(message)
        else:
            steps = self._stop(message)
        response = await run_in_turns(steps, self._turn_ms, self._run_actions)
        if isinstance(message, m.LeaderAndIsrRequest):
            await self._replicas.checkpoint_beside()
        return response

    async def _read_topics(self, message: m.LeaderAndIsrRequest | m.UpdateMetadataRequest) -> None:
        """Read a message's topics from the tree. Without the tree, known settings apply, and other topics wait for it.

        The wait ends when there is a newer controller.
        """
        topics = self._replicas.store.topics
        names = {state.topic for state in message.states if state.leader != BEING_DELETED}
        is_first = True
        while message.controller_epoch == self.controller_epoch:
            try:
                topics.update(await self._tree.ask(lambda jobs: jobs.read_topics(names)))
            except BrokerError as error:
                if names <= topics.keys():
                    return
                if is_first:
                    _log.warning("topics not read, will retry", reason=str(error))
                is_first = False
                await asyncio.sleep(_TREE_RETRY_S)
            else:
                return

    def close(self) -> None:
        self._task.cancel()

    def _lead_or_follow(self, message: m.LeaderAndIsrRequest) -> Steps[m.ReplicaResponse]:
        outcomes = []
        self._set_live_nodes(message.live_leaders)
        for state in message.states:
            if message.incarnation != self._incarnation():
                return m.ReplicaResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
            key, code = (state.topic, state.partition), ErrorCode.NONE
            # Clients ask for metadata after an error of this partition. It must be up to date by then.
            known = _known(state)
            self._replicas.metadata.learn(key, known)
            try:
                self._replicas.lead_or_follow(key, known.leadership, known.replicas)
            except OSError as error:
                self._replicas.store.disk.failed(error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
            except Exception:  # noqa: BLE001 - contained: the other partitions have leaders
                _log.exception("leadership not taken over", key=key)
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
            yield
        self._follower.refresh()
        self._replicas.check_disk()
        return m.ReplicaResponse(ErrorCode.NONE, outcomes)

    def _set_live_nodes(self, live: Collection[m.LiveBroker]) -> None:
        self._replicas.metadata.set_live_nodes(
            {broker.broker_id: (broker.host, broker.port) for broker in live},
            {broker.broker_id for broker in live if broker.is_offline},
        )

    def _learn(self, message: m.UpdateMetadataRequest) -> Steps[m.UpdateMetadataResponse]:
        metadata = self._replicas.metadata
        self._set_live_nodes(message.live_brokers)
        for state in message.states:
            yield
            key = (state.topic, state.partition)
            if state.leader == BEING_DELETED:
                metadata.forget(key)
                if state.topic not in metadata.topics:
                    self._replicas.store.topics.pop(state.topic, None)
                    self._coordinator.commits.delete_offsets_of_topic(state.topic)
                continue
            metadata.learn(key, _known(state))
            if self._replicas.cluster.node_id not in state.replicas:
                # It was moved while this node was away, or the controller died before it stopped the replica.
                self._replicas.drop_stray(key)
        self._topics.learned({state.topic for state in message.states})
        if message.is_last and self._replicas.cluster.node_id in metadata.brokers:
            self._introduced()
        return m.UpdateMetadataResponse()

    def _stop(self, message: m.StopReplicaRequest) -> Steps[m.ReplicaResponse]:
        outcomes = []
        for part in message.partitions:
            yield
            key, code = (part.topic, part.partition), ErrorCode.NONE
            try:
                if message.delete:
                    self._replicas.delete_replica(key)
                else:
                    self._replicas.stop_replica(key)
            except OSError as error:
                _log.error("replica not removed", key=key, error=str(error))
                code = ErrorCode.KAFKA_STORAGE_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
        self._follower.refresh()
        return m.ReplicaResponse(ErrorCode.NONE, outcomes)


def _known(state: m.PartitionState) -> KnownPartition:
    leadership = Leadership(state.leader, state.leader_epoch, tuple(state.isr), state.version)
    return KnownPartition(leadership, tuple(state.replicas))
