"""The APIs between nodes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.messages import controller as m
from examples.broker.protocol.messages.common import by_topic, parts_of

if TYPE_CHECKING:
    from examples.broker.controller.partitions.requests import Message
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.cluster.membership import Membership
    from examples.broker.service.reply import Reply


@attrs.define(eq=False)
class NodeHandlers:
    """Requests from the controller, from other nodes and from followers."""

    membership: Membership
    replicas: ReplicaManager

    def node_handshake(self, request: m.NodeHandshakeRequest, _version: int, reply: Reply) -> None:
        """Send a challenge, or check the proof that answers it."""
        connection = reply.connection
        challenge, connection.challenge = connection.challenge, secrets.token_bytes(32)
        if not request.proof:
            reply(m.NodeHandshakeResponse(connection.challenge))
        elif self.membership.key.accepts(request.proof, challenge, request.node_id):
            connection.proved(request.node_id)
            reply(m.NodeHandshakeResponse())
        else:
            connection.close(f"the proof of node {request.node_id} is wrong")

    def carry_out(self, request: Message, _version: int, reply: Reply) -> None:
        """Carry out an instruction of the controller, and answer after that."""
        self.membership.instructions.receive(request, reply, lambda: reply.connection.is_open)

    leader_and_isr = stop_replica = update_metadata = carry_out

    def offset_for_leader_epoch(self, request: m.OffsetForLeaderEpochRequest, _version: int, reply: Reply) -> None:
        """Return where leader epochs end in this leader's logs."""
        parts = []
        for name, part in parts_of(request.topics):
            answer = m.EpochEndOfPartition(partition=part.partition)
            try:
                partition = self.replicas.leader((name, part.partition))
                partition.check_epoch(part.current_leader_epoch)
                log = partition.log
                answer.leader_epoch, answer.end_offset = log.epochs.end_of(part.leader_epoch, log.next_offset)
            except BrokerError as error:
                answer.error_code = error.code
            parts.append((name, answer))
        reply(m.OffsetForLeaderEpochResponse(topics=by_topic(parts)))
