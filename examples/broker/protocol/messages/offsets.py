"""Messages about committed offsets."""

from __future__ import annotations

import attrs

from examples.broker.protocol.messages.common import OfTopic, TopicCodes, TopicPartitions
from examples.broker.protocol.wire import Int16, Int32, Int64, NullableString, String, array, only, since


@attrs.define
class OffsetCommitPartition:
    index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = since(6, -1)
    commit_timestamp: Int64 = only(1, 1, -1)
    metadata: NullableString = None


OffsetCommitTopic = OfTopic[OffsetCommitPartition]


@attrs.define
class OffsetCommitRequest:
    group_id: String = ""
    generation_id: Int32 = since(1, -1)
    member_id: String = since(1, "")
    group_instance_id: NullableString = since(7, None)
    retention_time_ms: Int64 = only(2, 4, -1)
    topics: list[OffsetCommitTopic] = array()


@attrs.define
class OffsetCommitResponse:
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[TopicCodes] = array()


@attrs.define
class OffsetFetchRequest:
    group_id: String = ""
    topics: list[TopicPartitions] | None = None


@attrs.define
class OffsetOfPartition:
    index: Int32 = 0
    committed_offset: Int64 = -1
    committed_leader_epoch: Int32 = since(5, -1)
    metadata: NullableString = None
    error_code: Int16 = 0


OffsetsOfTopic = OfTopic[OffsetOfPartition]


@attrs.define
class OffsetFetchResponse:
    throttle_time_ms: Int32 = since(3, 0)
    topics: list[OffsetsOfTopic] = array()
    error_code: Int16 = since(2, 0)


@attrs.define
class OffsetDeleteRequest:
    group_id: String = ""
    topics: list[TopicPartitions] = array()


@attrs.define
class OffsetDeleteResponse:
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[TopicCodes] = array()
