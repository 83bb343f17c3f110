"""Which implementation of the core runs: see ``timer._implementation``. The native types need those of the timer."""

from __future__ import annotations

from typing import Any, Final

from timer._implementation import CORE as TIMERS
from timer._implementation import native, take_docs

#: The native types. None if the pure implementation runs.
CORE: Final = None if TIMERS is None else native("purgatory._native")


def native_class(kind: type, name: str | None = None) -> Any:
    """The native class that replaces ``kind``, with its docstrings."""
    found = getattr(CORE, name or kind.__name__)
    take_docs(found, kind)
    return found
