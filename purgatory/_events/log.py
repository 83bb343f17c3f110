"""What the library says in the log: lifecycle, contained errors, refusals; nothing per operation that goes well.

The library configures no logging. What could come at the rate of requests is let through once a second for each cause,
with the number kept back since (``suppressed``); the counters count all of it.

**Where a line goes** is decided when it is written, by what the program has set up until then:

- structlog, if the program has configured that: as an event with its fields;
- else the standard ``logging``, to the logger ``purgatory``: ``event field=value ...``, with the same on the record as
  ``record.event`` and ``record.fields`` for formatters that want them apart. So a program that has configured nothing
  sees warnings and errors on standard error, as from any library, and nothing else.

Rejected: structlog in any case. One that nobody has configured prints all levels on standard output, in the midst of
what the program prints there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from purgatory._support.fork import in_child

if TYPE_CHECKING:
    from purgatory._operations.operation import Operation

__all__ = ["Log", "Throttle", "log", "log_callback_error", "throttle"]


class Log:
    """Writes each line to where the program's lines go; see the module's header.

    Args:
        name: the logger's name.
    """

    __slots__ = ("_plain", "_structured")

    def __init__(self, name: str) -> None:
        self._plain = logging.getLogger(name)
        self._structured: Any = structlog.get_logger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        """What helps whoever looks closely."""
        if structlog.is_configured():
            self._structured.debug(event, **fields)
        else:
            self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """What happened, as it should."""
        if structlog.is_configured():
            self._structured.info(event, **fields)
        else:
            self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """What somebody should look at."""
        if structlog.is_configured():
            self._structured.warning(event, **fields)
        else:
            self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """What went wrong."""
        if structlog.is_configured():
            self._structured.error(event, **fields)
        else:
            self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if not self._plain.isEnabledFor(level):
            return
        error = fields.pop("exc_info", None)
        shown = "".join(f" {name}={value!r}" for name, value in fields.items() if name != "stack")
        self._plain.log(
            level,
            "%s%s%s",
            event,
            shown,
            f"\n{fields['stack']}" if "stack" in fields else "",
            exc_info=error if isinstance(error, BaseException) else None,
            extra={"event": event, "fields": fields},
            stacklevel=_CALLER,
        )


#: Which frame a record names as its own: that which called the method of :class:`Log`.
_CALLER: Final = 3

#: The log of this library.
log: Final = Log("purgatory")


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


def log_callback_error(
    purgatory: str | None, operation: Operation, hook: str, error: BaseException, keys: Sequence[Hashable] = ()
) -> None:
    """Log what a hook raised, with the operation's type and keys: those that it is about to be parked under, if any."""
    kind = type(operation).__qualname__
    suppressed = throttle.admit("callback_failed", purgatory, kind, hook, type(error).__qualname__)
    if suppressed is not None:
        log.error(
            "callback_failed",
            purgatory=purgatory,
            operation=kind,
            keys=tuple(keys) or operation.keys,
            hook=hook,
            error=repr(error),
            suppressed=suppressed,
            exc_info=error,
        )
