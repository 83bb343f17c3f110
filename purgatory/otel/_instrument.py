"""Spans for every purgatory and feed of the process: those that live, and those made later."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import purgatory
from purgatory._feed_tracing import tracing
from purgatory.otel._feeds import FeedSpans
from purgatory.otel._spans import Spans
from timer._fork import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import TracerProvider

    from purgatory import DelayedOperationPurgatory


def instrument(tracer_provider: TracerProvider | None = None, *, keys: bool = True) -> Callable[[], None]:
    """Make spans of the waits in every live purgatory, from now on, and in each that is made later. From any thread.

    Events of feeds carry the trace of their publisher to the waits that they end, in this process and in others.

    Args:
        tracer_provider: see :class:`Spans`.
        keys: likewise.

    Returns:
        A function that ends it.

    >>> from purgatory.otel import instrument
    >>> stop = instrument()
    >>> stop()
    """
    instrumented = _Instrumented(lambda name: Spans(name, tracer_provider, keys=keys))
    instrumented.start()
    feeds = FeedSpans(tracer_provider, keys=keys)
    tracing.add(feeds)

    def stop() -> None:
        instrumented.stop()
        tracing.remove(feeds)

    return stop


class _Instrumented:
    """The observers of every live purgatory, until it is stopped. Any thread may call it.

    Args:
        make: makes the observer of a purgatory of that name.
    """

    def __init__(self, make: Callable[[str], Spans]) -> None:
        self._make = make
        self._lock = new_lock()
        self._stopped = False
        self._stop_attaching: Callable[[], None] | None = None
        self._observers: weakref.WeakKeyDictionary[DelayedOperationPurgatory[Any], Spans] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        self._stop_attaching = purgatory.on_start(self._attach)

    def stop(self) -> None:
        """Detach from all."""
        if self._stop_attaching is not None:
            self._stop_attaching()
        with self._lock:
            self._stopped = True
            for member, observer in list(self._observers.items()):
                member.detach(observer)
            self._observers.clear()

    def _attach(self, member: DelayedOperationPurgatory[Any]) -> None:
        with self._lock:
            if not self._stopped and member not in self._observers:  # one made at this moment comes twice
                self._observers[member] = observer = self._make(member.name)
                member.attach(observer)
