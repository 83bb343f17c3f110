"""The shutdown on a loop: it does not block, and every task gets its answer.

The core settles the operations, a slice at a time. An operation that is settled has an outcome, but the task that
awaits it must still be woken, by this loop or another. So the shutdown returns after every ``park`` has returned and
every coroutine hook has run. Then the loop may be closed. A hook that itself awaits the shutdown is not waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from purgatory._core.shutdown import LONGEST_SLEEP_S, Drain, Shutdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory import DelayedOperation, DelayedOperationPurgatory, ShutdownReport
    from purgatory.aio._waiters import Waiters

#: How long a second caller sleeps between looks at whether the first has finished.
_SLEEP_S: Final = 0.005


class AsyncShutdown:
    """The shutdown of one purgatory, which happens once."""

    __slots__ = ("_hooks_that_wait", "_owned", "_purgatory", "_report", "_running", "_slice_size", "_waiters")

    def __init__(
        self, purgatory: DelayedOperationPurgatory[Any], waiters: Waiters, slice_size: int, *, owned: bool
    ) -> None:
        self._purgatory = purgatory
        self._waiters = waiters
        self._slice_size = slice_size
        self._owned = owned
        self._report: ShutdownReport[Any] | None = None
        self._running: Shutdown | None = None
        self._hooks_that_wait = 0

    async def run(self, drain: Drain, timeout_ms: int) -> ShutdownReport[Any]:
        """Shut down, or wait for the shutdown that is under way."""
        purgatory = self._purgatory
        shutdown = Shutdown(
            purgatory,
            drain,
            timeout_ms,
            operations=None if self._owned else self._waiters.open,
            running=self._unanswered,
            slice_size=self._slice_size,
        )
        self._waiters.closed = True
        if self._running is not None and drain == "expire":
            self._running.ends_wait = True  # the first caller asked to wait, and this one no longer does
        own_hooks = self._waiters.hooks_of(asyncio.current_task())
        self._hooks_that_wait += own_hooks
        try:
            while self._report is None:
                if self._running is not None:
                    await asyncio.sleep(_SLEEP_S)
                else:
                    await self._run(shutdown)
        finally:
            self._hooks_that_wait -= own_hooks
        return self._report

    def _unanswered(self) -> int:
        """How many operations have an outcome, and parks or hooks that run and do not wait for a shutdown."""
        still_open = self._purgatory.parked if self._owned else len(self._waiters.open())
        hooks = self._purgatory._shards.completing() if self._owned else 0
        return max(hooks, self._waiters.count - still_open - self._hooks_that_wait)

    async def _run(self, shutdown: Shutdown) -> None:
        self._running = shutdown
        try:
            for sleep_s in shutdown.run():  # the loop runs meanwhile
                await asyncio.sleep(sleep_s)
            self._report = shutdown.report
            if self._owned and self._report is not None:
                self._purgatory._end(self._report)
                _retry(self._report.stuck)
        finally:
            self._running = None


def _retry(stuck: Sequence[DelayedOperation]) -> None:
    """Check stuck operations until their locks are free. The retrier has ended with the purgatory."""
    try:
        for operation in stuck:
            try:
                operation.maybe_try_complete()
            except Exception as error:  # noqa: BLE001  # of the user's lock: the others are checked all the same
                operation._op_home_shard.observers.contain(operation, "try_complete", error)
    finally:
        left = [operation for operation in stuck if operation.outcome is None]
        if left:
            asyncio.get_running_loop().call_later(LONGEST_SLEEP_S, _retry, left)
