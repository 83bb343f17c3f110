"""Messages about topics: metadata, creation and deletion."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message, NameCode, NamedValue
from examples.broker.protocol.wire import Boolean, Int16, Int32, NullableString, String, array, since

NOT_ASKED = -0x80000000
"""In place of authorized operations that the client has not asked for."""
_ALL_OF_TOPIC = 0b1101_1111_1000
_ALL_OF_CLUSTER = 0b1_1111_1010_0000
"""One bit per operation. Without an authorizer, every client may do everything."""


class MetadataRequest(Message):
    topics: list[String] | None = None
    allow_auto_topic_creation: Boolean = since(4, True)
    include_cluster_authorized_operations: Boolean = since(8, False)
    include_topic_authorized_operations: Boolean = since(8, False)


class MetadataBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: NullableString = since(1, None)


class MetadataPartition(Message):
    error_code: Int16 = 0
    index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = since(7, -1)
    replicas: list[Int32] = array()
    isr: list[Int32] = array()
    offline_replicas: list[Int32] = array(5)


class MetadataTopic(Message):
    error_code: Int16 = 0
    name: String = ""
    is_internal: Boolean = since(1, False)
    partitions: list[MetadataPartition] = array()
    authorized_operations: Int32 = since(8, NOT_ASKED)


class MetadataResponse(Message):
    throttle_time_ms: Int32 = since(3, 0)
    brokers: list[MetadataBroker] = array()
    cluster_id: NullableString = since(2, None)
    controller_id: Int32 = since(1, -1)
    topics: list[MetadataTopic] = array()
    cluster_authorized_operations: Int32 = since(8, NOT_ASKED)


def with_operations(response: MetadataResponse, request: MetadataRequest) -> MetadataResponse:
    """Add the authorized operations that the client asks for."""
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _ALL_OF_CLUSTER
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            topic.authorized_operations = NOT_ASKED if topic.error_code else _ALL_OF_TOPIC
    return response


class TopicAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = array()


class CreatableTopic(Message):
    name: String = ""
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    assignments: list[TopicAssignment] = array()
    configs: list[NamedValue] = array()


class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = array()
    timeout_ms: Int32 = 0
    validate_only: Boolean = since(1, False)


class CreatedTopic(NameCode):
    error_message: NullableString = since(1, None)


class CreateTopicsResponse(Message):
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[CreatedTopic] = array()


class DeleteTopicsRequest(Message):
    topic_names: list[String] = array()
    timeout_ms: Int32 = 0


class DeleteTopicsResponse(Message):
    throttle_time_ms: Int32 = since(1, 0)
    responses: list[NameCode] = array()


class PartitionsAssignment(Message):
    broker_ids: list[Int32] = array()


class PartitionsOfTopic(Message):
    name: String = ""
    count: Int32 = 0
    assignments: list[PartitionsAssignment] | None = None


class CreatePartitionsRequest(Message):
    topics: list[PartitionsOfTopic] = array()
    timeout_ms: Int32 = 0
    validate_only: Boolean = False


class CreatedPartitions(NameCode):
    error_message: NullableString = None


class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[CreatedPartitions] = array()
