"""The purgatories of a test, and the checks at its end. See :mod:`purgatory.testing`."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from purgatory import (
    DelayedFuturePurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidSetting,
    Observer,
    Outcome,
    ThresholdPurgatory,
)
from purgatory.aio import AsyncPurgatory, AsyncThresholdPurgatory
from purgatory.gates import Gate
from timer import InlineExecutor, MockTimer
from timer._errors import reduced
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self

#: How many seconds of real time the tasks of a loop have to take their answers.
_PATIENCE_S = 10.0
#: How many turns of the loop running tasks get before the clock moves.
_TURNS = 100


class LeftParked(AssertionError):
    """A test has ended, and operations still wait.

    Attributes:
        operations: the operations.
    """

    __reduce__ = reduced

    def __init__(self, left: list[tuple[str, DelayedOperation, str]]) -> None:
        lines = "".join(
            f"\n  {type(operation).__qualname__} under {', '.join(map(repr, operation.keys))} in {name!r}, {how}"
            for name, operation, how in left
        )
        super().__init__(
            f"{len(left)} left parked at the end of the test; complete, expire or cancel them, or shut the purgatory "
            f"down in the test:{lines}"
        )
        self.operations: list[DelayedOperation] = [operation for _, operation, _ in left]


class HookRaised(AssertionError):
    """A hook of an operation, or an observer, raised something and the test did not take the error.

    Attributes:
        errors: how often, by purgatory and hook.
    """

    __reduce__ = reduced

    def __init__(self, errors: Counter[tuple[str, str]], first: BaseException | None) -> None:
        told = ", ".join(f"{hook} in {name!r} ({count} times)" for (name, hook), count in errors.items())
        told += "" if first is None else f"; {first!r} was the first"
        super().__init__(f"hooks raised: {told}; see the log. To expect errors, call purgatories.take_errors()")
        self.errors = errors


class CheckMissed(AssertionError):
    """A wait of ``wait_for`` expired although its predicate was true, and none of its keys was checked.

    Attributes:
        keys: the keys of the wait.
    """

    __reduce__ = reduced

    def __init__(self, name: str, count: int, kind: str, keys: Sequence[Hashable], similar: Sequence[Hashable]) -> None:
        named = ", ".join(map(repr, keys))
        told = f"; {', '.join(map(repr, similar))} was checked, which is another key" if similar else ""
        super().__init__(
            f"{count} missed in {name!r}: {kind} under {named} expired although its predicate is true; check one of "
            f"its keys after each change{told}. To expect this, call purgatories.take_missed_checks()"
        )
        self.keys: tuple[Hashable, ...] = tuple(keys)


class _EndObserver(Observer):
    """Notes the errors of hooks, and the operations that were cancelled because a loop was closed.

    Code that closes a loop (``asyncio.run``, ``asyncio.Runner``, ``uvloop.run``, and so pytest's plugins) cancels the
    remaining tasks in a function of one name, which is then on the stack. Rejected: ``Task.cancelling()``, which a task
    group leaves at one when it has failed and gone on.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: BaseException | None = None
        self.abandoned: list[DelayedOperation] = []

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:
        self.first = self.first or error
        if outcome is Outcome.CANCELLED:
            frame: FrameType | None = sys._getframe()  # noqa: SLF001  # inspect's own way
            while frame is not None and frame.f_code.co_name != "_cancel_all_tasks":
                frame = frame.f_back
            if frame is not None:
                self.abandoned.append(operation)


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
        self.timer: MockTimer = MockTimer()
        self._purgatories: list[DelayedOperationPurgatory[Any]] = []
        self._async: list[AsyncPurgatory[Any]] = []
        self._ends: list[tuple[DelayedOperationPurgatory[Any], _EndObserver]] = []
        self._taken: Counter[tuple[str, str]] = Counter()
        self._taken_checks: Counter[str] = Counter()

    def make(self, name: str = "test", **settings: Any) -> DelayedOperationPurgatory[Any]:
        """A purgatory for operations. ``settings`` as :class:`~purgatory.DelayedOperationPurgatory` takes them."""
        _reject_timer(settings)
        settings.setdefault("reaper_enabled", False)
        purgatory: DelayedOperationPurgatory[Any] = DelayedOperationPurgatory(name, timer=self.timer, **settings)
        self._observe(purgatory)
        self._purgatories.append(purgatory)
        return purgatory

    def make_async(self, name: str = "test", **settings: Any) -> AsyncPurgatory[Any]:
        """One to be awaited in. ``settings`` as :class:`~purgatory.aio.AsyncPurgatory` takes them."""
        _reject_timer(settings)
        purgatory: AsyncPurgatory[Any] = AsyncPurgatory(name, timer=self.timer, **settings)
        self._observe(purgatory.purgatory)
        self._async.append(purgatory)
        return purgatory

    def make_futures(self, name: str = "test", **settings: Any) -> DelayedFuturePurgatory:
        """One for sets of futures, whose callbacks run at once, on the thread that completes the last of a set.

        ``settings`` as :class:`~purgatory.DelayedFuturePurgatory` takes them.
        """
        _reject_timer(settings)
        settings.setdefault("reaper_enabled", False)
        settings.setdefault("executor", InlineExecutor())
        futures: DelayedFuturePurgatory = DelayedFuturePurgatory(name, timer=self.timer, **settings)
        self._observe(futures.purgatory)
        self._purgatories.append(futures.purgatory)
        return futures

    def make_threshold(self, name: str = "test", *, value: int | None = None) -> ThresholdPurgatory:
        """One for a number that rises."""
        threshold = ThresholdPurgatory(name, timer=self.timer, value=value, reaper_enabled=False)
        self._observe(threshold.purgatory)
        self._purgatories.append(threshold.purgatory)
        return threshold

    def make_async_threshold(self, name: str = "test", *, value: int | None = None) -> AsyncThresholdPurgatory:
        """Make a purgatory for tasks that await a number that rises."""
        threshold = AsyncThresholdPurgatory(name, timer=self.timer, value=value)
        self._observe(threshold.purgatory.purgatory)
        self._async.append(threshold.purgatory)
        return threshold

    def make_gate(self, name: str = "test", permits: int = 1, **settings: Any) -> Gate:
        """A gate. ``settings`` as :class:`~purgatory.gates.Gate` takes them. By default any number may wait."""
        _reject_timer(settings)
        settings.setdefault("max_waiting", None)
        gate = Gate(name, permits, timer=self.timer, **settings)
        self._observe(gate.purgatory)
        self._purgatories.append(gate.purgatory)
        return gate

    def advance(self, ms: float) -> bool:
        """Let time pass. What falls due expires on this thread, in order of deadline. Returns whether anything did."""
        return self.timer.advance_clock(ms)

    async def advance_async(self, ms: float) -> bool:
        """The same on a loop. Tasks that were just created park first, and every answer has been taken on return."""
        await _others_wait()
        expired = self.timer.advance_clock(ms)
        await self.settled()
        return expired

    async def settled(self) -> None:
        """Let the loop run until every task with an answer has taken it, and all coroutine hooks have run.

        Raises:
            TimeoutError: that takes longer than ten seconds of real time.
        """
        async with asyncio.timeout(_PATIENCE_S):
            await _others_wait()
            while any(map(_is_answering, self._async)):  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0)

    def take_errors(self) -> dict[tuple[str, str], int]:
        """The number of errors of hooks since the last call, by purgatory and hook.

        For a test that expects them: the errors that were taken do not fail the test any more.
        """
        errors = self._errors()
        self._taken += errors
        for _, ends in self._ends:
            ends.first = None
        return dict(errors)

    def take_missed_checks(self) -> int:
        """The number of missed checks since the last call, for a test that expects them. They do not fail it."""
        missed = self._missed_checks()
        self._taken_checks += missed
        return missed.total()

    def check(self) -> None:
        """Check that no operation is parked, that none was when a loop was closed, and that no hook raised.

        Raises:
            LeftParked: an operation is, or was.
            HookRaised: a hook did.
            CheckMissed: a wait of ``wait_for`` expired although its predicate was true.
        """
        now_ns = self.timer.clock()
        left = [
            (purgatory.name, operation, _due(operation, now_ns))
            for purgatory in self._core_purgatories()
            for operation in purgatory.operations()
        ]
        left += [
            (ends.name, operation, f"awaited when its loop was closed, {_due(operation, now_ns)}")
            for _, ends in self._ends
            for operation in ends.abandoned
        ]
        errors = self._errors()
        first = next((ends.first for _, ends in self._ends if ends.first is not None), None)
        if left:
            raise LeftParked(left)
        if errors:
            raise HookRaised(errors, first) from first
        missed = self._missed_checks()
        for purgatory, _ in self._ends:
            count, last = missed[purgatory.name], purgatory._missed.last  # noqa: SLF001
            if count and last is not None:
                raise CheckMissed(purgatory.name, count, last.kind, last.keys, last.similar_keys)

    def close(self) -> None:
        """Shut everything down. Operations that still wait are removed, without an answer."""
        for purgatory in self._core_purgatories():
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

    def _observe(self, purgatory: DelayedOperationPurgatory[Any]) -> None:
        ends = _EndObserver(purgatory.name)
        purgatory.attach(ends)
        self._ends.append((purgatory, ends))
        purgatory._missed.decides_at_end = True  # noqa: SLF001  # the test's clock does not go on

    def _errors(self) -> Counter[tuple[str, str]]:
        """The errors of hooks that the test has not taken."""
        failures: Counter[tuple[str, str]] = Counter()
        for purgatory, _ in self._ends:
            for hook, count in purgatory.snapshot().callback_errors.items():
                failures[purgatory.name, hook] += count
        return failures - self._taken

    def _missed_checks(self) -> Counter[str]:
        """The missed checks that the test has not taken, by purgatory. A check that is to come would come too late."""
        missed: Counter[str] = Counter()
        for purgatory, _ in self._ends:
            purgatory._missed.decide()  # noqa: SLF001
            missed[purgatory.name] += purgatory.missed_checks
        return missed - self._taken_checks

    def _core_purgatories(self) -> list[DelayedOperationPurgatory[Any]]:
        return [*self._purgatories, *(purgatory.purgatory for purgatory in self._async)]


