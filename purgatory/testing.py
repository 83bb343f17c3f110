"""For your own tests: purgatories on a clock that you move, and a look at the end whether all were answered.

With pytest, say so once, in the ``conftest.py`` at the root of the tests, and take the fixture ``purgatories``::

    pytest_plugins = ["purgatory.testing"]


    def test_session_ends_without_a_heartbeat(purgatories):
        sessions = purgatories.make("sessions")
        sessions.try_complete_else_watch(session := Session(30_000), ["ann"])

        purgatories.advance(30_000)
        assert session.outcome is Outcome.EXPIRED

All purgatories of one test share a :class:`timer.MockTimer`: nothing sleeps, nothing runs but on the thread of the
test, and a deadline is met to the millisecond. At the end of the test, a purgatory that it has not shut down itself
must be empty, else the test fails and names who was left: a forgotten check is seen here, not as a time-out in
production.

Without pytest: ``with Purgatories() as purgatories``, or ``async with`` on a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from purgatory import (
    DelayedFuturePurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    KeyedThresholdPurgatory,
    ThresholdPurgatory,
)
from purgatory.aio import AsyncPurgatory
from timer import NS_PER_MS, InlineExecutor, MockTimer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["LeftParked", "Purgatories"]

#: How long, in real time, those who got an answer on a loop are given to take it.
_PATIENCE_S = 10.0


class LeftParked(AssertionError):
    """A test has ended, and somebody still waits.

    Attributes:
        operations: who.
    """

    def __init__(self, left: list[tuple[str, DelayedOperation, int]]) -> None:
        lines = "".join(
            f"\n  {type(operation).__qualname__} under {', '.join(map(repr, operation.keys))} in {name!r}, "
            f"due in {due_ms} ms"
            for name, operation, due_ms in left
        )
        super().__init__(
            f"{len(left)} left parked at the end of the test; complete, expire or cancel them, or shut the purgatory "
            f"down in the test:{lines}"
        )
        self.operations = [operation for _, operation, _ in left]


class Purgatories:
    """Makes purgatories for one test, all on one clock.

    Attributes:
        timer: the clock, and the wheel that expires.

    >>> from purgatory import DelayedOperation
    >>> class Lease(DelayedOperation):
    ...     def try_complete(self) -> bool:
    ...         return False
    >>> with Purgatories() as purgatories:
    ...     leases = purgatories.make("leases")
    ...     leases.try_complete_else_watch(Lease(30_000), ["door"])
    ...     purgatories.advance(29_999), purgatories.advance(1)
    False
    (False, True)
    """

    def __init__(self) -> None:
        self.timer = MockTimer()
        self._purgatories: list[DelayedOperationPurgatory[Any]] = []
        self._async: list[AsyncPurgatory[Any]] = []

    def make(self, name: str = "test", **settings: Any) -> DelayedOperationPurgatory[Any]:
        """A purgatory for operations; ``settings`` as :class:`~purgatory.DelayedOperationPurgatory` takes them."""
        purgatory: DelayedOperationPurgatory[Any] = DelayedOperationPurgatory(
            name, timer=self.timer, reaper_enabled=False, **settings
        )
        self._purgatories.append(purgatory)
        return purgatory

    def make_async(self, name: str = "test", **settings: Any) -> AsyncPurgatory[Any]:
        """One to be awaited in; ``settings`` as :class:`~purgatory.aio.AsyncPurgatory` takes them."""
        purgatory: AsyncPurgatory[Any] = AsyncPurgatory(name, timer=self.timer, **settings)
        self._async.append(purgatory)
        return purgatory

    def make_futures(self, name: str = "test") -> DelayedFuturePurgatory[Any]:
        """One for sets of futures, whose callbacks run at once, on the thread that completes the last of a set."""
        futures: DelayedFuturePurgatory[Any] = DelayedFuturePurgatory(
            name, timer=self.timer, reaper_enabled=False, executor=InlineExecutor()
        )
        self._purgatories.append(futures.purgatory)
        return futures

    def make_threshold(self, name: str = "test", *, value: int | None = None) -> ThresholdPurgatory:
        """One for a number that rises."""
        threshold = ThresholdPurgatory(name, timer=self.timer, value=value, reaper_enabled=False)
        self._purgatories.append(threshold.purgatory)
        return threshold

    def make_thresholds(self, name: str = "test") -> KeyedThresholdPurgatory:
        """One for many numbers that rise."""
        thresholds = KeyedThresholdPurgatory(name, timer=self.timer, reaper_enabled=False)
        self._purgatories.append(thresholds.purgatory)
        return thresholds

    def advance(self, ms: float) -> bool:
        """Let time pass; what falls due expires on this thread, in order of deadline. Returns whether anything did."""
        return self.timer.advance_clock(ms)

    async def advance_async(self, ms: float) -> bool:
        """The same on a loop; returns when everybody who got an answer has taken it."""
        expired = self.timer.advance_clock(ms)
        await self.settled()
        return expired

    async def settled(self) -> None:
        """Let the loop go round until everybody who got an answer has taken it, and all coroutine hooks have run.

        Raises:
            TimeoutError: that takes longer than ten seconds of real time.
        """
        await asyncio.sleep(0)
        async with asyncio.timeout(_PATIENCE_S):
            while any(map(_is_answering, self._async)):  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0)

    def check(self) -> None:
        """Look whether anybody still waits.

        Raises:
            LeftParked: somebody does.
        """
        now_ns = self.timer.clock()
        left = [
            (purgatory.name, operation, operation.delay_ms - (now_ns - operation.created_ns) // NS_PER_MS)
            for purgatory in self._beneath()
            for operation in purgatory.operations()
        ]
        if left:
            raise LeftParked(left)

    def close(self) -> None:
        """Shut everything down; whoever still waits is taken out, without an answer."""
        for purgatory in self._beneath():
            purgatory.shutdown("cancel", timeout_ms=0)
        self.timer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.settled()
            if error is None:
                self.check()
        finally:
            for purgatory in self._async:
                await purgatory.shutdown("cancel")
            self.close()

    def _beneath(self) -> list[DelayedOperationPurgatory[Any]]:
        return [*self._purgatories, *(purgatory.purgatory for purgatory in self._async)]


def _is_answering(purgatory: AsyncPurgatory[Any]) -> bool:
    """Whether somebody has an answer and has not taken it."""
    return any(operation.outcome is not None for operation in purgatory._waiters.entries)  # noqa: SLF001


with contextlib.suppress(ModuleNotFoundError):  # there is the class without it
    import pytest

    @pytest.fixture
    def purgatories() -> Iterator[Purgatories]:
        """Purgatories on a clock moved by hand; at the end of the test nobody may still wait in them."""
        with Purgatories() as made:
            yield made
