"""A span for each wait, seen through the SDK's exporter."""

import asyncio
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome, PurgatoryClosed
from purgatory.aio import AsyncPurgatory
from purgatory.otel import Spans, instrument
from purgatory.otel._spans import MOST_ENDS
from tests.support import Waiting, beside, in_thread, park, park_one, raising, satisfy
from tests.support.loops import until
from tests.support.operations import WAYS_OUT
from tests.support.spans import Telemetry, ids, links


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def spans(telemetry):
    """The observer that makes a span of each wait."""
    return Spans("fetch", telemetry.provider)


@pytest.fixture
def opened(mock_timer, spans):
    with DelayedOperationPurgatory("fetch", timer=mock_timer, reaper_enabled=False, observers=[spans]) as purgatory:
        yield purgatory


@pytest.mark.parametrize("call", [lambda event: event(), in_thread], ids=["on its thread", "on another thread"])
def test_wait_is_a_span_of_the_request_linked_to_its_event(opened, telemetry, call):
    """The span of a wait is a child of the parker's, and linked to that of the event, on whichever thread it came."""
    with telemetry.tracer.start_as_current_span("request") as request:
        operation = park(opened, ("orders", 0), "all", delay_ms=30_000)

    def event():
        with telemetry.tracer.start_as_current_span("event") as span:
            satisfy(opened, "all", operation)
        return span

    linked = call(event)
    span = telemetry.wait()
    assert "park Waiting" == span.name
    assert ids(request) == ids(span.parent)
    assert [ids(linked)] == links(span)
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
    operation = park(opened)
    with telemetry.tracer.start_as_current_span("early"):
        opened.check_and_complete("k")
    satisfy(opened, "k", operation)
    assert [] == links(telemetry.wait())


@pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FORCED])
def test_every_outcome_ends_the_span(opened, telemetry, outcome):
    """However an operation leaves, its span ends, says so, and is no error. Without an event it has no link."""
    operation = park(opened)
    assert [] == telemetry.waits()
    WAYS_OUT[outcome](opened, operation)
    span = telemetry.wait()
    assert (outcome.value, []) == (span.attributes["purgatory.outcome"], links(span))
    assert trace.StatusCode.UNSET is span.status.status_code


def test_operation_that_need_not_wait_has_no_span(opened, telemetry):
    """What completes at once, or is rejected by a closed purgatory, leaves neither a span nor anything else."""
    with telemetry.tracer.start_as_current_span("request"):
        assert park(opened, ready=True).is_completed
    opened.shutdown()
    with pytest.raises(PurgatoryClosed):
        park(opened)
    assert [] == telemetry.waits()


def test_hook_that_raises_is_an_error_of_the_span(opened, telemetry):
    """An error of a hook is recorded, and the span's status is an error."""
    satisfy(opened, "k", park(opened, complete=raising(KeyError("lost"))))
    span = telemetry.wait()
    assert trace.StatusCode.ERROR is span.status.status_code
    assert ["KeyError"] == [event.attributes["exception.type"] for event in span.events]


def test_hooks_are_within_the_span(opened, telemetry):
    """The span ends after the hooks, and what they make current is not taken for the event."""

    def answer(_):
        with telemetry.tracer.start_as_current_span("answer"):
            pass

    operation = park(opened, complete=answer)
    with telemetry.tracer.start_as_current_span("event") as event:
        satisfy(opened, "k", operation)
    wait, (answered,) = telemetry.wait(), telemetry.spans("answer")
    assert wait.start_time <= answered.end_time <= wait.end_time
    assert [ids(event)] == links(wait)


def test_end_that_is_told_before_the_beginning_is_kept(telemetry, spans):
    """If the finisher's word comes before the parker's, the span is whole all the same, and ended once."""
    operation = Waiting()
    with telemetry.tracer.start_as_current_span("event") as event:
        operation.force_complete()
        spans.leaving(operation)
        spans.finished(operation, Outcome.FORCED, None)
    assert [] == telemetry.waits()
    spans.parked(operation)
    assert [ids(event)] == links(telemetry.wait())
    assert "forced" == telemetry.wait().attributes["purgatory.outcome"]


