"""Reading a topic: one consumer reads on, and another one checks the last event.

    read:    the consumer's next records, of whatever partitions have some
    check:   of each partition the record that was read last:  the same mark, or a gap

Each read is followed by a check. If the old end is still there after the read, the records that were read are those
that follow it. If the start of the history was deleted, the servers report that.

A topic that got more partitions is a lost connection. The next reader reads the new ones from their start.

**A last event that has expired** is no gap if the history begins directly after it, because nothing is missing then.
Its mark cannot be compared. So a topic that was made again is not noticed if its history begins at the same offset.

Offsets of a partition may have holes, where a transaction ended. Nothing else makes them in a topic that ``_topic``
accepts.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from purgatory.feeds.engine import Disconnected, Event, Gap, Position, Reader, mark_of
from purgatory.feeds.engines.kafka._ids import History, Ids, id_of
from purgatory.feeds.engines.kafka._position import KafkaPosition
from purgatory.feeds.engines.kafka._publisher import CONTEXT, TIME
from purgatory.feeds.engines.kafka._topic import kafka_errors, prepare

if TYPE_CHECKING:
    from purgatory.feeds.engines.kafka import KafkaFeed

#: How long the servers may take to answer a check, and how often to see whether they can.
_ANSWER_S, _TURN_MS = 3.0, 50
#: How long a fetch waits at the server. Longer than a read, which then asks for nothing twice.
_FETCH_MS: Final = 1_000
_NS_PER_MS: Final = 1_000_000
#: What a publisher of a feed writes.
_TIME: Final = re.compile(rb"[0-9]{1,19}")


class KafkaReader(Reader):
    """Two consumers without a group. ``open`` starts them."""

    resume_s = 3_600.0  # it reads the ids again, and ends by itself if the servers stop to send them

    def __init__(self, feed: KafkaFeed) -> None:
        self._feed = feed
        self._consumer: Any = None
        self._checker: Any = None
        self._parts: list[TopicPartition] = []
        self._noted: KafkaPosition | None = None
        self._offsets: list[int] = []
        self._marks: list[int] = []
        self._ids: list[Ids] = []

    async def open(self) -> None:
        """Connect, and see whether the topic can be a feed."""
        feed = self._feed
        count = await prepare(feed)
        self._parts = [TopicPartition(feed.topic, number) for number in range(count)]
        by_key: Counter[tuple[bytes, bytes]] = Counter()
        self._ids = [Ids(feed.keep_ids, by_key) for _ in self._parts]
        settings: dict[str, Any] = {
            **feed.client,
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": _FETCH_MS,
            "isolation_level": "read_committed",
            "metadata_max_age_ms": 5_000,
        }
        with kafka_errors():
            self._consumer = AIOKafkaConsumer(**settings)
            await self._consumer.start()
            # A check takes the first batch only, and does not wait for others.
            self._checker = AIOKafkaConsumer(**{**settings, "fetch_max_wait_ms": 0}, max_partition_fetch_bytes=1)
            await self._checker.start()
            self._checker.assign(self._parts)
            self._checker.pause(*self._parts)

    async def close(self) -> None:
        """Close it."""
        consumers = [consumer for consumer in (self._consumer, self._checker) if consumer is not None]
        await asyncio.gather(*map(_stop, consumers), return_exceptions=True)

    async def end(self) -> Position:
        """The position of the last event."""
        with kafka_errors():
            ends = await self._checker.end_offsets(self._parts)
        self._noted = await self._position_at([ends[part] for part in self._parts])
        return self._noted

    async def before_last(self, count: int) -> Position:
        """The position before the last ``count`` events of each partition."""
        with kafka_errors():
            ends = await self._checker.end_offsets(self._parts)
            starts = await self._checker.beginning_offsets(self._parts)
        self._noted = await self._position_at([max(starts[part], ends[part] - count) for part in self._parts])
        return self._noted

    async def resume(self, after: Position) -> Position:
        """Read on after a position. A partition that it does not name is read from the end that was noted.

        Returns the position with these ends. Another reader, which noted no end, reads on after it.
        """
        assert isinstance(after, KafkaPosition)
        count = len(self._parts)
        if len(after.offsets) > count:
            raise Gap(f"the topic has {count} partitions now, and had {len(after.offsets)}")
        self._offsets, self._marks = after.completed(self._noted or KafkaPosition.start(count))
        await self._check()
        self._consumer.assign(self._parts)
        if self._feed.keep_ids:
            history = History(self._feed.name, self._consumer, self._ids)
            with kafka_errors():
                await history.read(dict(zip(self._parts, self._offsets, strict=True)), self._feed.keep_ids)
        for part, offset in zip(self._parts, self._offsets, strict=True):
            self._consumer.seek(part, offset)
        return KafkaPosition(tuple(self._offsets), tuple(self._marks))

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events."""
        with kafka_errors():
            batches = await self._consumer.getmany(timeout_ms=int(wait_s * 1000), max_records=most)
        await self._check()
        return [self._event(record) for records in batches.values() for record in records]

    # -- its parts

    async def _position_at(self, offsets: Sequence[int]) -> KafkaPosition:
        """The position with these offsets, with the marks of the events before them that the servers have."""
        last = await self._records_before(offsets)
        marks = [_mark(record) if (record := last.get(number)) else 0 for number in range(len(offsets))]
        return KafkaPosition(tuple(offsets), tuple(marks))

    def _event(self, record: Any) -> Event:
        """A record as an event. This worker reads on after it."""
        number = record.partition
        name = id_of(record)
        context = dict(record.headers).get(CONTEXT)
        self._offsets[number] = record.offset + 1
        self._marks[number] = mark = _mark(record)
        return Event(
            _text(record.key),
            record.value or b"",
            KafkaPosition.of_event(number, len(self._parts), record.offset, mark),
            None if name is None else _text(name),
            _published_ns(record),
            None if context is None else _text(context),
            is_repeated=self._ids[number].is_repeated(record),
        )

    async def _check(self) -> None:
        """See that the last events are there, and that the topic has no more partitions than this knows.

        Raises:
            Gap: they are not.
            Disconnected: the servers do not answer, or the topic has more partitions.
        """
        records = await self._records_before(self._offsets)
        for number, (offset, mark) in enumerate(zip(self._offsets, self._marks, strict=True)):
            if offset > 0 and mark:
                if number not in records:
                    raise Gap(f"offset {offset - 1} of partition {number} has no event now")
                record = records[number]
                if record is not None and _mark(record) != mark:
                    raise Gap(f"another event is at offset {offset - 1} of partition {number}")
        known = self._checker.partitions_for_topic(self._feed.topic)
        if known is not None and len(known) != len(self._parts):
            raise Disconnected(f"the topic has {len(known)} partitions now")

    async def _records_before(self, offsets: Sequence[int]) -> dict[int, Any]:
        """Of each partition with events before an offset the last of them, if the servers have it.

        None in its place says that it has expired, and that the history begins with the offset.

        Raises:
            Gap: the servers have none of that place.
            Disconnected: they do not answer in time.
        """
        wanted = {self._parts[number]: offset - 1 for number, offset in enumerate(offsets) if offset > 0}
        records: dict[int, Any] = {}
        missing: dict[TopicPartition, int] = {}
        if not wanted:
            await self._see_servers()
        for part, offset in wanted.items():
            self._checker.seek(part, offset)
        self._checker.resume(*wanted)
        try:
            with kafka_errors():
                async with asyncio.timeout(_ANSWER_S):
                    while wanted:
                        await self._take_wanted(wanted, records, missing)
                    await self._check_expired(missing)
        finally:
            self._checker.pause(*self._parts)
        return {**records, **dict.fromkeys((part.partition for part in missing), None)}

    async def _take_wanted(
        self, wanted: dict[TopicPartition, int], records: dict[int, Any], missing: dict[TopicPartition, int]
    ) -> None:
        """Take records, and forget the partitions whose wanted record was among them or is not there.

        They are paused at once. Otherwise the checker would fetch ahead, and the next check could take that old answer.
        """
        for part, (first, *_) in (await self._take(wanted, missing)).items():
            if first.offset == wanted[part]:
                records[part.partition] = first
        for part in [part for part in wanted if await self._checker.position(part) > wanted[part]]:
            del wanted[part]
            self._checker.pause(part)

    async def _take(self, wanted: dict[TopicPartition, int], missing: dict[TopicPartition, int]) -> dict[Any, Any]:
        """Records of the wanted places. A place that the servers do not have becomes a missing one."""
        try:
            records: dict[Any, Any] = await self._checker.getmany(*wanted, timeout_ms=_TURN_MS)
        except OffsetOutOfRangeError as error:
            for part, offset in error.args[0].items():
                if wanted.get(part) == offset:  # and not the late answer to an earlier question
                    missing[part] = wanted.pop(part)
            return {}
        return records

    async def _check_expired(self, missing: dict[TopicPartition, int]) -> None:
        """See that missing events have expired, and that the history begins directly after them.

        Raises:
            Gap: the history begins later, or it ends before them.
        """
        if not missing:
            return
        starts = await self._checker.beginning_offsets(list(missing))
        for part, offset in missing.items():
            if starts[part] != offset + 1:
                raise Gap(f"offset {offset} of partition {part.partition} is not there, and the next event is missing")

    async def _see_servers(self) -> None:
        """See that the servers answer, where there is no event to check."""
        with kafka_errors():
            async with asyncio.timeout(_ANSWER_S):
                await self._checker.end_offsets(self._parts)


async def _stop(consumer: Any) -> None:
    try:
        await consumer.stop()
    finally:  # without servers, the cancellation of a task of the consumer ends stop() before it closes connections
        await consumer._client.close()


def _published_ns(record: Any) -> int:
    """The publisher's time. Another program's record has only milliseconds, whatever its header is."""
    given = dict(record.headers).get(TIME)
    return int(given) if given is not None and _TIME.fullmatch(given) else record.timestamp * _NS_PER_MS


def _mark(record: Any) -> int:
    return mark_of(_published_ns(record))


def _text(given: bytes | None) -> str:
    """Another program may write any bytes."""
    return "" if given is None else given.decode(errors="replace")
