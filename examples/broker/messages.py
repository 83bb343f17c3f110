"""Every message that this broker reads or writes, declared field by field, and the table of APIs.

The order of a class's fields is their order on the wire; `since`, `only` and `array` say in which versions
a field is there (see `wire`). Only non-flexible versions are spoken. The minimum is 0 throughout, although
no client of today asks for it: librdkafka derives what a broker can do from exact versions being in range,
and drops compression without a word when Produce starts above 0.
"""

from __future__ import annotations

import attrs

from examples.broker.wire import (
    Boolean,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableBytes,
    NullableString,
    String,
    array,
    only,
    since,
)


@attrs.define
class RequestHeader:
    """What precedes every request; the response carries only the correlation id back."""

    api_key: Int16 = 0
    api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: NullableString = None


# --- Produce ------------------------------------------------------------------------------------------------


@attrs.define
class ProducePartition:
    index: Int32 = 0
    records: NullableBytes = None


@attrs.define
class ProduceTopic:
    name: String = ""
    partitions: list[ProducePartition] = array()


@attrs.define
class ProduceRequest:
    transactional_id: NullableString = since(3, None)
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topics: list[ProduceTopic] = array()


@attrs.define
class ProducedPartition:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = since(2, -1)
    log_start_offset: Int64 = since(5, -1)


@attrs.define
class ProducedTopic:
    name: String = ""
    partitions: list[ProducedPartition] = array()


@attrs.define
class ProduceResponse:
    topics: list[ProducedTopic] = array()
    throttle_time_ms: Int32 = since(1, 0)


# --- Fetch --------------------------------------------------------------------------------------------------


@attrs.define
class FetchPartition:
    index: Int32 = 0
    current_leader_epoch: Int32 = since(9, -1)
    fetch_offset: Int64 = 0
    log_start_offset: Int64 = since(5, -1)
    partition_max_bytes: Int32 = 0


@attrs.define
class FetchTopic:
    name: String = ""
    partitions: list[FetchPartition] = array()


@attrs.define
class ForgottenTopic:
    name: String = ""
    partitions: list[Int32] = array()


@attrs.define
class FetchRequest:
    replica_id: Int32 = -1
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = since(3, 0x7FFFFFFF)
    isolation_level: Int8 = since(4, 0)
    session_id: Int32 = since(7, 0)
    session_epoch: Int32 = since(7, -1)
    topics: list[FetchTopic] = array()
    forgotten_topics: list[ForgottenTopic] = array(7)
    rack_id: String = since(11, "")


@attrs.define
class AbortedTransaction:
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@attrs.define
class FetchedPartition:
    index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = since(4, -1)
    log_start_offset: Int64 = since(5, -1)
    aborted_transactions: list[AbortedTransaction] | None = since(4, None)
    preferred_read_replica: Int32 = since(11, -1)
    records: NullableBytes = None


@attrs.define
class FetchedTopic:
    name: String = ""
    partitions: list[FetchedPartition] = array()


@attrs.define
class FetchResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = since(7, 0)
    session_id: Int32 = since(7, 0)
    topics: list[FetchedTopic] = array()


# --- ListOffsets --------------------------------------------------------------------------------------------


@attrs.define
class ListOffsetsPartition:
    index: Int32 = 0
    timestamp: Int64 = 0
    max_num_offsets: Int32 = only(0, 0, 1)


@attrs.define
class ListOffsetsTopic:
    name: String = ""
    partitions: list[ListOffsetsPartition] = array()


@attrs.define
class ListOffsetsRequest:
    replica_id: Int32 = -1
    isolation_level: Int8 = since(2, 0)
    topics: list[ListOffsetsTopic] = array()


@attrs.define
class ListedPartition:
    index: Int32 = 0
    error_code: Int16 = 0
    old_style_offsets: list[Int64] = array(0, 0)
    timestamp: Int64 = since(1, -1)
    offset: Int64 = since(1, -1)


