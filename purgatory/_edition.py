"""Which edition of the core runs: see ``timer._edition``. The purgatory's native types need the timer's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from timer._edition import CORE as TIMERS

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CORE"]


def _native() -> ModuleType | None:
    if TIMERS is None:
        return None
    try:
        return importlib.import_module("purgatory._core")
    except ModuleNotFoundError:
        return None


#: The native types; None where Python's own run.
CORE: Final = _native()
