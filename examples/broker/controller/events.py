"""The controller's event queue. Watches, timers, requests and answers become events, and one thread handles them in
order.

No two handlers run at the same time, so the controller has no locks. An event that raises is logged and counted. A
handler never waits for a timer or an answer: these come back as further events.

    watch's thread     put("brokers", look) ---.
    event loop         put("shutdown", move) ---+-->  first in, first out  -->  the controller's thread
    timer              put("rebalance", spread) '

``put`` may be called from any thread. Tests do not call ``start``. ``run_pending`` handles the queue on their thread.
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
    """The counters of one kind of event."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    """The time in the queue, of all events together."""


class EventQueue:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[str, Callable[[], None], float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self.figures: dict[str, EventFigures] = {}
        """By kind. Only the thread writes them."""

    def __len__(self) -> int:
        return self._queue.qsize()

    def start(self) -> None:
        self._thread.start()

    def put(self, kind: str, handler: Callable[[], None]) -> None:
        self._queue.put((kind, handler, time.monotonic()))

    def close(self) -> None:
        """Handle the queued events, and end the thread."""
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def run_pending(self) -> int:
        """Handle the queued events, and those that they queue, on this thread. Returns their number."""
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
