"""A gap is never silent. A part of the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from purgatory import DelayedOperation, Outcome
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedGap
from purgatory.testing.feeds._tools import PATIENCE_MS, Faults, MakeFeed, Worker, elsewhere, numbers, on_loop, until


class Gaps:
    """A gap is never silent."""

    @on_loop
    async def test_trimmed_history_is_a_gap(self, make_feed: MakeFeed, faults: Faults) -> None:
        """A worker that lags behind the history reloads, and goes on from the end. Or the server has sent it all."""
        async with Worker(make_feed()) as worker:
            await worker.applied(await worker.feed.publish("key", b"first"))
            poll = worker.poll(b"reloaded")
            await asyncio.sleep(0)

            async def publish_and_trim() -> None:
                async with make_feed() as feed:
                    for value in numbers(0, 50):
                        await feed.publish("key", value)
                faults.trim(5)

            worker.seen[:] = []
            worker.reload = lambda: None  # type: ignore[method-assign]
            elsewhere(publish_and_trim)
            await until(lambda: worker.feed.statistics().gaps or len(worker.seen) == 50)
            await until(lambda: worker.following.is_following)
            await worker.applied(await worker.feed.publish("key", b"reloaded"))
            assert Outcome.SATISFIED is await poll
            *before, last = worker.values  # a server may have sent the first events, or all, on its own
            assert b"reloaded" == last
            assert numbers(0, len(before)) == before
            assert len(before) < 45 if worker.feed.statistics().gaps else len(before) == 50

    @pytest.mark.parametrize("events", [0, 1, 20])
    @on_loop
    async def test_emptied_server_is_a_gap(self, make_feed: MakeFeed, faults: Faults, events: int) -> None:
        """A worker notices that the server was emptied, also if it has as many events again, or none at all."""
        async with Worker(make_feed()) as worker:
            await worker.publish_and_apply(numbers(0, 10))
            break_and_publish(faults.empty, make_feed, numbers(10, 10 + events))
            await until(lambda: worker.reloads == 2)
            await worker.applied(await worker.publish_surely(b"after"))
            assert [*numbers(0, 10), b"after"] == worker.values
            assert 1 == worker.feed.statistics().gaps

    @pytest.mark.parametrize("events", [0, 2, 5])
    @on_loop
    async def test_lost_end_is_a_gap(self, make_feed: MakeFeed, faults: Faults, events: int) -> None:
        """A worker notices that the server has lost its last events, also if others stand in their place."""
        async with Worker(make_feed()) as worker:
            await worker.publish_and_apply(numbers(0, 10))
            break_and_publish(lambda: faults.lose_last(2), make_feed, numbers(10, 10 + events))
            await until(lambda: worker.reloads == 2)
            await worker.publish_surely(b"after")
            await until(lambda: b"after" in worker.values)
            assert [*numbers(0, 10), b"after"] == worker.values

    @on_loop
    async def test_gap_without_reload_ends_the_block(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The block is cancelled and raises FeedGap, which ``applied`` and ``ended`` raise, too."""
        async with AsyncPurgatory("worker") as purgatory:
            following = make_feed().follow(purgatory, lambda event: [event.key])
            errors: list[BaseException] = []
            with pytest.raises(FeedGap, match="pass reload="):
                async with following:
                    position = await following.feed.publish("key", b"1")
                    await following.applied(position)
                    waiting = asyncio.create_task(following.ended())
                    faults.empty()
                    try:
                        await asyncio.Event().wait()  # until the block is cancelled
                    except asyncio.CancelledError as error:
                        errors.append(error)
                        raise
            assert 1 == len(errors)
            with pytest.raises(FeedGap):
                await waiting
            with pytest.raises(FeedGap):
                await following.applied(position)
            assert not following.is_following

    @on_loop
    async def test_gap_checks_every_parked_operation(self, make_feed: MakeFeed, faults: Faults) -> None:
        """After ``reload`` every operation is checked once, under whatever keys it waits."""
        checks: list[int] = []

        class Counting(DelayedOperation):
            __slots__ = ("number",)

            def __init__(self, number: int) -> None:
                super().__init__(PATIENCE_MS)
                self.number = number

            def try_complete(self) -> bool:
                checks.append(self.number)
                return worker.reloads == 2 and self.force_complete()

        async with Worker(make_feed()) as worker:
            await worker.applied(await worker.feed.publish("other", b""))
            for number in range(100):
                worker.purgatory.start(Counting(number), [f"key {number}", "shared", number])
            checks.clear()
            await asyncio.to_thread(faults.empty)
            await until(lambda: worker.purgatory.parked == 0)
            assert list(range(100)) == sorted(checks)


def break_and_publish(fault: Callable[[], None], make_feed: MakeFeed, values: Sequence[bytes]) -> None:
    """Do something to the server and then publish values, while the workers of this loop stand still."""

    async def work() -> None:
        fault()
        async with make_feed() as feed:
            for value in values:
                await feed.publish("key", value)

    elsewhere(work)
