"""The log events of the library: lifecycle, contained errors and rejections. An operation that goes well is not logged.

**Where a line goes** is decided when it is written. If the program has configured structlog by then, it goes there, as
an event with fields. Otherwise it goes to the standard ``logging``, logger ``purgatory``, as ``event field=value ...``.
The record has the same as ``record.event`` and ``record.fields``. structlog is never imported here, which keeps the
import quick.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Hashable
from typing import Any, Final

from timer._fork import new_lock


def printable(value: object) -> object:
    """The value, or a text in its place if its own ``repr`` raises."""
    try:
        repr(value)
    except Exception:  # of the user's code, such as a key's  # noqa: BLE001
        return object.__repr__(value)
    return value


class Log:
    """Writes each line to the place where the program's own lines go. ``stack`` is a text that follows the line."""

    __slots__ = ("_plain",)

    def __init__(self, name: str) -> None:
        self._plain = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._write("debug", event, **fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write("info", event, **fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write("warning", event, **fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._write("error", event, **fields)

    def _write(self, level: str, event: str, /, *, exc_info: Any = None, **fields: object) -> None:
        fields = {name: printable(value) for name, value in fields.items()}
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            error = {} if exc_info is None else {"exc_info": exc_info}
            getattr(structlog.get_logger(self._plain.name), level)(event, **fields, **error)
            return
        line = [event, *(f" {name}={value!r}" for name, value in fields.items() if name != "stack")]
        if "stack" in fields:
            line.append(f"\n{fields['stack']}")
        write = getattr(self._plain, level)
        write("%s", "".join(line), exc_info=exc_info, extra={"event": event, "fields": fields}, stacklevel=3)


log: Final = Log("purgatory")


class Throttle:
    """Admits one event per cause and period, for events that could come at the rate of requests. Counts the others."""

    __slots__ = ("_causes", "_lock", "_period_s")

    #: The greatest number of causes that are remembered. Beyond it the oldest is forgotten, and admitted again.
    MOST = 1024

    def __init__(self, period_s: float = 1.0) -> None:
        self._period_s = period_s
        self._lock = new_lock()
        self._causes: dict[Hashable, tuple[float, int]] = {}

    def admit(self, *cause: Hashable) -> int | None:
        """None to suppress an event. Otherwise the number suppressed since the last admitted event of this cause."""
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


throttle = Throttle()
