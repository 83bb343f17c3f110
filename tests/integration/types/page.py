"""A page of code as a user of the library would write it, for type checkers. It is not run."""

import asyncio
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import assert_type

from purgatory import (
    ActionQueue,
    DelayedFuturePurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    Observer,
    Outcome,
    PurgatoryFull,
    ShutdownReport,
    ThresholdPurgatory,
)
from purgatory.aio import AsyncOperation, AsyncPurgatory
from purgatory.journal import Trace
from purgatory.testing import Purgatories
from timer import MockTimer, SystemTimer, SystemTimerReaper


class Lease(DelayedOperation):
    """An operation with plain hooks."""

    def __init__(self, holder: str, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.holder = holder

    def try_complete(self) -> bool:
        return self.holder == "" and self.force_complete()

    def on_complete(self) -> None:
        print(self.holder, self.outcome, self.keys)

    def on_expiration(self) -> None:
        print(self.holder, self.delay_ms)


class Poll(AsyncOperation):
    """One whose hooks are coroutines."""

    def try_complete(self) -> bool:
        return self.force_complete()

    async def on_complete(self) -> None:
        await asyncio.sleep(0)

    async def on_expiration(self) -> None:
        await asyncio.sleep(0)


class Half(AsyncOperation):
    """One of whose hooks only one is a coroutine."""

    def try_complete(self) -> bool:
        return self.force_complete()

    async def on_complete(self) -> None:
        await asyncio.sleep(0)

    def on_expiration(self) -> None:
        print("expired")


class Count(Observer):
    """Notified of ends only."""

    def __init__(self) -> None:
        self.ended = 0

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:
        self.ended += outcome is not Outcome.CANCELLED


def in_threads() -> None:
    """One purgatory for any operation, and one for leases alone."""
    anything = DelayedOperationPurgatory("anything", observers=[Count()])
    assert_type(anything, DelayedOperationPurgatory[DelayedOperation])
    anything.try_complete_else_watch(Lease("ann", 1_000), ["door", ("orders", 0)])

    with DelayedOperationPurgatory[Lease]("leases", max_parked=10) as leases:
        assert_type(leases, DelayedOperationPurgatory[Lease])
        keys: list[Hashable] = ["door"]
        try:
            leases.try_complete_else_watch(Lease("ann", 1_000), keys)
        except PurgatoryFull as full:
            print(full.name, full.limit)
        for lease in leases.cancel_for_key("door"):
            print(lease.holder)
        report = leases.shutdown("cancel")
        assert_type(report, ShutdownReport[Lease])
        for lease in (*report.cancelled, *report.stuck):
            print(lease.holder)

    with (
        SystemTimerReaper("reaper", SystemTimer("shared")) as timer,
        DelayedOperationPurgatory("one", timer=timer) as one,
    ):
        assert_type(one.parked, int)


async def on_a_loop() -> None:
    """Waits of every kind."""
    async with AsyncPurgatory("anything") as anything:
        assert_type(anything, AsyncPurgatory[DelayedOperation])
        assert_type(await anything.park(Poll(1_000), ["k"]), Outcome)
        await anything.park(Half(1_000), ["k"])

        def first() -> str | None:
            return "x" if anything.parked else None

        assert_type(await anything.wait_for_result(first, keys=["k"], timeout_ms=5), str)
    async with AsyncPurgatory[Poll]("polls") as polls:
        await polls.park(Poll(1_000), ["k"])
        if await polls.wait_for(lambda: polls.parked, keys=["k"], timeout_ms=5):
            print("in time")
        if (outcome := await polls.wait_for(lambda: polls.parked, keys=["k"], timeout_ms=5)) is Outcome.EXPIRED:
            print("late")
        assert_type(bool(outcome), bool)
        assert_type(await polls.shutdown(), ShutdownReport[Poll])
    beneath: DelayedOperationPurgatory[Lease] = DelayedOperationPurgatory("leases")
    async with AsyncPurgatory.over(beneath) as over:
        assert_type(over, AsyncPurgatory[Lease])


def numbers_and_futures() -> None:
    """The ready-made ones."""
    with ThresholdPurgatory("watermark", timer=MockTimer()) as watermark, ThresholdPurgatory("many") as many:
        assert_type(watermark.wait(3, timeout_ms=5), Future[int])
        assert_type(many.wait(3, timeout_ms=5, key=("orders", 0)).result(), int)
    votes: list[Future[str]] = [Future()]
    with DelayedFuturePurgatory("votes") as purgatory:
        vote = purgatory.try_complete_else_watch(5, votes, lambda done: print([vote.result().upper() for vote in done]))
        assert_type(vote.futures, tuple[Future[str], ...])


def test_of_mine(purgatories: Purgatories) -> None:
    """A test with the library's fixture."""
    purgatories.make("leases").try_complete_else_watch(lease := Lease("ann", 5), ["door"])
    assert purgatories.advance(5)
    assert lease.outcome is Outcome.EXPIRED


def needs(lease: Lease) -> dict[str, int]:
    """An operation with keys of one type."""
    return {lease.holder: lease.checks}


def counted(votes: Sequence[Future[int]]) -> None:
    """A callback of a set of futures, and what a queue is given."""
    print(sum(vote.result() for vote in votes))


def traced(leases: DelayedOperationPurgatory[Lease], trace: Trace, votes: DelayedFuturePurgatory) -> None:
    leases.attach(trace.observer("leases", needs=needs))
    votes.try_complete_else_watch(1_000, [Future[int]()], counted)
    actions = ActionQueue()
    actions.add(leases.check_and_complete, "a", limit=1)
