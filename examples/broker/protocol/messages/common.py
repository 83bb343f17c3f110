"""Parts that several messages share: partitions by topic, and an error code for each."""

from __future__ import annotations

import attrs

from examples.broker.protocol.wire import Int16, Int32, String, array


@attrs.define
class TopicPartitions:
    name: String = ""
    partitions: list[Int32] = array()


@attrs.define
class PartitionCode:
    index: Int32 = 0
    error_code: Int16 = 0


@attrs.define
class TopicCodes:
    name: String = ""
    partitions: list[PartitionCode] = array()
