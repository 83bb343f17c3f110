"""Spans for every purgatory of the process: those that live, and those made later."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import purgatory
from purgatory.otel._spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import TracerProvider

    from purgatory import DelayedOperationPurgatory

__all__ = ["instrument"]


def instrument(tracer_provider: TracerProvider | None = None, *, keys: bool = True) -> Callable[[], None]:
    """Make spans of the waits in every live purgatory, from now on, and in each that is made later. From any thread.

    Args:
        tracer_provider: see :class:`Spans`.
        keys: likewise.

    Returns:
        A call that ends it.

    >>> from purgatory.otel import instrument
    >>> stop = instrument()
    >>> stop()
    """
    observers: weakref.WeakKeyDictionary[DelayedOperationPurgatory[Any], Spans] = weakref.WeakKeyDictionary()
    lock = threading.Lock()
    stopped = False

    def greet(newcomer: DelayedOperationPurgatory[Any]) -> None:
        with lock:
            if not stopped and newcomer not in observers:  # one made at this moment is greeted twice
                observers[newcomer] = Spans(newcomer.name, tracer_provider, keys=keys)
                newcomer.attach(observers[newcomer])

    stop_greeting = purgatory.on_start(greet)

    def stop() -> None:
        nonlocal stopped
        stop_greeting()
        with lock:
            stopped = True
            for member, observer in list(observers.items()):
                member.detach(observer)
            observers.clear()

    return stop
