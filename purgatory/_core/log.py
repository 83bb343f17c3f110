"""The log events of the library: lifecycle, contained errors and rejections. An operation that goes well is not logged.

Every line goes through structlog. **Where it goes** is decided when it is written. If the program has configured
structlog by then, it goes there, as an event with fields. Otherwise a wrapped logger of the library's own renders it
for the standard ``logging``, logger ``purgatory``, as ``event field=value ...``. The record has the same as
``record.event`` and ``record.fields``.

structlog is imported with the first line that is to be written, because its import takes twice as long as that of the
whole library. Where it cannot be imported any more (at the exit of the interpreter, without memory), the line goes to
``logging`` directly.
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

    __slots__ = ("_plain", "_wrapped")

    def __init__(self, name: str) -> None:
        self._plain = logging.getLogger(name)
        self._wrapped: Any = None

    def debug(self, event: str, /, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        loaded: Any = sys.modules.get("structlog")
        is_configured = loaded is not None and getattr(loaded, "is_configured", _never)()
        if not is_configured and not self._plain.isEnabledFor(_LEVELS[level]):
            return
        printed = {name: value if name == "exc_info" else printable(value) for name, value in fields.items()}
        if is_configured:
            getattr(loaded.get_logger(self._plain.name), level)(event, **printed)
            return
        wrapped = self._wrapped or self._wrap()
        if wrapped is not None:
            wrapped.write(level, event, printed)
            return
        args, named = render(None, level, {"event": event, **printed})
        getattr(self._plain, level)(*args, **{**named, "stacklevel": _PLAIN_FRAMES})

    def _wrap(self) -> Any:
        """The wrapped logger. None if structlog cannot be imported now."""
        try:
            import structlog  # noqa: PLC0415  # see the header
        except Exception:  # noqa: BLE001  # at the exit, and without memory, an import fails in several ways
            return None

        class Bound(structlog.BoundLoggerBase):
            def write(self, level: str, event: str, fields: dict[str, Any]) -> None:
                self._proxy_to_logger(level, event, **fields)

        self._wrapped = structlog.wrap_logger(self._plain, processors=[render], wrapper_class=Bound, context_class=dict)
        return self._wrapped


#: The numbers of the levels in the standard ``logging``.
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: How many frames are between the caller of :class:`Log` and ``logging``: without structlog, and with it.
_PLAIN_FRAMES: Final = 3
_WRAPPED_FRAMES: Final = 5


def _never() -> bool:
    """Stands in for ``structlog.is_configured`` while structlog is being imported."""
    return False


def render(_: object, __: str, event: Any) -> tuple[tuple[str, str], dict[str, Any]]:
    """A processor of structlog, the last one: the arguments of a method of a standard logger."""
    fields = dict(event)
    name, exc_info = fields.pop("event"), fields.pop("exc_info", None)
    line = [name, *(f" {key}={value!r}" for key, value in fields.items() if key != "stack")]
    if "stack" in fields:
        line.append(f"\n{fields['stack']}")
    extra = {"event": name, "fields": fields}
    return ("%s", "".join(line)), {"exc_info": exc_info, "extra": extra, "stacklevel": _WRAPPED_FRAMES}


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
