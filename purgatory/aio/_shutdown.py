"""The end, on a loop: nothing here blocks, and nobody is left without an answer.

Settling is the core's way, a slice at a time. What is added is the other half: an operation that is settled has only
been decided, and whoever awaits it must still be woken, by this loop or another. So the shutdown returns when every
``park`` has, coroutine hooks included: *then* a loop may be closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, ShutdownReport
from timer import TimerTask

if TYPE_CHECKING:
    from purgatory.aio._waiters import Waiters

__all__ = ["Drain", "Shutdown"]

Drain = Literal["expire", "cancel", "wait"]

#: How long to rest between looks at whether everyone is done, at most.
_LONGEST_REST_S = 0.02


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
        self._report: ShutdownReport | None = None
        self._running = False
        self.begun = False

    async def run(self, drain: Drain, timeout_ms: int) -> ShutdownReport:
        """Shut down, or wait for the shutdown that is under way."""
        if drain not in ("expire", "cancel", "wait"):
            raise InvalidSetting("drain", drain, "'expire', 'cancel' or 'wait'")
        if type(timeout_ms) is not int or timeout_ms < 0:
            raise InvalidSetting("timeout_ms", timeout_ms, "a whole number of milliseconds, 0 or more")
        self.begun = True
        while self._report is None:
            if self._running:
                await _until(lambda: not self._running, None)
                continue
            self._running = True
            try:
                self._report = await self._settle(drain, timeout_ms)
            finally:
                self._running = False
        return self._report

    async def _settle(self, drain: Drain, timeout_ms: int) -> ShutdownReport:
        started = time.monotonic()
        patience_s = timeout_ms / 1000
        before = self._purgatory.totals()
        if drain == "wait":
            await _until(lambda: not self._open(), started + patience_s)
        waited = self._purgatory.totals()
        cancelled: list[DelayedOperation] = []
        for number, operation in enumerate(self._open(), 1):
            if drain != "cancel":
                TimerTask.cancel(operation)
                operation.run()
            elif operation.cancel():
                cancelled.append(operation)
            if number % self._slice_size == 0:
                await asyncio.sleep(0)
        give_up = time.monotonic() + patience_s
        # An operation whose lock is held is left to its holder, or to the core's keeper.
        await _until(lambda: not self._open(), give_up)
        await _until(lambda: not self._waiters.entries, give_up)
        stuck = self._open()
        if self._owned:
            self._purgatory.shutdown("expire", timeout_ms=0)
        return ShutdownReport(
            name=self._purgatory.name,
            drain=drain,
            satisfied=waited.satisfied - before.satisfied,
            expired=self._purgatory.totals().expired - before.expired,
            cancelled=tuple(cancelled),
            stuck=tuple(stuck),
            elapsed_ms=(time.monotonic() - started) * 1000,
        )

    def _open(self) -> Sequence[DelayedOperation]:
        """What is to be settled: all that is parked, or, in somebody else's purgatory, what is awaited through here."""
        if self._owned:
            return self._purgatory.operations()
        return [operation for operation in list(self._waiters.entries) if operation.outcome is None]


async def _until(condition: Callable[[], bool], give_up: float | None) -> None:
    """Let the loop run until the condition holds, or it is ``give_up`` o'clock (``time.monotonic``)."""
    rest_s = 0.0
    while not condition() and (give_up is None or time.monotonic() < give_up):
        await asyncio.sleep(rest_s)
        rest_s = min(2 * rest_s + 0.0005, _LONGEST_REST_S)