@attrs.define
class ListedTopic:
    name: String = ""
    partitions: list[ListedPartition] = array()


@attrs.define
class ListOffsetsResponse:
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[ListedTopic] = array()


# --- Metadata -----------------------------------------------------------------------------------------------


@attrs.define
class MetadataRequest:
    topics: list[String] | None = None
    allow_auto_topic_creation: Boolean = since(4, True)


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
    replicas: list[Int32] = array()
    isr: list[Int32] = array()
    offline_replicas: list[Int32] = array(5)


@attrs.define
class MetadataTopic:
    error_code: Int16 = 0
    name: String = ""
    is_internal: Boolean = since(1, False)
    partitions: list[MetadataPartition] = array()


@attrs.define
class MetadataResponse:
    throttle_time_ms: Int32 = since(3, 0)
    brokers: list[MetadataBroker] = array()
    cluster_id: NullableString = since(2, None)
    controller_id: Int32 = since(1, -1)
    topics: list[MetadataTopic] = array()


# --- Offsets of groups --------------------------------------------------------------------------------------


@attrs.define
class OffsetCommitPartition:
    index: Int32 = 0
    committed_offset: Int64 = 0
    commit_timestamp: Int64 = only(1, 1, -1)
    metadata: NullableString = None


@attrs.define
class OffsetCommitTopic:
    name: String = ""
    partitions: list[OffsetCommitPartition] = array()


@attrs.define
class OffsetCommitRequest:
    group_id: String = ""
    generation_id: Int32 = since(1, -1)
    member_id: String = since(1, "")
    retention_time_ms: Int64 = only(2, 4, -1)
    topics: list[OffsetCommitTopic] = array()


@attrs.define
class CommittedPartition:
    index: Int32 = 0
    error_code: Int16 = 0


@attrs.define
class CommittedTopic:
    name: String = ""
    partitions: list[CommittedPartition] = array()


@attrs.define
class OffsetCommitResponse:
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[CommittedTopic] = array()


@attrs.define
class OffsetFetchTopic:
    name: String = ""
    partitions: list[Int32] = array()


@attrs.define
class OffsetFetchRequest:
    group_id: String = ""
    topics: list[OffsetFetchTopic] | None = None


@attrs.define
class OffsetOfPartition:
    index: Int32 = 0
    committed_offset: Int64 = -1
    metadata: NullableString = None
    error_code: Int16 = 0


@attrs.define
class OffsetsOfTopic:
    name: String = ""
    partitions: list[OffsetOfPartition] = array()


@attrs.define
class OffsetFetchResponse:
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[OffsetsOfTopic] = array()
    error_code: Int16 = since(2, 0)


# --- Groups -------------------------------------------------------------------------------------------------


@attrs.define
class FindCoordinatorRequest:
    key: String = ""
    key_type: Int8 = since(1, 0)


@attrs.define
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    error_message: NullableString = since(1, None)
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1


@attrs.define
class JoinGroupProtocol:
    name: String = ""
    metadata: Bytes = b""


@attrs.define
class JoinGroupRequest:
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = since(1, -1)
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    protocol_type: String = ""
    protocols: list[JoinGroupProtocol] = array()


@attrs.define
class JoinGroupMember:
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    metadata: Bytes = b""


@attrs.define
class JoinGroupResponse:
    throttle_time_ms: Int32 = since(2, 0)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_name: String = ""
    leader: String = ""
    member_id: String = ""
    members: list[JoinGroupMember] = array()


@attrs.define
class HeartbeatRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""


@attrs.define
class HeartbeatResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0


@attrs.define
class LeaveGroupRequest:
    group_id: String = ""
    member_id: String = ""


@attrs.define
class LeaveGroupResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0


@attrs.define
class SyncGroupAssignment:
    member_id: String = ""
    assignment: Bytes = b""


@attrs.define
class SyncGroupRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: NullableString = since(3, None)
    assignments: list[SyncGroupAssignment] = array()


