"""How an operation left the purgatory, and what it tells whoever listens."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation

__all__ = ["Observer", "Outcome"]


class Outcome(enum.Enum):
    """How an operation left. Every operation has exactly one, once it has left."""

    #: Completed by the call that would have parked it.
    IMMEDIATE = "immediate"
    #: Completed by a check.
    SATISFIED = "satisfied"
    #: Completed because its time was up.
    EXPIRED = "expired"
    #: Taken out uncompleted: the caller answers.
    CANCELLED = "cancelled"
    #: Completed by a call of ``force_complete`` from outside a check. (If another thread is inside ``try_complete`` of
    #: the operation at that moment, the outcome is that of its check, and the caller gets True all the same.)
    FORCED = "forced"


class Observer(Protocol):
    """Someone who is told of each operation that comes and goes.

    Called on whatever thread parks or finishes the operation, perhaps with the operation's lock held: be quick, and
    call nothing that waits. What an observer raises is contained, logged and counted.

    An observer may have a third method, ``leaving(operation)``: called when the outcome is decided, before the hooks.
    One that has ``parked = None`` is not asked about that.
    """

    def parked(self, operation: DelayedOperation, /) -> None:
        """``operation`` was parked. It may have finished already, or finish meanwhile."""

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:
        """``operation`` left, its hooks have run; ``error`` is what one of them raised."""
