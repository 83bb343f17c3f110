"""Where a tracer connects to the feeds of this process. Neither imports the other.

``purgatory.otel`` sets a tracer. ``purgatory.feeds`` asks :data:`tracing` for it, once per publish and once per event.
Without a tracer that is all it costs. Any thread may call these functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import attrs

from timer._fork import new_lock

AnswerT = TypeVar("AnswerT")
ArgumentT = TypeVar("ArgumentT")


@attrs.frozen
class Destination:
    """Where a feed publishes.

    Attributes:
        feed: the feed's name.
        system: what carries its events, as OpenTelemetry names it: ``kafka``, ``redis``, ``postgresql``, ``memory``.
        name: the topic, stream or table.
    """

    feed: str
    system: str
    name: str


class FeedTracer(Protocol):
    """Carries the trace of a publisher to the workers that apply its event."""

    async def publish(
        self, destination: Destination, key: str, size: int, send: Callable[[str | None], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Await ``send(context)``, where ``context`` is what the event carries to the workers, or None.

        ``size`` is that of the event's value, in bytes.
        """

    def run(self, context: str, call: Callable[[ArgumentT], AnswerT], argument: ArgumentT) -> AnswerT:
        """Return ``call(argument)``. The publisher's span is the current one meanwhile."""


class Tracing:
    """The tracers that were set. The last one is used.

    Attributes:
        tracer: the tracer, or None.
    """

    __slots__ = ("_lock", "_tracers", "tracer")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._tracers: list[FeedTracer] = []
        self.tracer: FeedTracer | None = None

    def add(self, tracer: FeedTracer) -> None:
        """Use a tracer from now on."""
        with self._lock:
            self._tracers.append(tracer)
            self.tracer = tracer

    def remove(self, tracer: FeedTracer) -> None:
        """Use it no more, and the one before it instead. Harmless if it is not set."""
        with self._lock:
            self._tracers = [other for other in self._tracers if other is not tracer]
            self.tracer = self._tracers[-1] if self._tracers else None


#: What the feeds of this process ask.
tracing = Tracing()