@attrs.define
class SyncGroupResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    assignment: Bytes = b""


@attrs.define
class DescribeGroupsRequest:
    groups: list[String] = array()
    include_authorized_operations: Boolean = since(3, False)


@attrs.define
class DescribedMember:
    member_id: String = ""
    client_id: String = ""
    client_host: String = ""
    metadata: Bytes = b""
    assignment: Bytes = b""


@attrs.define
class DescribedGroup:
    error_code: Int16 = 0
    group_id: String = ""
    state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedMember] = array()
    authorized_operations: Int32 = since(3, -0x80000000)


@attrs.define
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = since(1, 0)
    groups: list[DescribedGroup] = array()


@attrs.define
class ListGroupsRequest:
    pass


@attrs.define
class ListedGroup:
    group_id: String = ""
    protocol_type: String = ""


@attrs.define
class ListGroupsResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    groups: list[ListedGroup] = array()


# --- The broker itself, topics, producers -------------------------------------------------------------------


@attrs.define
class ApiVersionsRequest:
    pass


@attrs.define
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@attrs.define
class ApiVersionsResponse:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = array()
    throttle_time_ms: Int32 = since(1, 0)


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
    num_partitions: Int32 = 1
    replication_factor: Int16 = 1
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
class DeleteRecordsPartition:
    index: Int32 = 0
    offset: Int64 = 0


@attrs.define
class DeleteRecordsTopic:
    name: String = ""
    partitions: list[DeleteRecordsPartition] = array()


@attrs.define
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = array()
    timeout_ms: Int32 = 0


@attrs.define
class DeletedPartition:
    index: Int32 = 0
    low_watermark: Int64 = -1
    error_code: Int16 = 0


@attrs.define
class DeletedRecordsTopic:
    name: String = ""
    partitions: list[DeletedPartition] = array()


@attrs.define
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DeletedRecordsTopic] = array()


@attrs.define
class InitProducerIdRequest:
    transactional_id: NullableString = None
    transaction_timeout_ms: Int32 = 0


@attrs.define
class InitProducerIdResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


@attrs.frozen
class Api:
    """One row of the protocol's table: the key, the newest version spoken, and the two messages."""

    key: int
    name: str
    max_version: int
    request: type
    response: type


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "produce", 7, ProduceRequest, ProduceResponse),
        Api(1, "fetch", 11, FetchRequest, FetchResponse),
        Api(2, "list_offsets", 3, ListOffsetsRequest, ListOffsetsResponse),
        Api(3, "metadata", 5, MetadataRequest, MetadataResponse),
        Api(8, "offset_commit", 3, OffsetCommitRequest, OffsetCommitResponse),
        Api(9, "offset_fetch", 3, OffsetFetchRequest, OffsetFetchResponse),
        Api(10, "find_coordinator", 1, FindCoordinatorRequest, FindCoordinatorResponse),
        Api(11, "join_group", 5, JoinGroupRequest, JoinGroupResponse),
        Api(12, "heartbeat", 1, HeartbeatRequest, HeartbeatResponse),
        Api(13, "leave_group", 1, LeaveGroupRequest, LeaveGroupResponse),
        Api(14, "sync_group", 3, SyncGroupRequest, SyncGroupResponse),
        Api(15, "describe_groups", 3, DescribeGroupsRequest, DescribeGroupsResponse),
        Api(16, "list_groups", 1, ListGroupsRequest, ListGroupsResponse),
        Api(18, "api_versions", 2, ApiVersionsRequest, ApiVersionsResponse),
        Api(19, "create_topics", 3, CreateTopicsRequest, CreateTopicsResponse),
        Api(20, "delete_topics", 3, DeleteTopicsRequest, DeleteTopicsResponse),
        Api(21, "delete_records", 1, DeleteRecordsRequest, DeleteRecordsResponse),
        Api(22, "init_producer_id", 1, InitProducerIdRequest, InitProducerIdResponse),
    )
}
