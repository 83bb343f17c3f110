"""Messages about committed offsets."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message, OfTopic, PartitionCode, TopicPartitions
from examples.broker.protocol.wire import Int16, Int32, Int64, NullableString, String, array, only, since


class OffsetCommitPartition(Message):
    index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = since(6, -1)
    commit_timestamp: Int64 = only(1, 1, -1)
    metadata: NullableString = None


OffsetCommitTopic = OfTopic[OffsetCommitPartition]


class OffsetCommitRequest(Message):
    group_id: String = ""
    generation_id: Int32 = since(1, -1)
    member_id: String = since(1, "")
    group_instance_id: NullableString = since(7, None)
    retention_time_ms: Int64 = only(2, 4, -1)
    topics: list[OffsetCommitTopic] = array()


class OffsetCommitResponse(Message):
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[OfTopic[PartitionCode]] = array()


class OffsetFetchRequest(Message):
    group_id: String = ""
    topics: list[TopicPartitions] | None = None


class OffsetOfPartition(Message):
    index: Int32 = 0
    committed_offset: Int64 = -1
    committed_leader_epoch: Int32 = since(5, -1)
    metadata: NullableString = None
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[OfTopic[OffsetOfPartition]] = array()
    error_code: Int16 = since(2, 0)


class OffsetDeleteRequest(Message):
    group_id: String = ""
    topics: list[TopicPartitions] = array()


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OfTopic[PartitionCode]] = array()
