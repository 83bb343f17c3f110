"""Traces over feeds: a poll that an event wakes in another worker has a link to the publisher's span."""

import asyncio
import time

import pytest
from opentelemetry import trace

from purgatory import DelayedOperationPurgatory
from purgatory._feed_tracing import Tracing
from purgatory.feeds import EventTooLarge, KafkaFeed, MemoryFeed, PostgresFeed, PublishRejected, RedisFeed
from purgatory.feeds.engine import NewEvent
from purgatory.otel import instrument
from tests.support import Waiting
from tests.support.feeds import Worker
from tests.support.loops import until
from tests.support.spans import Telemetry, ids, links


@pytest.fixture
def telemetry():
    """Spans of all purgatories and feeds."""
    telemetry = Telemetry()
    stop = instrument(telemetry.provider)
    yield telemetry
    stop()


@pytest.fixture
def feed():
    return MemoryFeed("inbox", max_bytes=10)


async def test_poll_in_another_worker_is_linked_to_the_publisher(telemetry, feed):
    """The poll that an event wakes links to the span of its publish, which is a child of the publisher's request."""
    async with Worker(feed) as one, Worker(feed) as other:
        polls = [*one.waits(b"hello", "ann"), *other.waits(b"hello", "ann")]
        with telemetry.tracer.start_as_current_span("request") as request:
            position = await feed.publish("ann", b"hello")
        await until(lambda: all(poll.is_completed for poll in polls))

    span = telemetry.published()
    assert "publish inbox" == span.name
    assert trace.SpanKind.PRODUCER is span.kind
    assert ids(request) == ids(span.parent)
    assert {
        "purgatory.feed": "inbox",
        "purgatory.keys": ("ann",),
        "purgatory.position": str(position),
        "messaging.system": "memory",
        "messaging.destination.name": "inbox",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 5,
    } == dict(span.attributes)
    assert [[ids(span)]] * 2 == [links(wait) for wait in telemetry.waits()]


async def test_each_poll_is_linked_to_its_own_event(telemetry, feed):
    """Of events that are applied together, each wakes its polls under its own trace."""
    keys = [str(number) for number in range(20)]
    async with Worker(feed) as worker:
        polls = [worker.waits(key.encode(), key)[0] for key in keys]
        await asyncio.gather(*(feed.publish(key, key.encode()) for key in keys))
        await until(lambda: all(poll.is_completed for poll in polls))

    published = {span.attributes["purgatory.keys"]: [ids(span)] for span in telemetry.spans("publish ")}
    assert published == {wait.attributes["purgatory.keys"]: links(wait) for wait in telemetry.waits()}


async def test_apply_runs_under_the_trace_of_the_publisher(telemetry, feed):
    """A span that ``apply`` starts belongs to the publisher's trace, and that trace is current only there."""
    current = []

    def apply(event):
        current.append(ids(trace.get_current_span()))
        return [event.key]

    async with Worker(feed, apply=apply) as worker:
        await worker.publish(b"")
        assert not trace.get_current_span().get_span_context().is_valid

    assert [ids(telemetry.published())] == current


def test_wait_on_a_thread_is_linked_to_the_publisher(telemetry, feed):
    """The operations of a purgatory on threads get the same link."""
    operation = Waiting()

    def apply(event):
        operation.ready = True
        return [event.key]

    with DelayedOperationPurgatory("threads") as purgatory, feed.follow(purgatory, apply) as following:
        purgatory.try_complete_else_watch(operation, ["ann"])
        with telemetry.tracer.start_as_current_span("request") as request:
            position = following.publish("ann", b"")
        following.applied(position)

    assert ids(request) == ids(telemetry.published().parent)
    assert [ids(telemetry.published())] == links(telemetry.wait())


async def test_publish_that_fails_is_an_error_of_its_span(telemetry, feed):
    """A rejected publish has a span with the error. One that could never be sent has none."""
    with pytest.raises(EventTooLarge):
        await feed.publish("key", b"x" * 11)
    feed.max_pending = 0
    with pytest.raises(PublishRejected):
        await feed.publish("key", b"x")

    span = telemetry.published()
    assert trace.StatusCode.ERROR is span.status.status_code
    assert ["exception"] == [event.name for event in span.events]
    assert "PublishRejected" == span.attributes["error.type"]


async def test_span_is_named_after_the_topic(telemetry, feed, monkeypatch):
    """System and destination are the engine's, also if the feed has another name. Kafka's key has a name of its own."""
    monkeypatch.setattr(MemoryFeed, "system", "kafka")
    feed.destination = "app.inbox"
    await feed.publish("ann", b"")

    span = telemetry.published()
    assert "publish app.inbox" == span.name
    assert ("kafka", "app.inbox", "ann", "inbox") == tuple(
        span.attributes[name]
        for name in ("messaging.system", "messaging.destination.name", "messaging.kafka.message.key", "purgatory.feed")
    )


async def test_keys_can_be_left_out(feed):
    """``keys=False`` is for keys that are secret."""
    telemetry = Telemetry()
    stop = instrument(telemetry.provider, keys=False)
    await feed.publish("secret", b"")
    stop()

    assert "secret" not in str(telemetry.published().attributes)


async def test_stop_ends_the_spans_of_feeds(feed):
    """After it, a publish has no span, and its event carries nothing."""
    telemetry, contexts = Telemetry(), []
    instrument(telemetry.provider)()

    def apply(event):
        contexts.append(event.context)
        return []

    async with Worker(feed, apply=apply) as worker:
        await worker.publish(b"")

    assert [None] == contexts
    assert () == telemetry.exporter.get_finished_spans()


@pytest.mark.parametrize("context", ["", "nonsense", "00-0-0-0"])
async def test_event_with_another_context_is_applied(telemetry, feed, context):
    """Another program may have written the event. What is not a trace context gives no link."""
    async with Worker(feed) as worker:
        (poll,) = worker.waits(b"", "ann")
        publisher = await feed.open_publisher()
        await publisher.publish([NewEvent("ann", b"", None, time.time_ns(), context, 3)])
        await until(lambda: poll.is_completed)
        await publisher.close()

    assert [] == links(telemetry.wait())


def test_the_last_tracer_counts():
    """A tracer that is removed gives way to the one before it. Removing it again changes nothing."""
    tracing = Tracing()
    first, second = object(), object()
    tracing.add(first)
    tracing.add(second)
    assert second is tracing.tracer
    for _ in range(2):
        tracing.remove(second)
        assert first is tracing.tracer
    tracing.remove(first)
    assert tracing.tracer is None


@pytest.mark.parametrize(
    ("engine", "system"),
    [
        (lambda: RedisFeed("redis://localhost", stream="inbox", name="mine"), "redis"),
        (lambda: PostgresFeed("dbname=app", table="inbox", name="mine"), "postgresql"),
        (lambda: KafkaFeed("localhost:9092", topic="inbox", name="mine"), "kafka"),
    ],
)
def test_each_engine_says_what_it_is(engine, system):
    """An engine has the system's name in OpenTelemetry's conventions, and the topic, stream or table."""
    feed = engine()
    assert (system, "inbox", "mine") == (feed.system, feed.destination, feed.name)
