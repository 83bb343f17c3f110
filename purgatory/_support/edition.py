"""Which edition of the core runs: see ``timer._edition``. The purgatory's native types need the timer's."""

from __future__ import annotations

from typing import Final

from timer._edition import CORE as TIMERS
from timer._edition import native

__all__ = ["CORE"]

#: The native types; None where Python's own run.
CORE: Final = None if TIMERS is None else native("purgatory._core")
