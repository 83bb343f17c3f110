"""Messages between nodes, elections of leaders, and ends of leader epochs."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message, OfTopic, TopicPartitions
from examples.broker.protocol.wire import (
    Boolean,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    array,
    since,
)

# -- between nodes: the handshake


class NodeHandshakeRequest(Message):
    node_id: Int32 = 0
    proof: Bytes = b""


class NodeHandshakeResponse(Message):
    challenge: Bytes = b""


# -- from the controller


class PartitionState(Message):
    topic: String = ""
    partition: Int32 = 0
    leader: Int32 = -1
    leader_epoch: Int32 = 0
    isr: list[Int32] = array()
    version: Int32 = 0
    replicas: list[Int32] = array()


class LiveBroker(Message):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    is_offline: Boolean = False


class ControllerRequest(Message):
    controller_id: Int32 = 0
    controller_epoch: Int32 = 0


class LeaderAndIsrRequest(ControllerRequest):
    states: list[PartitionState] = array()
    live_leaders: list[LiveBroker] = array()
    incarnation: String = ""
    """The incarnation that the controller knows of the node."""


class TopicPartition(Message):
    topic: String = ""
    partition: Int32 = 0


class PartitionOutcome(TopicPartition):
    error_code: Int16 = 0


class ReplicaResponse(Message):
    error_code: Int16 = 0
    partitions: list[PartitionOutcome] = array()


class StopReplicaRequest(ControllerRequest):
    delete: Boolean = False
    partitions: list[TopicPartition] = array()


class UpdateMetadataRequest(ControllerRequest):
    states: list[PartitionState] = array()
    live_brokers: list[LiveBroker] = array()
    is_last: Boolean = True
    """Whether no other piece of this update follows."""


class UpdateMetadataResponse(Message):
    error_code: Int16 = 0


# -- to the controller


class ElectLeadersRequest(Message):
    election_type: Int8 = since(1, 0)
    topics: list[TopicPartitions] | None = array()
    timeout_ms: Int32 = 60_000


class ElectedPartition(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None


class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, 0)
    topics: list[OfTopic[ElectedPartition]] = array()


# -- between replicas: ends of leader epochs


class EpochOfPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Int32 = since(2, -1)
    leader_epoch: Int32 = 0


EpochOfTopic = OfTopic[EpochOfPartition]


class OffsetForLeaderEpochRequest(Message):
    replica_id: Int32 = since(3, -2)
    topics: list[EpochOfTopic] = array()


class EpochEndOfPartition(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = since(1, -1)
    end_offset: Int64 = -1


class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[OfTopic[EpochEndOfPartition]] = array()
