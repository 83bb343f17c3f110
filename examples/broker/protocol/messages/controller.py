"""Messages between nodes, elections of leaders, and ends of leader epochs."""

from __future__ import annotations

import attrs

from examples.broker.protocol.messages.common import OfTopic, TopicPartitions
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


@attrs.define
class NodeHandshakeRequest:
    node_id: Int32 = 0
    proof: Bytes = b""


@attrs.define
class NodeHandshakeResponse:
    challenge: Bytes = b""


# -- from the controller


@attrs.define
class PartitionState:
    topic: String = ""
    partition: Int32 = 0
    leader: Int32 = -1
    leader_epoch: Int32 = 0
    isr: list[Int32] = array()
    version: Int32 = 0
    replicas: list[Int32] = array()


@attrs.define
class LiveBroker:
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    is_offline: Boolean = False


@attrs.define
class LeaderAndIsrRequest:
    controller_id: Int32 = 0
    controller_epoch: Int32 = 0
    states: list[PartitionState] = array()
    live_leaders: list[LiveBroker] = array()
    incarnation: String = ""
    """The incarnation that the controller knows of the node."""


@attrs.define
class PartitionOutcome:
    topic: String = ""
    partition: Int32 = 0
    error_code: Int16 = 0


@attrs.define
class LeaderAndIsrResponse:
    error_code: Int16 = 0
    partitions: list[PartitionOutcome] = array()


@attrs.define
class TopicPartition:
    topic: String = ""
    partition: Int32 = 0


@attrs.define
class StopReplicaRequest:
    controller_id: Int32 = 0
    controller_epoch: Int32 = 0
    delete: Boolean = False
    partitions: list[TopicPartition] = array()


@attrs.define
class StopReplicaResponse:
    error_code: Int16 = 0
    partitions: list[PartitionOutcome] = array()


@attrs.define
class UpdateMetadataRequest:
    controller_id: Int32 = 0
    controller_epoch: Int32 = 0
    states: list[PartitionState] = array()
    live_brokers: list[LiveBroker] = array()
    is_last: Boolean = True
    """Whether no other piece of this update follows."""


@attrs.define
class UpdateMetadataResponse:
    error_code: Int16 = 0


# -- to the controller


@attrs.define
class ElectLeadersRequest:
    election_type: Int8 = since(1, 0)
    topics: list[TopicPartitions] | None = array()
    timeout_ms: Int32 = 60_000


@attrs.define
class ElectedPartition:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None


@attrs.define
class ElectedTopic:
    topic: String = ""
    partitions: list[ElectedPartition] = array()


@attrs.define
class ElectLeadersResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, 0)
    topics: list[ElectedTopic] = array()


# -- between replicas: ends of leader epochs


@attrs.define
class EpochOfPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = since(2, -1)
    leader_epoch: Int32 = 0


EpochOfTopic = OfTopic[EpochOfPartition]


@attrs.define
class OffsetForLeaderEpochRequest:
    replica_id: Int32 = since(3, -2)
    topics: list[EpochOfTopic] = array()


@attrs.define
class EpochEndOfPartition:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = since(1, -1)
    end_offset: Int64 = -1


EpochEndOfTopic = OfTopic[EpochEndOfPartition]


@attrs.define
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[EpochEndOfTopic] = array()