def _reject_timer(settings: dict[str, Any]) -> None:
    if "timer" in settings:
        wanted = "left out: what is made here goes by the clock of the test; for another, make the purgatory yourself"
        raise InvalidSetting("timer", settings["timer"], wanted)


def _due(operation: DelayedOperation, now_ns: int) -> str:
    due_ns = operation.deadline_ns
    return "no deadline" if due_ns is None else f"due in {(due_ns - now_ns) // NS_PER_MS} ms"


async def _others_wait() -> None:
    """Let the loop run until every other task awaits something, or has had ``_TURNS`` turns.

    A task that was just created parks in its first turn, and a task inside other tasks some turns later. The bound is
    for tasks that never rest, such as a loop around ``sleep(0)``.
    """
    this = asyncio.current_task()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        others = (task for task in asyncio.all_tasks() if task is not this)
        if all(_is_waiting(task) for task in others):
            return


def _is_waiting(task: asyncio.Task[Any]) -> bool:
    """Whether a task awaits a future that is not done. Tasks of other kinds than asyncio's own do not say."""
    awaited = getattr(task, "_fut_waiter", None)
    return awaited is not None and not awaited.done()


def _is_answering(purgatory: AsyncPurgatory[Any]) -> bool:
    """Whether a task has an answer and has not taken it."""
    waiters = purgatory._waiters  # noqa: SLF001
    return waiters.count > len(waiters.open())
