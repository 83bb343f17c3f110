"""The ids of the last records of each partition, by which a repeated publish is noticed.

Kafka keeps no ids. So each reader begins with reading the last ``keep_ids`` records before its position again. Kafka
sends whole records, so this can be many bytes. It has no time limit while records come, and no event is read before
its end. Otherwise an event could be applied whose id is in the rest. Rejected: a limit of bytes or of time. Workers
would disagree about a repetition.

If a topic gets more partitions, a key may move to another one. So an id is known in every partition under the key that
it had. Under another key it is known in its partition only, because the partitions have no common order: one worker
would apply the one event, and one the other.

Everything here runs on the loop of the reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import OffsetOutOfRangeError

from purgatory._core.log import log
from purgatory.feeds.engine import Disconnected
from purgatory.feeds.engines.kafka._publisher import ID

if TYPE_CHECKING:
    from aiokafka import TopicPartition

#: How many records are taken at once, and how often to see whether a partition has come to its end.
_CHUNK, _TURN_MS = 1_000, 50
#: How long the servers may send nothing.
_PAUSE_S: Final = 5.0
#: After how long a log event says what the worker waits for.
_SLOW_S: Final = 5.0


class Ids:
    """The ids of the last ``keep`` records of a partition. Each worker finds the same repetitions.

    Args:
        keep: how many records.
        by_key: shared by the partitions of a topic: how many of their last records have a key and an id.
    """

    def __init__(self, keep: int, by_key: Counter[tuple[bytes, bytes]]) -> None:
        self._keep = keep
        self._by_key = by_key
        self._last: dict[bytes, int] = {}  # the offset of the last record with an id
        self._order: deque[tuple[int, bytes, bytes]] = deque()

    def is_repeated(self, record: Any, name: bytes | None) -> bool:
        """Whether one of the ``keep`` records before this one has its id, if it has one. Remembers it."""
        key, offset = record.key or b"", record.offset
        if name is None:
            return False
        while self._order and self._order[0][0] < offset - self._keep:
            old, expired, of_key = self._order.popleft()
            self._by_key[of_key, expired] -= 1
            if not self._by_key[of_key, expired]:
                del self._by_key[of_key, expired]
            if self._last[expired] == old:
                del self._last[expired]
        known = name in self._last or (key, name) in self._by_key
        self._last[name] = offset
        self._by_key[key, name] += 1
        self._order.append((offset, name, key))
        return known


def id_of(record: Any) -> bytes | None:
    """The id of a record, or None. Another program may write an empty one, which would make its events one event."""
    return dict(record.headers).get(ID) or None


class History:
    """Reading the last records before a position again.

    Args:
        feed: the name of the feed.
        consumer: reads the partitions. Its place in them is undefined afterwards.
        ids: by the number of a partition, what is to remember its ids.
    """

    def __init__(self, feed: str, consumer: Any, ids: Sequence[Ids]) -> None:
        self._feed = feed
        self._consumer = consumer
        self._ids = ids
        self._left: dict[TopicPartition, int] = {}  # up to which offset a partition is still to be read

    async def read(self, ends: dict[TopicPartition, int], keep: int) -> None:
        """Remember the ids of the ``keep`` records of each partition before an offset.

        Raises:
            Disconnected: no record came for some seconds.
        """
        try:
            async with asyncio.timeout(_PAUSE_S) as limit:
                await self._begin({part: (end - keep, end) for part, end in ends.items()})
                began_s, is_logged = time.monotonic(), False
                while self._left:
                    if await self._read_some():
                        limit.reschedule(asyncio.get_running_loop().time() + _PAUSE_S)
                    if not is_logged and time.monotonic() - began_s > _SLOW_S:
                        is_logged = True
                        log.info("feed_reads_ids", feed=self._feed, records=await self._records_left())
        except TimeoutError as error:
            why = f"the servers sent no record for {_PAUSE_S:g} seconds, while the ids of the last ones were read"
            raise Disconnected(why) from error

    async def _begin(self, ranges: dict[TopicPartition, tuple[int, int]]) -> None:
        """Go to the first record of each range that the servers still have."""
        starts = await self._consumer.beginning_offsets(list(ranges))
        for part, (first, end) in ranges.items():
            start = max(starts[part], first)
            if start < end:
                self._left[part] = end
                self._consumer.seek(part, start)
            else:
                self._left.pop(part, None)

    async def _read_some(self) -> bool:
        """Take the next records. Returns whether some came, or a partition was read to its end."""
        try:
            batches = await self._consumer.getmany(*self._left, timeout_ms=_TURN_MS, max_records=_CHUNK)
        except OffsetOutOfRangeError as error:  # they expired meanwhile
            await self._begin({part: (offset, self._left[part]) for part, offset in error.args[0].items()})
            return False
        for part, records in batches.items():
            for record in records:
                if record.offset < self._left[part]:
                    self._ids[part.partition].is_repeated(record, id_of(record))
        read = [part for part, end in self._left.items() if await self._consumer.position(part) >= end]
        for part in read:
            del self._left[part]
        return bool(batches or read)

    async def _records_left(self) -> int:
        return sum([end - await self._consumer.position(part) for part, end in self._left.items()])
