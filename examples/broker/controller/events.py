"""The controller's one queue: every watch, timer, request and answer becomes an event, handled one after the other.

No handler ever meets another one half-way, so the controller has no locks, and what it knows changes only between
events. An event that raises is logged and counted; the next one is taken. What a handler needs from outside (a timer,
an answer) comes back as another event.

    watch's thread     put("brokers", look) ---.
    event loop         put("shutdown", move) ---+-->  first in, first out  -->  the controller's thread
    timer              put("rebalance", spread) '

`put` may be called from any thread. Without `start`, `run_pending` handles what is queued on the caller's thread.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import attrs
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)


@attrs.define
class EventFigures:
    """What is counted of one kind of event."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    """In the queue, of all together."""


class EventQueue:
    """A thread and what it is to do."""

    def __init__(self, name: str = "controller") -> None:
        self._queue: queue.SimpleQueue[tuple[str, Callable[[], None], float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.figures: dict[str, EventFigures] = {}
        """By kind; written by the thread alone."""

    def __len__(self) -> int:
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to handle events."""
        self._thread.start()

    def put(self, kind: str, handler: Callable[[], None]) -> None:
        """Have a handler called, after all that was put before."""
        self._queue.put((kind, handler, time.monotonic()))

    def close(self) -> None:
        """Handle what is queued, and end the thread."""
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def run_pending(self) -> int:
        """Handle what is queued, and what that puts, here and now; give how many events there were."""
        handled = 0
        while not self._queue.empty():
            event = self._queue.get()
            if event is not None:
                self._handle(*event)
                handled += 1
        return handled

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            self._handle(*event)

    def _handle(self, kind: str, handler: Callable[[], None], put_at: float) -> None:
        figures = self.figures.setdefault(kind, EventFigures())
        began = time.monotonic()
        figures.count += 1
        figures.waited_seconds += began - put_at
        try:
            handler()
        except Exception:  # noqa: BLE001 - contained: the queue goes on
            figures.failed += 1
            _log.exception("event failed", kind=kind)
        finally:
            figures.seconds += time.monotonic() - began
