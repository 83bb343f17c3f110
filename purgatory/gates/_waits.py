"""The operations of callers that wait at a gate. A caller that finds a free permit has none.

The gate grants a permit by ``force_complete()``. Every other end, at the deadline, by ``cancel()`` or by a shutdown,
removes the operation from the gate's queue.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from purgatory._core.waits import Wait
from purgatory.aio._waits import WakesTask

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory.gates._permits import Permits


class GateWait(WakesTask, Wait):
    """Waits for a permit, and wakes a task.

    Attributes:
        permits: the permits of the gate.
        share: the caller's priority or tenant. None if the gate has no such order.
        since_ns: when the permit was granted, in monotonic nanoseconds. Written before the grant.
    """

    __slots__ = ("future", "mailbox", "permits", "share", "since_ns")

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
        """Wake the caller without a permit, and leave the queue."""
        if not super().cancel():
            return False
        self.permits.discard(self)
        return True


class BlockingWait(GateWait):
    """Waits for a permit, and wakes a thread.

    Attributes:
        woken: a lock that is held until the operation has ended.
    """

    __slots__ = ("woken",)

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.woken = threading.Lock()
        self.woken.acquire()

    def on_complete(self) -> None:
        """Wake the thread."""
        self.woken.release()
