"""A span for each wait, seen through the SDK's exporter."""

import asyncio
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome, PurgatoryClosed
from purgatory.aio import AsyncPurgatory
from purgatory.otel import Spans, instrument
from purgatory.otel._spans import MOST_ENDS
from tests.support import Waiting, beside, in_thread, park_one, satisfy
from tests.support.loops import run_on, until
from tests.support.operations import WAYS_OUT


class Telemetry:
    def __init__(self, **settings):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def waits(self):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith("park ")]

    def wait(self):
        (span,) = self.waits()
        return span


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def opened(mock_timer, telemetry):
    with DelayedOperationPurgatory(
        "fetch", timer=mock_timer, reaper_enabled=False, observers=[Spans("fetch", telemetry.provider)]
    ) as purgatory:
        yield purgatory


def ids(context):
    return context.trace_id, context.span_id


@pytest.mark.parametrize("call", [lambda event: event(), in_thread], ids=["on its thread", "on another thread"])
def test_wait_is_a_span_of_the_request_linked_to_its_event(opened, telemetry, call):
    """The span of a wait is a child of the parker's, and linked to that of the event, on whichever thread it came."""
    operation = Waiting(30_000)
    with telemetry.tracer.start_as_current_span("request") as request:
        opened.try_complete_else_watch(operation, [("orders", 0), "all"])

    def event():
        operation.ready = True
        with telemetry.tracer.start_as_current_span("event") as span:
            opened.check_and_complete("all")
        return span.get_span_context()

    linked = call(event)
    span = telemetry.wait()
    assert "park Waiting" == span.name
    assert ids(request.get_span_context()) == ids(span.parent)
    assert [ids(linked)] == [ids(link.context) for link in span.links]
    assert {
        "purgatory.name": "fetch",
        "purgatory.operation": "Waiting",
        "purgatory.delay_ms": 30_000,
        "purgatory.keys": ("('orders', 0)", "all"),
        "purgatory.outcome": "satisfied",
        "purgatory.checks": 3,
    } == dict(span.attributes)
    assert trace.StatusCode.UNSET is span.status.status_code


def test_event_that_satisfies_nobody_is_not_linked(opened, telemetry):
    """Only the event that decided is linked, not those that looked before."""
    operation = park_one(opened, Waiting())
    with telemetry.tracer.start_as_current_span("early"):
        opened.check_and_complete("k")
    satisfy(opened, "k", operation)
    assert () == telemetry.wait().links


@pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FORCED])
def test_every_outcome_ends_the_span(opened, telemetry, outcome):
    """However an operation leaves, its span ends, says so, and is no error. Without an event it has no link."""
    operation = park_one(opened, Waiting())
    assert [] == telemetry.waits()
    WAYS_OUT[outcome](opened, operation)
    span = telemetry.wait()
    assert (outcome.value, ()) == (span.attributes["purgatory.outcome"], span.links)
    assert trace.StatusCode.UNSET is span.status.status_code


def test_operation_that_need_not_wait_has_no_span(opened, telemetry):
    """What completes at once leaves neither a span nor anything else."""
    with telemetry.tracer.start_as_current_span("request"):
        assert opened.try_complete_else_watch(Waiting(ready=True), ["k"])
    assert [] == telemetry.waits()


def test_hook_that_raises_is_an_error_of_the_span(opened, telemetry):
    """An error of a hook is recorded, and the span's status is an error."""

    def fail(_):
        raise KeyError("lost")

    operation = park_one(opened, Waiting(complete=fail))
    satisfy(opened, "k", operation)
    span = telemetry.wait()
    assert trace.StatusCode.ERROR is span.status.status_code
    assert ["KeyError"] == [event.attributes["exception.type"] for event in span.events]


def test_hooks_are_within_the_span(opened, telemetry):
    """The span ends after the hooks, and what they make current is not taken for the event."""

    def answer(_):
        with telemetry.tracer.start_as_current_span("answer"):
            pass

    operation = park_one(opened, Waiting(complete=answer))
    operation.ready = True
    with telemetry.tracer.start_as_current_span("event") as event:
        opened.check_and_complete("k")
    spans = {span.name: span for span in telemetry.exporter.get_finished_spans()}
    assert spans["park Waiting"].start_time <= spans["answer"].end_time <= spans["park Waiting"].end_time
    assert [ids(event.get_span_context())] == [ids(link.context) for link in spans["park Waiting"].links]


def test_end_that_is_told_before_the_beginning_is_kept(telemetry):
    """If the finisher's word comes before the parker's, the span is whole all the same, and ended once."""
    spans = Spans("fetch", telemetry.provider)
    operation = Waiting()
    with telemetry.tracer.start_as_current_span("event") as event:
        operation.force_complete()
        spans.leaving(operation)
        spans.finished(operation, Outcome.FORCED, None)
    assert [] == telemetry.waits()
    spans.parked(operation)
    assert [ids(event.get_span_context())] == [ids(link.context) for link in telemetry.wait().links]
    assert "forced" == telemetry.wait().attributes["purgatory.outcome"]


