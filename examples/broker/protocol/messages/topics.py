"""Messages about topics: metadata, creation and deletion."""

from __future__ import annotations

import attrs

from examples.broker.protocol.wire import Boolean, Int16, Int32, NullableString, String, array, since

NOT_ASKED = -0x80000000
"""In place of authorized operations that the client has not asked for."""
_ALL_OF_TOPIC = 0b1101_1111_1000
_ALL_OF_CLUSTER = 0b1_1111_1010_0000
"""One bit per operation. Without an authorizer, every client may do everything."""


@attrs.define
class MetadataRequest:
    topics: list[String] | None = None
    allow_auto_topic_creation: Boolean = since(4, True)
    include_cluster_authorized_operations: Boolean = since(8, False)
    include_topic_authorized_operations: Boolean = since(8, False)


@attrs.define
class MetadataBroker:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: NullableString = since(1, None)


@attrs.define
class MetadataPartition:
    error_code: Int16 = 0
    index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = since(7, -1)
    replicas: list[Int32] = array()
    isr: list[Int32] = array()
    offline_replicas: list[Int32] = array(5)


@attrs.define
class MetadataTopic:
    error_code: Int16 = 0
    name: String = ""
    is_internal: Boolean = since(1, False)
    partitions: list[MetadataPartition] = array()
    authorized_operations: Int32 = since(8, NOT_ASKED)


@attrs.define
class MetadataResponse:
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


@attrs.define
class TopicAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = array()


@attrs.define
class TopicConfig:
    name: String = ""
    value: NullableString = None


@attrs.define
class CreatableTopic:
    name: String = ""
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    assignments: list[TopicAssignment] = array()
    configs: list[TopicConfig] = array()


@attrs.define
class CreateTopicsRequest:
    topics: list[CreatableTopic] = array()
    timeout_ms: Int32 = 0
    validate_only: Boolean = since(1, False)


@attrs.define
class CreatedTopic:
    name: String = ""
    error_code: Int16 = 0
    error_message: NullableString = since(1, None)


@attrs.define
class CreateTopicsResponse:
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[CreatedTopic] = array()


@attrs.define
class DeleteTopicsRequest:
    topic_names: list[String] = array()
    timeout_ms: Int32 = 0


@attrs.define
class DeletedTopic:
    name: String = ""
    error_code: Int16 = 0


@attrs.define
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = since(1, 0)
    responses: list[DeletedTopic] = array()


@attrs.define
class PartitionsAssignment:
    broker_ids: list[Int32] = array()


@attrs.define
class PartitionsOfTopic:
    name: String = ""
    count: Int32 = 0
    assignments: list[PartitionsAssignment] | None = None


@attrs.define
class CreatePartitionsRequest:
    topics: list[PartitionsOfTopic] = array()
    timeout_ms: Int32 = 0
    validate_only: Boolean = False


@attrs.define
class CreatedPartitions:
    name: String = ""
    error_code: Int16 = 0
    error_message: NullableString = None


@attrs.define
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = 0
    results: list[CreatedPartitions] = array()
