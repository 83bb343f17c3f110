"""Reading a topic: each fetch begins with the last event that was read.

    last event: offset 41, in a batch of 90 bytes
    fetch from 41 on, for 91 bytes  ---->  41 and 42   41 has the same mark: 42 follows it
                                           41          nothing came in time, and nothing is lost
                                           other 41    a gap

So one answer has the new events, and proves that they follow the last one. It costs no further question. The next fetch
is on its way while the events are applied.

**An answer may have nothing new although there is more**: the next batch is larger than what was asked for, or it is in
another segment of the log, where Kafka does not wait, or the server does not count as Kafka does. Then one fetch begins
after the last event, and another question checks that one (``_check``) before anything is applied.

A topic that got more partitions is a lost connection. The next reader reads the new ones from their start.

**A last event that has expired** is no gap if the history begins directly after it, because nothing is missing then.
Its mark cannot be compared. So a topic that was made again is not noticed if its history begins at the same offset.

Offsets of a partition may have holes, where a transaction ended. Nothing else makes them in a topic that ``_topic``
accepts.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from aiokafka import AIOKafkaConsumer, TopicPartition

from purgatory.feeds.engine import Disconnected, Event, Gap, Position, Reader, mark_of
from purgatory.feeds.engines.kafka._fetching import Answer, fetch
from purgatory.feeds.engines.kafka._ids import History, Ids
from purgatory.feeds.engines.kafka._position import KafkaPosition
from purgatory.feeds.engines.kafka._publisher import CONTEXT, ID, TIME
from purgatory.feeds.engines.kafka._topic import kafka_errors, prepare

if TYPE_CHECKING:
    from purgatory.feeds.engines.kafka import KafkaFeed

#: How long the servers may take for an answer, in milliseconds, beside the time that a fetch waits.
_ANSWER_MS: Final = 3_000
#: How long a fetch waits at the server. As long as a read.
_FETCH_MS: Final = 1_000
#: How many new bytes of a partition one fetch asks for.
_MOST_BYTES: Final = 1024 * 1024
#: How long to wait before a server is asked again that does not have the last event yet.
_TURN_S: Final = 0.05
_NS_PER_MS: Final = 1_000_000
#: What a publisher of a feed writes.
_TIME: Final = re.compile(rb"[0-9]{1,19}")


@attrs.define(eq=False)
class _Log:
    """How far a partition was read.

    Attributes:
        number: that of the partition.
        offset: that after the last event.
        mark: that of the last event. 0 if there is none to compare with.
        after: that after the last record, of whatever kind.
        size: how many bytes the servers have sent from the last event on.
        is_asked: whether a fetch is on its way.
        begins_after: whether the next fetch begins after the last event, which is checked by another question.
    """

    number: int
    offset: int
    mark: int
    after: int
    size: int = 0
    is_asked: bool = False
    begins_after: bool = False

    @property
    def has_last(self) -> bool:
        """Whether the next fetch begins with the last event."""
        return self.mark != 0 and not self.begins_after

    def begins(self, answer: Answer) -> bool:
        """Whether an answer begins with the last event. If not, it has nothing.

        Raises:
            Gap: another event is in its place, or none.
            Disconnected: the servers do not have it now.
        """
        if answer.next_offset < self.offset:
            if answer.end < self.offset:  # a new leader may not know yet that it is on the other replicas
                raise Disconnected(f"partition {self.number} ends at offset {answer.end} now")
            return False
        if not answer.records or answer.records[0].offset != self.offset - 1:
            raise Gap(f"offset {self.offset - 1} of partition {self.number} has no event now")
        if _mark(answer.records[0]) != self.mark:
            raise Gap(f"another event is at offset {self.offset - 1} of partition {self.number}")
        return True

    def take(self, answer: Answer, *, has_last: bool) -> list[Any]:
        """The new records of an answer. The next fetch goes on after them."""
        if has_last and not self.begins(answer):
            return []
        records = answer.records[has_last:]
        self.after = max(self.after, answer.next_offset)
        if records:
            self.offset, self.mark = records[-1].offset + 1, _mark(records[-1])
        elif answer.end > self.after:
            self.begins_after = self.mark != 0
        if records or has_last:
            self.size = answer.size_from(self.offset - 1)
        return records


class KafkaReader(Reader):
    """A consumer without a group, whose client asks for events. ``open`` starts it."""

    resume_s = 3_600.0  # it reads the ids again, and ends by itself if the servers stop to send them

    def __init__(self, feed: KafkaFeed) -> None:
        self._feed = feed
        self._consumer: Any = None
        self._client: Any = None
        self._parts: list[TopicPartition] = []
        self._noted: KafkaPosition | None = None
        self._logs: list[_Log] = []
        self._ids: list[Ids] = []
        self._fetches: dict[asyncio.Task[list[Any]], int] = {}  # those on their way, and to which server
        self._records: deque[Any] = deque()

    async def open(self) -> None:
        """Connect, and see whether the topic can be a feed."""
        feed = self._feed
        count = await prepare(feed)
        self._parts = [TopicPartition(feed.topic, number) for number in range(count)]
        by_key: Counter[tuple[bytes, bytes]] = Counter()
        self._ids = [Ids(feed.keep_ids, by_key) for _ in self._parts]
        settings: dict[str, Any] = {
            "request_timeout_ms": _FETCH_MS + _ANSWER_MS,
            **feed.client,
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
            "metadata_max_age_ms": 5_000,
        }
        with kafka_errors():
            self._consumer = AIOKafkaConsumer(**settings)
            await self._consumer.start()
            self._client = self._consumer._client
            await self._client.set_topics([feed.topic])

    async def close(self) -> None:
        """Close it."""
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        if self._consumer is not None:
            await _stop(self._consumer)

    async def end(self) -> Position:
        """The position of the last event."""
        with kafka_errors():
            ends = await self._consumer.end_offsets(self._parts)
        self._noted = await self._position_at([ends[part] for part in self._parts])
        return self._noted

    async def before_last(self, count: int) -> Position:
        """The position before the last ``count`` events of each partition."""
        with kafka_errors():
            ends = await self._consumer.end_offsets(self._parts)
            starts = await self._consumer.beginning_offsets(self._parts)
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
        offsets, marks = after.completed(self._noted or KafkaPosition.start(count))
        self._logs = [_Log(number, offsets[number], marks[number], offsets[number]) for number in range(count)]
        await self._check(self._logs)
        if self._feed.keep_ids:
            self._consumer.assign(self._parts)
            history = History(self._feed.name, self._consumer, self._ids)
            with kafka_errors():
                await history.read(dict(zip(self._parts, offsets, strict=True)), self._feed.keep_ids)
            self._consumer.unsubscribe()
            self._client.set_topics([self._feed.topic])
        return KafkaPosition(tuple(offsets), tuple(marks))

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:  # noqa: ARG002  # the servers wait as long
        """The next events."""
        with kafka_errors():
            unanswered = set(self._ask())  # until each server has answered, nothing proves that there is nothing
            while unanswered and not self._records:
                done, _ = await asyncio.wait(self._ask(), return_when=asyncio.FIRST_COMPLETED)
                unanswered -= done
                for task in done:
                    del self._fetches[task]
                    self._records.extend(task.result())
            events = [self._event(self._records.popleft()) for _ in range(min(most, len(self._records)))]
            if not self._records:
                self._ask()  # and the events are applied meanwhile
        return events

    # -- its parts

    async def _position_at(self, offsets: Sequence[int]) -> KafkaPosition:
        """The position with these offsets, with the marks of the events before them that the servers have."""
        marks = [0] * len(offsets)
        for number, answer in (await self._before(dict(enumerate(offsets)))).items():
            if answer is not None and answer.records and answer.records[0].offset == offsets[number] - 1:
                marks[number] = _mark(answer.records[0])
        return KafkaPosition(tuple(offsets), tuple(marks))

    def _event(self, record: Any) -> Event:
        """A record as an event."""
        number, headers = record.partition, dict(record.headers)
        name, context = headers.get(ID) or None, headers.get(CONTEXT)
        return Event(
            _text(record.key),
            record.value or b"",
            KafkaPosition.of_event(number, len(self._parts), record.offset, _mark(record)),
            None if name is None else _text(name),
            _published_ns(record),
            None if context is None else _text(context),
            is_repeated=self._ids[number].is_repeated(record, name),
        )

    def _ask(self) -> Iterable[asyncio.Task[list[Any]]]:
        """Ask for the next events of each partition. Returns what is on its way.

        A server answers one request after the other, so it gets the next one when it has answered.

        Raises:
            Disconnected: a partition has no leader, or the topic has more partitions.
        """
        known = self._consumer.partitions_for_topic(self._feed.topic)
        if known is not None and len(known) != len(self._parts):
            raise Disconnected(f"the topic has {len(known)} partitions now")
        logs = {log.number: log for log in self._logs if not log.is_asked}
        busy = set(self._fetches.values())
        for node, numbers in self._by_leader(logs).items() if logs else ():
            if node not in busy:
                self._fetches[asyncio.create_task(self._fetch(node, [logs[number] for number in numbers]))] = node
                for number in numbers:
                    logs[number].is_asked = True
        return self._fetches.keys()

    async def _fetch(self, node: int, logs: Sequence[_Log]) -> list[Any]:
        """The new records of the partitions of one server. Empty if nothing comes in time.

        Raises:
            Gap: the servers do not have the last event of a partition any more.
        """
        began_s = time.monotonic()
        logs = sorted(logs, key=lambda log: not log.begins_after)  # the first one gets a whole batch, however large
        has_last = {log.number: log.has_last for log in logs}
        wanted = {log.number: (log.offset - 1 if log.has_last else log.after, log.size + _MOST_BYTES) for log in logs}
        least = 1 + sum(log.size for log in logs if log.has_last)
        answers = await fetch(self._client, node, self._feed.topic, wanted, wait_ms=_FETCH_MS, least=least)
        unproven = [log for log in logs if log.begins_after or (has_last[log.number] and not answers[log.number])]
        if unproven:
            await self._check(unproven)
        records = []
        for log in logs:
            answer = answers[log.number]
            if answer is not None:
                records += log.take(answer, has_last=has_last[log.number])
            elif not has_last[log.number]:
                raise Gap(f"partition {log.number} has no offset {log.after} now")
            log.is_asked = False
        if not records and time.monotonic() - began_s < _FETCH_MS / 2_000:
            for log in logs:
                log.begins_after = log.mark != 0
        return records

    async def _check(self, logs: Iterable[_Log]) -> None:
        """See that the last events of partitions are there. If one has expired, there is none to compare with.

        Raises:
            Gap: they are not.
            Disconnected: the servers do not answer.
        """
        by_number = {log.number: log for log in logs}
        for number, answer in (await self._before({number: log.offset for number, log in by_number.items()})).items():
            log = by_number[number]
            log.begins_after = False
            if answer is None:
                log.mark = 0
            elif log.mark:
                log.begins(answer)
                log.size = answer.size_from(log.offset - 1)

    async def _before(self, offsets: Mapping[int, int]) -> dict[int, Answer | None]:
        """What the servers have of partitions from the record before an offset on.

        None says that this record has expired, and that the history begins with the offset. A partition without a
        record before it has no answer.

        Raises:
            Gap: the servers have none of that place.
            Disconnected: they do not answer in time.
        """
        wanted = {number: offset - 1 for number, offset in offsets.items() if offset > 0}
        answers: dict[int, Answer | None] = {}
        with kafka_errors():
            async with asyncio.timeout(_ANSWER_MS / 1000):
                if offsets and not wanted:
                    await self._consumer.end_offsets(self._parts)  # to see that the servers answer
                while left := {number: offset for number, offset in wanted.items() if number not in answers}:
                    found = await self._fetch_now(left)
                    answers.update(
                        (number, answer)
                        for number, answer in found.items()
                        if answer is None or answer.next_offset > wanted[number]
                    )
                    if len(answers) < len(wanted):
                        await self._check_end({number: offsets[number] for number in found if number not in answers})
                        await asyncio.sleep(_TURN_S)
                await self._check_expired([number for number, answer in answers.items() if answer is None], offsets)
        return answers

    async def _fetch_now(self, offsets: Mapping[int, int]) -> dict[int, Answer | None]:
        """What the servers have of partitions from an offset on, without waiting for more."""
        answers: dict[int, Answer | None] = {}
        for node, numbers in self._by_leader(offsets).items():
            wanted = {number: (offsets[number], _MOST_BYTES) for number in numbers}
            answers.update(await fetch(self._client, node, self._feed.topic, wanted, wait_ms=0, least=0))
        return answers

    async def _check_end(self, offsets: Mapping[int, int]) -> None:
        """See that no partition ends before an offset. A new leader has what it does not send yet.

        Raises:
            Gap: one does.
        """
        for number, answer in (await self._fetch_now(offsets)).items():
            if answer is None:
                raise Gap(f"partition {number} ends before offset {offsets[number]} now")

    async def _check_expired(self, numbers: Sequence[int], offsets: Mapping[int, int]) -> None:
        """See that the history of partitions begins with an offset.

        Raises:
            Gap: it begins later, or it ends before.
        """
        starts = await self._consumer.beginning_offsets([self._parts[number] for number in numbers]) if numbers else {}
        for part, start in starts.items():
            if start != offsets[part.partition]:
                why = f"offset {offsets[part.partition] - 1} of partition {part.partition} is not there"
                raise Gap(f"{why}, and the next event is missing")

    def _by_leader(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Partitions by the server that leads them.

        Raises:
            Disconnected: a partition has no leader.
        """
        by_leader: dict[int, list[int]] = defaultdict(list)
        for number in numbers:
            leader = self._client.cluster.leader_for_partition(self._parts[number])
            if leader is None or leader < 0:
                raise Disconnected(f"partition {number} has no leader now")
            by_leader[leader].append(number)
        return by_leader


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
