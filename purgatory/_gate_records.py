"""The live gates of this process, held weakly, for everything that reports on them.

The package ``purgatory.gates`` registers its gates here. So metrics and the console find them without an import of it.
Any thread may call these functions.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import attrs

from timer._fork import new_lock


@attrs.frozen
class GateStatistics:
    """A gate at one moment. Callers are counted from the start.

    Attributes:
        name: the gate's name, which is also that of the purgatory that its callers wait in.
        permits: the number of permits.
        in_use: the number of callers that are inside.
        waiting: the number of callers that wait.
        granted: the number of permits that were granted, those of callers that did not wait included.
        late: the number of callers that were rejected because they could not be admitted in time.
        full: the number of callers that were rejected because too many waited.
        hold_s: the mean time that the latest callers kept a permit, in seconds. None before the first has left.
    """

    name: str
    permits: int
    in_use: int
    waiting: int
    granted: int
    late: int
    full: int
    hold_s: float | None


class HasStatistics(Protocol):
    """A gate, as its observers see it."""

    @property
    def name(self) -> str:
        """The gate's name."""

    def statistics(self) -> GateStatistics:
        """The gate as it is now."""


_gates: weakref.WeakSet[HasStatistics] = weakref.WeakSet()
_lock = new_lock()


def register(gate: HasStatistics) -> None:
    """Add a gate to the live ones."""
    with _lock:
        _gates.add(gate)


def live_gates() -> list[HasStatistics]:
    """Every gate that was not collected, sorted by name."""
    with _lock:
        return sorted(_gates, key=lambda gate: gate.name)
