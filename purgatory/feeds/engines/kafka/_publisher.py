"""Publishing to a topic: an idempotent producer that waits for all in-sync replicas.

The producer repeats a request whose answer was lost, and the servers recognize the repetition. So a cut connection
neither loses nor doubles an event. What is not answered in time is uncertain, and a new producer takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka

from purgatory.feeds.engine import NewEvent, Publisher, PublishRejected, PublishUncertain, mark_of
from purgatory.feeds.engines.kafka._position import KafkaPosition
from purgatory.feeds.engines.kafka._topic import kafka_errors, prepare

if TYPE_CHECKING:
    from purgatory.feeds.engine import Answer
    from purgatory.feeds.engines.kafka import KafkaFeed

#: The errors after which the servers certainly do not have the event.
_REJECTIONS: Final = (
    kafka.ClusterAuthorizationFailedError,
    kafka.CorruptRecordException,
    kafka.InvalidTimestampError,
    kafka.InvalidTopicError,
    kafka.PolicyViolationError,
    kafka.TopicAuthorizationFailedError,
)
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
#: The headers of a record: the id, the publisher's time in nanoseconds, and what a tracer wants carried.
ID, TIME, CONTEXT = "feed-id", "feed-time", "traceparent"
#: The part of the time for a publish that the producer has for its own repetitions.
_SHARE: Final = 0.8
#: How much larger a record is than its event, at most.
_OVERHEAD: Final = 4096
_STOP_S: Final = 0.5


class KafkaPublisher(Publisher):
    """A producer. ``open`` starts it."""

    def __init__(self, feed: KafkaFeed) -> None:
        self._feed = feed
        self._partitions = 0
        self._lost = False
        self._producer: Any = None

    async def open(self) -> None:
        """Connect, and see whether the topic can be a feed."""
        feed = self._feed
        self._partitions = await prepare(feed)
        self._producer = AIOKafkaProducer(
            **feed.client,
            acks="all",
            enable_idempotence=True,
            max_batch_size=128 * 1024,
            max_request_size=feed.max_bytes + _OVERHEAD,
            request_timeout_ms=max(1, int(feed.publish_timeout_ms * _SHARE)),
        )
        with kafka_errors():
            await self._producer.start()

    async def close(self) -> None:
        """Close it."""
        if self._producer is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._producer.stop()
                return
        sender = self._producer._sender  # stop() waits for the servers, and leaves its parts if it is cancelled
        if sender.sender_task is not None:
            await sender.close()
        await self._producer.client.close()

    @property
    def is_lost(self) -> bool:
        """Whether an event was not answered. A new producer does not go on repeating it."""
        return self._lost

    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events."""
        sent = [await self._send(event) for event in events]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        return [self._answer(event, answer) for event, answer in zip(events, answers, strict=True)]

    async def _send(self, event: NewEvent) -> asyncio.Future[Any]:
        """Hand an event to the producer. Returns the future of its answer."""
        headers = [(TIME, b"%d" % event.published_ns)]
        if event.id is not None:
            headers.append((ID, event.id.encode()))
        if event.context is not None:
            headers.append((CONTEXT, event.context.encode()))
        try:
            future: asyncio.Future[Any] = await self._producer.send(
                self._feed.topic, event.value, key=event.key.encode(), headers=headers
            )
        except kafka.KafkaError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        return future

    def _answer(self, event: NewEvent, answer: Any) -> Answer:
        if not isinstance(answer, BaseException):
            count = max(self._partitions, answer.partition + 1)
            return KafkaPosition.of_event(answer.partition, count, answer.offset, mark_of(event.published_ns))
        why = str(answer) or repr(answer)
        if isinstance(answer, _TOO_LARGE):
            hint = "publish a reference to the data, or raise max.message.bytes of the topic"
            return PublishRejected(
                self._feed.name, f"{why}; {event.size} bytes are too large for the servers, so {hint}"
            )
        if isinstance(answer, _REJECTIONS):
            return PublishRejected(self._feed.name, why)
        self._lost = True
        return PublishUncertain(self._feed.name, why)