def test_ends_whose_beginning_never_comes_are_not_kept_for_ever(telemetry):
    """Of ends without a beginning, at most a fixed number is kept."""
    spans = Spans("fetch", telemetry.provider)
    operations = [Waiting() for _ in range(MOST_ENDS + 5)]
    for operation in operations:
        spans.finished(operation, Outcome.CANCELLED, None)
    assert MOST_ENDS == len(spans._ends)
    assert operations[-1] in spans._ends


def test_races_end_each_span_once(telemetry):
    """Parkers and finishers at once: each operation that waited has one span, and nothing is left behind."""
    spans = Spans("fetch", telemetry.provider)
    with DelayedOperationPurgatory("fetch", observers=[spans]) as purgatory:
        operations = [Waiting(20) for _ in range(400)]
        done = threading.Event()

        def check():
            while not done.is_set():
                for operation in operations:
                    operation.ready = True  # also before it is parked, and while it is
                    purgatory.check_and_complete("k")

        with beside(check):
            for operation in operations:
                operation.ready = False
                purgatory.try_complete_else_watch(operation, ["k"])
            in_thread(lambda: [purgatory.check_and_complete("k") for _ in range(3)])
            done.set()
    waited = [operation for operation in operations if operation.outcome is not Outcome.IMMEDIATE]
    assert len(waited) == len(telemetry.waits())
    assert ({}, {}, {}) == (spans._spans, spans._links, spans._ends)


def test_keys_can_be_left_out(telemetry, mock_timer):
    """Keys that are secret are not in the span."""
    observer = Spans("fetch", telemetry.provider, keys=False)
    with DelayedOperationPurgatory("fetch", timer=mock_timer, reaper_enabled=False, observers=[observer]) as purgatory:
        purgatory.try_complete_else_watch(Waiting(), ["secret"])
    assert "purgatory.keys" not in telemetry.wait().attributes


def test_spans_that_are_not_sampled_leave_nothing(mock_timer):
    """Where the sampler says no, nothing is exported and nothing is kept."""
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    spans = Spans("fetch", telemetry.provider)
    with DelayedOperationPurgatory("fetch", timer=mock_timer, reaper_enabled=False, observers=[spans]) as purgatory:
        purgatory.try_complete_else_watch(Waiting(), ["k"])
    assert [] == telemetry.waits()
    assert {} == spans._spans


def test_awaited_operation_is_a_span_of_its_request(telemetry):
    """On a loop, a wait is a child of the awaiting task's span, and linked to that of the task which checked."""

    async def main():
        news = []
        async with AsyncPurgatory("polls", observers=[Spans("polls", telemetry.provider)]) as purgatory:

            async def poll():
                with telemetry.tracer.start_as_current_span("poll") as span:
                    await purgatory.wait_for(lambda: news, keys=["k"], timeout_ms=60_000)
                return span.get_span_context()

            async def publish():
                with telemetry.tracer.start_as_current_span("publish") as span:
                    news.append(1)
                    purgatory.check_and_complete("k")
                return span.get_span_context()

            polling = asyncio.create_task(poll())
            await until(lambda: purgatory.waiting)
            published = await asyncio.create_task(publish())
            return await polling, published

    polled, published = run_on("asyncio", main)
    assert ids(polled) == ids(telemetry.wait().parent)
    assert [ids(published)] == [ids(link.context) for link in telemetry.wait().links]


def test_all_purgatories_are_instrumented(telemetry):
    """Those that live and those made later have spans, each once, until it is stopped."""
    with DelayedOperationPurgatory("before", timer_enabled=False) as before:
        stop = instrument(telemetry.provider)
        with DelayedOperationPurgatory("after", timer_enabled=False) as after:
            for purgatory in (before, after):
                operation = park_one(purgatory, Waiting())
                operation.cancel()
            stop()
            operation = park_one(after, Waiting())
            operation.cancel()
        stop()
        DelayedOperationPurgatory("later", timer_enabled=False).shutdown()
    assert ["before", "after"] == [span.attributes["purgatory.name"] for span in telemetry.waits()]


def test_name_is_asked_for():
    """An observer knows the name of its purgatory."""
    with pytest.raises(InvalidSetting, match="name"):
        Spans("")


def test_refused_operation_has_no_span(opened, telemetry):
    """An operation that a closed purgatory rejects has no span."""
    opened.shutdown()
    with pytest.raises(PurgatoryClosed):
        opened.try_complete_else_watch(Waiting(), ["k"])
    assert [] == telemetry.waits()
