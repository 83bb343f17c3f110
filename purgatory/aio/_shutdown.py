"""The end, on a loop: nothing here blocks, and nobody is left without an answer.

Settling is the core's way, a slice at a time. What is added is the other half: an operation that is settled has only
been decided, and whoever awaits it must still be woken, by this loop or another. So the shutdown returns when every
``park`` has, coroutine hooks included: *then* a loop may be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from purgatory._purgatory.shutdown import Drain, Settling

if TYPE_CHECKING:
    from purgatory import DelayedOperation, DelayedOperationPurgatory, ShutdownReport
    from purgatory.aio._waiters import Waiters

__all__ = ["Drain", "Shutdown"]

#: How long whoever comes second rests between looks at whether the first is through.
_REST_S: Final = 0.005


class Shutdown:
    """The shutdown of one purgatory, which happens once.

    Attributes:
        begun: set first, and never taken back: no more operations.
    """

    __slots__ = ("_owned", "_purgatory", "_report", "_running", "_slice_size", "_waiters", "begun")

    def __init__(
        self, purgatory: DelayedOperationPurgatory[Any], waiters: Waiters, slice_size: int, *, owned: bool
    ) -> None:
        self._purgatory = purgatory
        self._waiters = waiters
        self._slice_size = slice_size
        self._owned = owned
        self._report: ShutdownReport[Any] | None = None
        self._running = False
        self.begun = False

    async def run(self, drain: Drain, timeout_ms: int) -> ShutdownReport[Any]:
        """Shut down, or wait for the shutdown that is under way."""
        purgatory = self._purgatory
        settling = Settling(
            purgatory.name,
            purgatory._shards,
            drain,
            timeout_ms,
            mine=None if self._owned else self._awaited,
            answered=lambda: not self._waiters.entries,
            slice_size=self._slice_size,
        )
        self.begun = True
        while self._report is None:
            if self._running:
                await asyncio.sleep(_REST_S)
                continue
            self._running = True
            try:
                self._report = await _go_on(settling)
                if self._owned:
                    purgatory._end(self._report)
            finally:
                self._running = False
        return self._report

    def _awaited(self) -> Sequence[DelayedOperation]:
        """In somebody else's purgatory: what is awaited through here, and open."""
        return [operation for operation in list(self._waiters.entries) if operation.outcome is None]


async def _go_on(settling: Settling) -> ShutdownReport[Any]:
    """Settle, and let the loop go round where a thread would sleep."""
    steps = settling.settle()
    while True:
        try:
            rest_s = next(steps)
        except StopIteration as end:
            report: ShutdownReport[Any] = end.value
            return report
        await asyncio.sleep(rest_s)