def test_ends_whose_beginning_never_comes_are_not_kept_for_ever(spans):
    """Of ends without a beginning, at most a fixed number is kept."""
    operations = [Waiting() for _ in range(MOST_ENDS + 5)]
    for operation in operations:
        spans.finished(operation, Outcome.CANCELLED, None)
    assert MOST_ENDS == len(spans._ends)
    assert operations[-1] in spans._ends


def test_races_end_each_span_once(telemetry, spans):
    """Parkers and finishers at once: each operation that waited has one span, and nothing is left behind."""
    with DelayedOperationPurgatory("fetch", observers=[spans]) as purgatory:
        operations = [Waiting(20) for _ in range(400)]
        done = threading.Event()

        def check():
            while not done.is_set():
                for operation in operations:
                    satisfy(purgatory, "k", operation)  # also before it is parked, and while it is

        with beside(check):
            for operation in operations:
                operation.ready = False
                park_one(purgatory, operation)
            in_thread(lambda: [purgatory.check_and_complete("k") for _ in range(3)])
            done.set()
    waited = [operation for operation in operations if operation.outcome is not Outcome.IMMEDIATE]
    assert len(waited) == len(telemetry.waits())
    assert ({}, {}, {}) == (spans._spans, spans._links, spans._ends)


def test_keys_can_be_left_out(telemetry, mock_timer):
    """Keys that are secret are not in the span."""
    observer = Spans("fetch", telemetry.provider, keys=False)
    with DelayedOperationPurgatory("fetch", timer=mock_timer, observers=[observer]) as purgatory:
        park(purgatory, "secret")
    assert "purgatory.keys" not in telemetry.wait().attributes


def test_spans_that_are_not_sampled_leave_nothing(mock_timer):
    """Where the sampler says no, nothing is exported and nothing is kept."""
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    spans = Spans("fetch", telemetry.provider)
    with DelayedOperationPurgatory("fetch", timer=mock_timer, observers=[spans]) as purgatory:
        park(purgatory)
    assert [] == telemetry.waits()
    assert {} == spans._spans


async def test_awaited_operation_is_a_span_of_its_request(telemetry, spans):
    """On a loop, a wait is a child of the awaiting task's span, and linked to that of the task which checked."""
    news = []
    async with AsyncPurgatory("polls", observers=[spans]) as purgatory:

        async def poll():
            with telemetry.tracer.start_as_current_span("poll") as span:
                await purgatory.wait_for(lambda: news, keys=["k"], timeout_ms=60_000)
            return span

        polling = asyncio.create_task(poll())
        await until(lambda: purgatory.waiting)
        with telemetry.tracer.start_as_current_span("publish") as published:
            news.append(1)
            purgatory.check_and_complete("k")
        assert ids(await polling) == ids(telemetry.wait().parent)
    assert [ids(published)] == links(telemetry.wait())


def test_all_purgatories_are_instrumented(telemetry):
    """Those that live and those made later have spans, each once, until it is stopped."""
    with DelayedOperationPurgatory("before", timer_enabled=False) as before:
        stop = instrument(telemetry.provider)
        with DelayedOperationPurgatory("after", timer_enabled=False) as after:
            for purgatory in (before, after):
                park(purgatory).cancel()
            stop()
            park(after).cancel()
        stop()
        DelayedOperationPurgatory("later", timer_enabled=False).shutdown()
    assert ["before", "after"] == [span.attributes["purgatory.name"] for span in telemetry.waits()]


def test_name_is_asked_for():
    """An observer knows the name of its purgatory."""
    with pytest.raises(InvalidSetting, match="name"):
        Spans("")
