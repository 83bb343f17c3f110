"""The spans of OpenTelemetry's SDK, kept in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

Ids = tuple[int, int]


class Telemetry:
    """A tracer, and the spans that have ended."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, start: str) -> list[ReadableSpan]:
        """The spans whose names start so."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def waits(self) -> list[ReadableSpan]:
        return self.spans("park ")

    def wait(self) -> ReadableSpan:
        """The one span of a wait."""
        (span,) = self.waits()
        return span

    def published(self) -> ReadableSpan:
        """The one span of a publish."""
        (span,) = self.spans("publish ")
        return span


def ids(span: Any) -> Ids:
    """The ids of a span, or of its context."""
    context = span.get_span_context() if hasattr(span, "get_span_context") else span
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> list[Ids]:
    """The ids of the spans that a span is linked to."""
    return [ids(link.context) for link in span.links]
