"""The states and outcomes of an operation, and the counts of operations by outcome."""

from __future__ import annotations

import enum
from typing import Final

import attrs

# Small integers, because every step compares them. The table of steps is at the top of purgatory._core.operation.
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


@attrs.frozen
class Totals:
    """The number of operations since the purgatory was created, by outcome. C fills the fields by their order.

    Attributes:
        parked: those that were not completed at once.
        checks: calls of ``try_complete``, counted when the operation gets its outcome.
        extended: how often ``extend`` moved a deadline.
        expired_normally: the part of ``expired`` whose type names the expiry in ``normal_ends``.
        cancelled_normally: the part of ``cancelled`` whose type names the cancellation there.
    """

    parked: int
    immediate: int
    satisfied: int
    expired: int
    cancelled: int
    forced: int
    checks: int
    extended: int = 0
    expired_normally: int = 0
    cancelled_normally: int = 0

    @property
    def started(self) -> int:
        """Operations that the purgatory accepted, parked or completed at once."""
        return self.parked + self.immediate

    @property
    def completed(self) -> int:
        """Operations that completed, for any reason. Cancelled ones did not."""
        return self.immediate + self.satisfied + self.expired + self.forced

    @property
    def waiting(self) -> int:
        """Operations that are parked now. Not exact for those that leave while the shards are counted."""
        return max(0, self.parked - self.satisfied - self.expired - self.cancelled - self.forced)
