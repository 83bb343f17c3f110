"""Traces over feeds: from the publisher to the poll that its event wakes, in whatever process it waits.

    publisher    publish inbox |------|              a producer span. The event carries its id, as W3C trace context
    worker                            apply          runs with that span as the current one, and so does each check
    poll         park Until  |-----------|           gets a link to it, as to the span of any event

A worker makes no span per event, because each worker applies every event, and few of them end a wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

AnswerT = TypeVar("AnswerT")
ArgumentT = TypeVar("ArgumentT")

_FIELD = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


class FeedSpans:
    """What ``instrument`` sets for the feeds of the process. Any thread may call it.

    Args:
        tracer_provider: where spans go.
        keys: whether spans carry the events' keys.
    """

    def __init__(self, tracer_provider: TracerProvider | None, *, keys: bool) -> None:
        self._tracer = trace.get_tracer("purgatory", tracer_provider=tracer_provider)
        self._keys = keys

    async def publish(self, feed: str, key: str, send: Callable[[str | None], Awaitable[AnswerT]]) -> AnswerT:
        """Publish under a span, which ends when the feed has answered."""
        attributes: dict[str, str | list[str]] = {"purgatory.feed": feed}
        if self._keys:
            attributes["purgatory.keys"] = [str(key)]
        kind = trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"publish {feed}", kind=kind, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier)
            position = await send(carrier.get(_FIELD))
            span.set_attribute("purgatory.position", str(position))
            return position

    def run(self, traceparent: str, call: Callable[[ArgumentT], AnswerT], argument: ArgumentT) -> AnswerT:
        """Call with the publisher's span as the current one."""
        token = context.attach(_PROPAGATOR.extract({_FIELD: traceparent}))
        try:
            return call(argument)
        finally:
            context.detach(token)
