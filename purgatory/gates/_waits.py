"""The operations of callers that wait at a gate. A caller that finds a free permit has none.

The gate grants a permit by ``force_complete()``. Every other end, at the deadline, by ``cancel()`` or by a shutdown,
removes the operation from the gate's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory._core.blocking import WakesThread
from purgatory._core.waits import Wait
from purgatory.aio._waits import WakesTask

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory.gates._permits import Permits


class GateWait(Wait):
    """Waits for a permit.

    Attributes:
        permits: the permits of the gate.
        share: the caller's priority or tenant. None if the gate has no such order.
        since_ns: when the permit was granted, in monotonic nanoseconds. Written before the grant.
    """

    __slots__ = ("permits", "share", "since_ns")

    permits: Permits
    share: Hashable
    since_ns: int

    def try_complete(self) -> bool:
        """No check completes it: the gate grants permits in its own order."""
        return False

    def on_expiration(self) -> None:
        """Leave the queue."""
        self.permits.discard(self)

    def cancel(self) -> bool:
        """Leave the queue, without a permit."""
        if not super().cancel():
            return False
        self.permits.discard(self)
        return True


class TaskAtGate(WakesTask, GateWait):
    """A task that waits for a permit."""

    __slots__ = ("future", "mailbox")


class ThreadAtGate(WakesThread, GateWait):
    """A thread that waits for a permit."""

    __slots__ = ("wake",)
