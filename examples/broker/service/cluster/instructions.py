"""What a controller tells this node, and what the node does with it.

    leader_and_isr, stop_replica     --> replica manager, follower
    update_metadata                  --> metadata, and whoever waits for it

**Fencing.** Every request from a controller carries its epoch. A smaller one than was seen is refused, so that what a
controller sent before it was replaced changes nothing when it comes late. A larger one counts once the tree has it.

Belongs to the broker's loop; calls to the tree have a thread of their own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.controller.partitions.requests import BEING_DELETED
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import controller as m
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.metadata import KnownPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from examples.broker.controller.partitions.requests import Message
    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.replication.peers.follower import Follower
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.cluster.topics import ClusterTopics
    from examples.broker.service.cluster.tree_client import TreeClient, TreeJobs
    from examples.broker.storage.topics import Topic

_log = structlog.get_logger(__name__)
_EPOCH_TRIES = 8
_EPOCH_RETRY_S = 0.25
_RESPONSES: dict[type, type] = {
    m.LeaderAndIsrRequest: m.LeaderAndIsrResponse,
    m.UpdateMetadataRequest: m.UpdateMetadataResponse,
    m.StopReplicaRequest: m.StopReplicaResponse,
}


class Instructions:
    """Takes and carries out a controller's messages.

    Args:
        introduced: called when this node has learned that it is part of the cluster.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        follower: Follower,
        coordinator: Coordinator,
        topics: ClusterTopics,
        tree: tuple[TreeClient, TreeJobs],
        *,
        introduced: Callable[[], None],
    ) -> None:
        self.controller_epoch = 0
        """The newest that was seen."""
        self._replicas = replicas
        self._follower = follower
        self._coordinator = coordinator
        self._topics = topics
        self._tree, self._jobs = tree
        self._introduced = introduced
        self._loop = asyncio.get_running_loop()

    def receive(self, message: Message, respond: Callable[[Any], None], tries: int = _EPOCH_TRIES) -> None:
        """Take a message from another node; an epoch that is new here must stand in the tree, now or soon."""
        if message.controller_epoch <= self.controller_epoch:
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
        if message.controller_epoch < self.controller_epoch:
            _log.warning("stale controller", node=message.controller_id, epoch=message.controller_epoch)
            respond(kind(ErrorCode.STALE_CONTROLLER_EPOCH))
            return
        self.controller_epoch = message.controller_epoch
        names: set[str] = set()
        if not isinstance(message, m.StopReplicaRequest):
            names = {state.topic for state in message.states if state.leader != BEING_DELETED}

        def carry_out(topics: Mapping[str, Topic]) -> None:
            if message.controller_epoch < self.controller_epoch:
                respond(kind(ErrorCode.STALE_CONTROLLER_EPOCH))
                return
            self._replicas.store.topics.update(topics)
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
            self._replicas.metadata.learn(key, KnownPartition(_leadership(state), tuple(state.replicas)))
            try:
                self._replicas.lead_or_follow(key, _leadership(state), tuple(state.replicas))
            except OSError as error:
                self._replicas.store.disk.failed(error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
        self._follower.refresh()
        self._replicas.heed_disk()
        return m.LeaderAndIsrResponse(ErrorCode.NONE, outcomes)

    def _know_brokers(self, live: Collection[m.LiveBroker]) -> None:
        self._replicas.metadata.know(
            {broker.broker_id: (broker.host, broker.port) for broker in live},
            {broker.broker_id for broker in live if broker.is_leaving},
        )

    def _learn(self, message: m.UpdateMetadataRequest) -> None:
        metadata = self._replicas.metadata
        self._know_brokers(message.live_brokers)
        for state in message.states:
            key = (state.topic, state.partition)
            if state.leader == BEING_DELETED:
                metadata.forget(key)
                if state.topic not in metadata.topics:
                    self._replicas.store.topics.pop(state.topic, None)
                    self._coordinator.commits.forget_topic(state.topic)
                continue
            metadata.learn(key, KnownPartition(_leadership(state), tuple(state.replicas)))
            if self._replicas.cluster.node_id not in state.replicas:
                # It was moved while this node was away, or its controller died before it said so.
                self._replicas.drop_stray(key)
        self._topics.learned({state.topic for state in message.states})
        if self._replicas.cluster.node_id in metadata.brokers:
            self._introduced()

    def _stop(self, message: m.StopReplicaRequest) -> m.StopReplicaResponse:
        outcomes = []
        for part in message.partitions:
            key, code = (part.topic, part.partition), ErrorCode.NONE
            try:
                if message.delete:
                    self._replicas.delete_replica(key)
                else:
                    self._replicas.stop_replica(key)
            except OSError as error:
                _log.error("a replica can't be removed", key=key, error=str(error))
                code = ErrorCode.KAFKA_STORAGE_ERROR
            outcomes.append(m.PartitionOutcome(*key, code))
        self._follower.refresh()
        return m.StopReplicaResponse(ErrorCode.NONE, outcomes)


def _leadership(state: m.PartitionState) -> Leadership:
    return Leadership(state.leader, state.leader_epoch, tuple(state.isr), state.controller_epoch, state.version)
