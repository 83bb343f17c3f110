"""Fetch requests: what a reader asks of the servers, and what they answer.

The client is that of a consumer, and the records are unpacked by its code. Only the queue between them is not used,
because a reader decides itself from where to read and how long the servers wait. These parts of aiokafka are not
documented, so other versions than ``VERSIONS`` are rejected.

    fetch      one request to one server.  Of each partition the records from an offset on
    Answer     what a partition has there:  the records, and the size of what has to be read again

A server counts the bytes from the batch that has the offset. So a request from the last record that was read on, for
more bytes than the servers have sent from there on, is answered when there is another record.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import aiokafka
import attrs
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import NoError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

#: The versions of aiokafka whose parts are as they are used here.
VERSIONS: Final = ("0.13", "0.14")
#: The greatest size of an answer, in bytes.
_MOST_BYTES: Final = 50 * 1024 * 1024
#: How many records are unpacked at once.
_CHUNK: Final = 1_000
#: How a batch begins: the offset of its first record, and the number of bytes that follow.
_BATCH: Final = struct.Struct(">qi")
#: The first version of an answer that has the start of the history before the aborted transactions.
_FIRST_WITH_START: Final = 5

if ".".join(aiokafka.__version__.split(".")[:2]) not in VERSIONS:
    hint = "pip install 'delayed-operation-purgatory[kafka]'"
    raise ImportError(f"KafkaFeed needs aiokafka {' or '.join(VERSIONS)}, got {aiokafka.__version__}; {hint}")


@attrs.frozen
class Answer:
    """What the servers have of one partition from an offset on.

    Attributes:
        records: the committed ones, in order.
        next_offset: that after the last record, of whatever kind.
        end: that after the last record that a consumer may read.
        data: the batches as they were sent.
    """

    records: list[Any]
    next_offset: int
    end: int
    data: bytes

    def size_from(self, offset: int) -> int:
        """How many bytes there are from the batch that has an offset to the last whole batch."""
        start = place = 0
        while place + _BATCH.size <= len(self.data):
            first, length = _BATCH.unpack_from(self.data, place)
            if place + _BATCH.size + length > len(self.data):
                break  # the servers cut it off
            if first <= offset:
                start = place
            place += _BATCH.size + length
        return place - start


async def fetch(
    client: Any, node: int, topic: str, wanted: Mapping[int, tuple[int, int]], *, wait_ms: int, least: int
) -> dict[int, Answer | None]:
    """Ask one server.

    Args:
        client: the client of aiokafka.
        node: the server.
        topic: the topic.
        wanted: by the number of a partition, from which offset on, and how many bytes at most.
        wait_ms: how long the server waits for ``least`` bytes. Meanwhile it answers nothing else on this connection.
        least: how many bytes, over all partitions.

    Returns:
        By the number of a partition the answer. None if it does not have the offset.

    Raises:
        KafkaError: the connection is lost, or the server cannot answer for a partition.
    """
    parts = [(number, offset, most) for number, (offset, most) in wanted.items()]
    request = FetchRequest(wait_ms, least, _MOST_BYTES, READ_COMMITTED, [(topic, parts)])
    response = await client.send(node, request)
    answers: dict[int, Answer | None] = {}
    for _, partitions in response.topics:
        for number, code, end, *others in partitions:
            error = for_code(code)
            if error is OffsetOutOfRangeError:
                answers[number] = None
            elif error is NoError:
                data = others[-1] or b""
                aborted = others[1 if response.API_VERSION < _FIRST_WITH_START else 2]
                part, offset = TopicPartition(topic, number), wanted[number][0]
                rest = PartitionRecords(part, MemoryRecords(data), aborted, offset, None, None, True, READ_COMMITTED)
                answers[number] = Answer(await _unpack(rest), rest.next_fetch_offset, end, data)
            else:
                raise error(f"partition {number}")
    return answers


async def _unpack(records: Any) -> list[Any]:
    """The records of an answer. Other tasks run between some of them."""
    unpacked: list[Any] = []
    while some := list(islice(records, _CHUNK)):
        unpacked += some
        if len(some) < _CHUNK:
            break
        await asyncio.sleep(0)
    return unpacked
