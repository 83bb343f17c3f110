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

    from purgatory._feed_tracing import Destination

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

    async def publish(
        self, destination: Destination, key: str, size: int, send: Callable[[str | None], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Publish under a span, which ends when the feed has answered."""
        attributes: dict[str, str | int | list[str]] = {
            "purgatory.feed": destination.feed,
            "messaging.system": destination.system,
            "messaging.destination.name": destination.name,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.message.body.size": size,
        }
        if self._keys:
            attributes["purgatory.keys"] = [str(key)]
            if destination.system == "kafka":
                attributes["messaging.kafka.message.key"] = str(key)
        name, kind = f"publish {destination.name}", trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(name, kind=kind, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier)
            try:
                position = await send(carrier.get(_FIELD))
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise
            span.set_attribute("purgatory.position", str(position))
            return position

    def run(self, traceparent: str, call: Callable[[ArgumentT], AnswerT], argument: ArgumentT) -> AnswerT:
        """Call with the publisher's span as the current one."""
        token = context.attach(_PROPAGATOR.extract({_FIELD: traceparent}))
        try:
            return call(argument)
        finally:
            context.detach(token)
