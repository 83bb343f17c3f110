"""Traces over feeds: a poll that an event wakes in another worker has a link to the publisher's span."""

import asyncio
import contextlib
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from purgatory import DelayedOperationPurgatory
from purgatory._events.feed_tracing import Tracing
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import EventTooLarge, MemoryFeed, PublishRejected
from purgatory.feeds.engine import NewEvent
from purgatory.otel import instrument
from tests.support import PATIENCE_S, Waiting
from tests.support.loops import until


class Telemetry:
    def __init__(self, **settings):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.stop = instrument(self.provider, **settings)

    def spans(self, start):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def published(self):
        (span,) = self.spans("publish ")
        return span


@pytest.fixture
def telemetry():
    telemetry = Telemetry()
    yield telemetry
    telemetry.stop()


class Worker:
    """A worker that follows a feed. Its state is a dict."""

    def __init__(self, feed):
        self.state = {}
        self.current = []  # the span that was current at each apply
        self.purgatory = AsyncPurgatory("worker")
        self.following = feed.follow(self.purgatory, self.apply)

    def apply(self, event):
        self.current.append(ids(trace.get_current_span().get_span_context()))
        self.state[event.key] = event.value
        return [event.key]

    async def poll(self, key):
        await self.purgatory.wait_for(lambda: key in self.state, keys=[key], timeout_ms=PATIENCE_S * 1000)


@contextlib.asynccontextmanager
async def workers(feed, count=1):
    async with contextlib.AsyncExitStack() as stack:
        found = [Worker(feed) for _ in range(count)]
        for worker in found:
            await stack.enter_async_context(worker.purgatory)
            await stack.enter_async_context(worker.following)
        yield found


async def parked(purgatory, count):
    await until(lambda: purgatory.purgatory.watched == count)


def ids(context):
    return context.trace_id, context.span_id


def links(span):
    return [ids(link.context) for link in span.links]


async def test_poll_in_another_worker_is_linked_to_the_publisher(telemetry):
    """The poll that an event wakes links to the span of its publish, which is a child of the publisher's request."""
    feed = MemoryFeed("inbox")
    async with workers(feed, 2) as (one, other):
        polls = [asyncio.create_task(worker.poll("ann")) for worker in (one, other)]
        for worker in (one, other):
            await parked(worker.purgatory, 1)
        with telemetry.tracer.start_as_current_span("request") as request:
            position = await feed.publish("ann", b"hello")
        await asyncio.gather(*polls)

    span = telemetry.published()
    assert "publish inbox" == span.name
    assert trace.SpanKind.PRODUCER is span.kind
    assert ids(request.get_span_context()) == ids(span.parent)
    assert {
        "purgatory.feed": "inbox",
        "purgatory.keys": ("ann",),
        "purgatory.position": str(position),
    } == dict(span.attributes)
    assert [[ids(span.context)]] * 2 == [links(wait) for wait in telemetry.spans("park ")]


async def test_each_poll_is_linked_to_its_own_event(telemetry):
    """Of events that are applied together, each wakes its polls under its own trace."""
    feed = MemoryFeed()
    keys = [f"key {number}" for number in range(20)]
    async with workers(feed) as (worker,):
        polls = [asyncio.create_task(worker.poll(key)) for key in keys]
        await parked(worker.purgatory, len(keys))
        await asyncio.gather(*(feed.publish(key, b"") for key in keys))
        await asyncio.gather(*polls)

    published = {span.attributes["purgatory.keys"]: [ids(span.context)] for span in telemetry.spans("publish ")}
    assert published == {wait.attributes["purgatory.keys"]: links(wait) for wait in telemetry.spans("park ")}


async def test_apply_runs_under_the_trace_of_the_publisher(telemetry):
    """A span that ``apply`` starts belongs to the publisher's trace, and that trace is current only there."""
    feed = MemoryFeed()
    async with workers(feed) as (worker,):
        await worker.following.applied(await feed.publish("ann", b""))
        assert not trace.get_current_span().get_span_context().is_valid

    assert [ids(telemetry.published().context)] == worker.current


def test_wait_on_a_thread_is_linked_to_the_publisher(telemetry):
    """The operations of a purgatory on threads get the same link."""
    feed = MemoryFeed()
    operation = Waiting(60_000)

    def apply(event):
        operation.ready = True
        return [event.key]

    with DelayedOperationPurgatory("threads") as purgatory, feed.follow(purgatory, apply) as following:
        purgatory.try_complete_else_watch(operation, ["ann"])
        with telemetry.tracer.start_as_current_span("request") as request:
            position = following.publish("ann", b"")
        following.applied(position)

    (wait,) = telemetry.spans("park ")
    assert ids(request.get_span_context()) == ids(telemetry.published().parent)
    assert [ids(telemetry.published().context)] == links(wait)


async def test_publish_that_fails_is_an_error_of_its_span(telemetry):
    """A rejected publish has a span with the error. One that could never be sent has none."""
    feed = MemoryFeed(max_bytes=10)
    with pytest.raises(EventTooLarge):
        await feed.publish("key", b"x" * 11)
    feed.max_pending = 0
    with pytest.raises(PublishRejected):
        await feed.publish("key", b"x")

    span = telemetry.published()
    assert trace.StatusCode.ERROR is span.status.status_code
    assert ["exception"] == [event.name for event in span.events]


async def test_keys_can_be_left_out():
    """``keys=False`` is for keys that are secret."""
    telemetry = Telemetry(keys=False)
    async with MemoryFeed("inbox") as feed:
        await feed.publish("secret", b"")
    telemetry.stop()

    assert {"purgatory.feed", "purgatory.position"} == set(telemetry.published().attributes)


async def test_stop_ends_the_spans_of_feeds():
    """After it, a publish has no span, and its event carries nothing."""
    telemetry = Telemetry()
    telemetry.stop()
    feed = MemoryFeed()
    contexts = []

    def apply(event):
        contexts.append(event.context)
        return []

    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, apply) as following:
        await following.applied(await feed.publish("ann", b""))

    assert [None] == contexts
    assert () == telemetry.exporter.get_finished_spans()


@pytest.mark.parametrize("context", ["", "nonsense", "00-0-0-0"])
async def test_event_with_another_context_is_applied(telemetry, context):
    """Another program may have written the event. What is not a trace context gives no link."""
    feed = MemoryFeed()
    async with workers(feed) as (worker,):
        poll = asyncio.create_task(worker.poll("ann"))
        await parked(worker.purgatory, 1)
        publisher = await feed.open_publisher()
        await publisher.publish([NewEvent("ann", b"", None, time.time_ns(), context, 3)])
        await poll
        await publisher.close()

    (wait,) = telemetry.spans("park ")
    assert [] == links(wait)


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
