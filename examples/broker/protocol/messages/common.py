"""Parts that several messages share: partitions by topic, and an error code for each."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from examples.broker.protocol.wire import Int16, Int32, String, array

P = TypeVar("P")


@attrs.define
class OfTopic(Generic[P]):
    """What a message says of each partition of a topic."""

    name: String = ""
    partitions: list[P] = array()


TopicPartitions = OfTopic[Int32]


@attrs.define
class PartitionCode:
    index: Int32 = 0
    error_code: Int16 = 0


TopicCodes = OfTopic[PartitionCode]
