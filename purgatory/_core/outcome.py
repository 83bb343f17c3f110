"""The states and outcomes of an operation."""

from __future__ import annotations

import enum
from typing import Final

# Small integers, because every step compares them. The table of steps heads purgatory._core.operation.
NEW: Final = 0
ARRIVING: Final = 1
PARKED: Final = 2
#: A state above PARKED is an outcome, and is never left.
IMMEDIATE: Final = 3
SATISFIED: Final = 4
EXPIRED: Final = 5
CANCELLED: Final = 6
FORCED: Final = 7


class Outcome(enum.Enum):
    """How an operation ended. Every operation gets exactly one outcome.

    In a condition, ``IMMEDIATE``, ``SATISFIED`` and ``FORCED`` are true, and ``EXPIRED`` and ``CANCELLED`` are false.
    To ask whether an operation is open, write ``operation.outcome is None``.

    >>> bool(Outcome.SATISFIED), bool(Outcome.EXPIRED)
    (True, False)
    """

    #: Completed while it was being parked.
    IMMEDIATE = "immediate"
    #: Completed by a check.
    SATISFIED = "satisfied"
    #: Completed because its deadline passed, or because the purgatory was shut down.
    EXPIRED = "expired"
    #: Removed uncompleted. The caller must answer.
    CANCELLED = "cancelled"
    #: Completed by a call of ``force_complete`` from outside a check. (If another thread is inside ``try_complete`` of
    #: the operation at that moment, the outcome is ``SATISFIED``, and the caller gets True all the same.)
    FORCED = "forced"

    def __bool__(self) -> bool:
        return self not in (Outcome.EXPIRED, Outcome.CANCELLED)


#: The outcome of each state. None for a state without one.
OUTCOMES: Final[tuple[Outcome | None, ...]] = (None, None, None, *Outcome)
