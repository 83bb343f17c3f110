"""Awaiting numbers that rise, on a loop.

With ``wait_for`` an event asks the predicate of every task that waits under its key. Here a heap says which tasks the
new value reaches, so the cost of an event depends on what it completes, not on what waits. The numbers are those of
``purgatory._core.thresholds``. The operations wake their tasks as those of ``wait_for`` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from purgatory import DelayedOperation, Outcome, PurgatoryClosed, WaitCancelled
from purgatory._core.subclasses import with_normal_ends
from purgatory._core.thresholds import NO_KEY, Numbers, ThresholdWait, check_int, error_of
from purgatory.aio._purgatory import AsyncPurgatory
from purgatory.aio._waits import WakesTask
from timer._task import whole_delay_ms

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory import ShutdownReport
    from purgatory._core.shutdown import Drain
    from purgatory.aio._mailbox import Mailbox
    from timer import Timer


class AwaitedThreshold(WakesTask, ThresholdWait):
    """Waits until a number has reached a threshold, and wakes a task."""

    __slots__ = ("future", "mailbox")

    future: asyncio.Future[None]
    mailbox: Mailbox


class AsyncThresholdPurgatory(Numbers):
    """Tasks that await a number that only rises, or many of them, each under a key.

    Belongs to the loop that first waits. :meth:`maybe_complete` may be called from any thread. Without ``key=`` a
    method concerns the number that has no key. A number exists from the first call that names its key until
    :meth:`forget`. An async context manager that shuts down on leaving.

    Args:
        name: the name in logs and metrics.
        timer: expires the waits. The default is a :class:`~purgatory.aio.LoopTimer` of the purgatory's own.
        value: the first value of the number without a key. None: it has no value yet.
        max_parked: reject further waits with ``PurgatoryFull`` while this many tasks wait.
        normal_ends: the ends that are no failure of its waits, such as ``{Outcome.EXPIRED}``. See
            ``DelayedOperation.normal_ends``.

    >>> async def main() -> None:
    ...     async with AsyncThresholdPurgatory("high-watermark") as watermark:
    ...         third = asyncio.create_task(watermark.wait(3, timeout_ms=5_000))
    ...         await asyncio.sleep(0)
    ...         print(watermark.maybe_complete(2), watermark.maybe_complete(4), await third)
    >>> asyncio.run(main())
    0 1 4
    """

    __slots__ = ("__weakref__", "_waiter", "_waiters")

    _purgatory: AsyncPurgatory[DelayedOperation]

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        value: int | None = None,
        max_parked: int | None = None,
        normal_ends: Collection[Outcome] = (),
    ) -> None:
        self._waiter = with_normal_ends(AwaitedThreshold, normal_ends)
        if value is not None:
            check_int("value", value)
        super().__init__(AsyncPurgatory(name, timer=timer, max_parked=max_parked), value)
        self._waiters = self._purgatory._waiters

    async def wait(self, threshold: int, timeout_ms: float | None, *, key: Hashable = NO_KEY) -> int:
        """Wait for the first value at or above ``threshold``, and return it. ``timeout_ms`` None: no deadline.

        Raises:
            TimeoutError: the time was up first.
            WaitDrained: the purgatory was shut down first. It is a ``PurgatoryClosed`` and a ``TimeoutError``.
            WaitCancelled: another task or thread removed the wait.
            InvalidSetting: the threshold is not an ``int``.
            UnhashableKey: the key has no hash.
            BaseException: what :meth:`fail` or :meth:`forget` was called with.
            PurgatoryError: as ``AsyncPurgatory.park``.
        """
        check_int("threshold", threshold)
        whole_delay_ms(timeout_ms)  # also before there is a number for the key
        number = self._number(key)
        if number.error is None and number.value is not None and number.value >= threshold:
            self._waiters.current_mailbox()  # a purgatory that is closed, or another loop's, answers nothing
            return number.value
        wait: Any = self._waiter(threshold, timeout_ms, number)
        if number.park(threshold, partial(self._waiters.begin_wait, wait)):
            try:
                await wait.future
            finally:
                self._waiters.end_wait(wait)
        error = error_of(wait)
        if error is not None:
            try:
                raise error.with_traceback(_origin(error))
            finally:
                del error, wait  # the error's traceback holds this frame
        if wait.outcome is Outcome.CANCELLED:
            name = self._purgatory.name
            raise PurgatoryClosed(name) if self._purgatory.is_closed else WaitCancelled(name)
        assert wait.value is not None
        return int(wait.value)

    @property
    def purgatory(self) -> AsyncPurgatory[DelayedOperation]:
        """The purgatory that the waits are parked in. Attach observers to its ``purgatory``."""
        return self._purgatory

    async def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[Any]:
        """Settle the waits as ``AsyncPurgatory.shutdown`` does. Waits that it ends raise ``WaitDrained``."""
        return await self._purgatory.shutdown(drain, timeout_ms=timeout_ms)

    async def __aenter__(self) -> Self:
        await self._purgatory.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


def _origin(error: BaseException) -> TracebackType | None:
    """The traceback that an error had before a wait raised it. So many waits that raise it do not add up in it."""
    origin = entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code is AsyncThresholdPurgatory.wait.__code__:
            origin = entry.tb_next
        entry = entry.tb_next
    return origin
