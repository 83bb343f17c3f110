"""What the library says in the log: lifecycle, contained errors, refusals; nothing per operation that goes well.

The library configures no logging. What could come at the rate of requests is let through once a second for each cause,
with the number kept back since (``suppressed``); the counters count all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import structlog

from purgatory._fork import in_child

if TYPE_CHECKING:
    from purgatory._operation import Operation

__all__ = ["Throttle", "log", "log_callback_error", "throttle"]

log: Any = structlog.get_logger("purgatory")


class Throttle:
    """Lets one event a cause through in each period, and says how many it kept back."""

    __slots__ = ("_causes", "_lock", "_period_s")

    #: Causes remembered; beyond, the oldest is forgotten (and let through when it comes again).
    MOST = 1024

    def __init__(self, period_s: float = 1.0) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._causes: dict[Hashable, tuple[float, int]] = {}

    def admit(self, *cause: Hashable) -> int | None:
        """None: keep quiet. Otherwise how many of this cause were kept back since the last that was let through."""
        now = time.monotonic()
        with self._lock:
            last, kept = self._causes.get(cause, (float("-inf"), 0))
            if now - last < self._period_s:
                self._causes[cause] = (last, kept + 1)
                return None
            self._causes.pop(cause, None)
            if len(self._causes) >= self.MOST:
                del self._causes[next(iter(self._causes))]
            self._causes[cause] = (now, 0)
            return kept

    def start_over(self) -> None:
        """In a forked child: another lock."""
        self._lock = threading.Lock()


#: The throttle of this process.
throttle = Throttle()
in_child(throttle.start_over)


def log_callback_error(purgatory: str | None, operation: Operation, hook: str, error: BaseException) -> None:
    """Log what a hook raised, with the operation's type and keys."""
    kind = type(operation).__qualname__
    suppressed = throttle.admit("callback_failed", purgatory, kind, hook, type(error).__qualname__)
    if suppressed is not None:
        log.error(
            "callback_failed",
            purgatory=purgatory,
            operation=kind,
            keys=operation.keys,
            hook=hook,
            error=repr(error),
            suppressed=suppressed,
            exc_info=error,
        )
