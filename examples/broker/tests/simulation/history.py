"""What happened in a simulated cluster, line by line."""

from __future__ import annotations

import contextlib
import logging

import structlog


class History:
    """The lines of one run: those of the simulation, and what the running node logs."""

    def __init__(self, clock):
        self.lines = []
        self.node = None
        """The node that runs now, for its log."""
        self._clock = clock

    def note(self, text):
        self.lines.append(f"{self._clock.seconds():9.3f} s  {text}")

    def _record(self, _logger, _method, event):
        if self.node is not None:
            text = event.pop("event")
            values = ", ".join(f"{name} {value}" for name, value in event.items() if name != "exc_info")
            self.note(f"  node {self.node.number}: {text} ({values})")
        raise structlog.DropEvent

    @contextlib.contextmanager
    def recording(self):
        """Record what the broker logs."""
        before = structlog.get_config() if structlog.is_configured() else None
        structlog.configure(
            processors=[self._record], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
        )
        try:
            yield
        finally:
            structlog.reset_defaults()
            if before is not None:
                structlog.configure(**before)
