"""Messages about records: produce, fetch, list offsets, delete records, and the ids of producers."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message, OfTopic, PartitionCode, TopicPartitions
from examples.broker.protocol.wire import (
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


class ProducePartition(Message):
    index: Int32 = 0
    records: NullableBytes = None


ProduceTopic = OfTopic[ProducePartition]


class ProduceRequest(Message):
    transactional_id: NullableString = since(3, None)
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topics: list[ProduceTopic] = array()


class RecordError(Message):
    batch_index: Int32 = 0
    message: NullableString = None


class ProducedPartition(PartitionCode):
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = since(2, -1)
    log_start_offset: Int64 = since(5, -1)
    record_errors: list[RecordError] = array(8)
    error_message: NullableString = since(8, None)


class ProduceResponse(Message):
    topics: list[OfTopic[ProducedPartition]] = array()
    throttle_time_ms: Int32 = since(1, 0)


class FetchPartition(Message):
    index: Int32 = 0
    current_leader_epoch: Int32 = since(9, -1)
    fetch_offset: Int64 = 0
    log_start_offset: Int64 = since(5, -1)
    partition_max_bytes: Int32 = 0


FetchTopic = OfTopic[FetchPartition]


class FetchRequest(Message):
    replica_id: Int32 = -1
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = since(3, 0x7FFFFFFF)
    isolation_level: Int8 = since(4, 0)
    session_id: Int32 = since(7, 0)
    session_epoch: Int32 = since(7, -1)
    topics: list[FetchTopic] = array()
    forgotten_topics: list[TopicPartitions] = array(7)
    rack_id: String = since(11, "")


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class FetchedPartition(PartitionCode):
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = since(4, -1)
    log_start_offset: Int64 = since(5, -1)
    aborted_transactions: list[AbortedTransaction] | None = since(4, None)
    preferred_read_replica: Int32 = since(11, -1)
    records: NullableBytes = None


class FetchResponse(Message):
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = since(7, 0)
    session_id: Int32 = since(7, 0)
    topics: list[OfTopic[FetchedPartition]] = array()


class ListOffsetsPartition(Message):
    index: Int32 = 0
    current_leader_epoch: Int32 = since(4, -1)
    timestamp: Int64 = 0
    max_num_offsets: Int32 = only(0, 0, 1)


ListOffsetsTopic = OfTopic[ListOffsetsPartition]


class ListOffsetsRequest(Message):
    replica_id: Int32 = -1
    isolation_level: Int8 = since(2, 0)
    topics: list[ListOffsetsTopic] = array()


class ListedPartition(PartitionCode):
    old_style_offsets: list[Int64] = array(0, 0)
    timestamp: Int64 = since(1, -1)
    offset: Int64 = since(1, -1)
    leader_epoch: Int32 = since(4, -1)


class ListOffsetsResponse(Message):
    throttle_time_ms: Int32 = since(2, 0)
    topics: list[OfTopic[ListedPartition]] = array()


class DeleteRecordsPartition(Message):
    index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsRequest(Message):
    topics: list[OfTopic[DeleteRecordsPartition]] = array()
    timeout_ms: Int32 = 0


class DeletedPartition(Message):
    index: Int32 = 0
    low_watermark: Int64 = -1
    error_code: Int16 = 0


class DeleteRecordsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[OfTopic[DeletedPartition]] = array()


class InitProducerIdRequest(Message):
    transactional_id: NullableString = None
    transaction_timeout_ms: Int32 = 0


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
