"""Beginning with the last events, and positions of clients after the server has lost events. A part of the suite."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.feeds import FeedGap, Gone, Position
from purgatory.testing.feeds._gaps import break_and_publish
from purgatory.testing.feeds._tools import Faults, MakeFeed, Worker, numbers, on_loop, until


class Beginning(Worker):
    """A worker that begins with the last events. Its ``reload`` resets its state."""

    def __init__(self, make_feed: MakeFeed, history: int) -> None:
        self.begins: list[Position] = []
        super().__init__(make_feed(), reload=self.begin, history=history)

    def begin(self, position: Position) -> None:
        self.seen.clear()
        self.begins.append(position)


class History:
    """Beginning with the last events, and positions of clients after the server has lost events."""

    # -- the last events

    @pytest.mark.parametrize(("history", "first"), [(3, 7), (9, 1), (10, 0), (1_000, 0)])
    @on_loop
    async def test_worker_begins_with_the_last_events(self, make_feed: MakeFeed, history: int, first: int) -> None:
        """``reload`` gets the position before them. A feed with fewer events is applied whole."""
        feed = make_feed()
        positions = [await feed.publish("key", value) for value in numbers(0, 10)]
        async with Beginning(make_feed, history) as worker:
            await worker.applied(await feed.publish("key", b"last"))
            assert [*numbers(first, 10), b"last"] == worker.values
            assert positions[first:] == [event.position for event in worker.seen[:-1]]
            (begin,) = worker.begins
            assert positions[first] > begin
            if first:
                assert positions[first - 1] == begin
        await feed.aclose()

    @on_loop
    async def test_worker_of_an_empty_feed_begins_with_the_first_event(self, make_feed: MakeFeed) -> None:
        """There is no history, and the next event is applied. No ``reload`` is needed."""
        async with Worker(make_feed(), reload=None, history=10) as worker:
            await worker.publish_and_apply(numbers(0, 3))
            assert numbers(0, 3) == worker.values

    @on_loop
    async def test_worker_begins_with_what_a_trimmed_history_still_has(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """The event before the first one is gone, and nothing is missing without it."""
        feed = make_feed()
        for value in numbers(0, 10):
            position = await feed.publish("key", value)
        await asyncio.to_thread(faults.trim, 4)
        async with Beginning(make_feed, 8) as worker:
            await worker.applied(position)
            assert numbers(6, 10) == worker.values
            await worker.applied(await feed.publish("key", b"last"))
            assert (b"last", 0) == (worker.values[-1], worker.feed.statistics().gaps)
        await feed.aclose()

    @on_loop
    async def test_history_that_is_trimmed_during_the_start_is_begun_again(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """Nothing between two events is missed. The worker begins with the first that is left."""
        feed = make_feed()
        for value in numbers(0, 10):
            position = await feed.publish("key", value)
        worker = Beginning(make_feed, 8)

        async def reload(begin: Position) -> None:
            worker.begin(begin)
            if len(worker.begins) == 1:
                await asyncio.to_thread(faults.trim, 4)

        object.__setattr__(worker.following._settings, "reload", reload)  # noqa: SLF001
        async with worker:
            await worker.applied(position)
            assert numbers(6, 10) == worker.values
            assert len(worker.begins) == 2
        await feed.aclose()

    @on_loop
    async def test_worker_begins_again_after_a_gap(self, make_feed: MakeFeed, faults: Faults) -> None:
        """``reload`` resets the state, and the last events that the server has are applied."""
        async with Beginning(make_feed, 3) as worker:
            await worker.publish_and_apply(numbers(0, 10))
            break_and_publish(lambda: faults.lose_last(2), make_feed, numbers(20, 24))
            await until(lambda: len(worker.begins) == 2)
            await worker.applied(await worker.publish_surely(b"after"))
            assert [*numbers(21, 24), b"after"] == worker.values

    @on_loop
    async def test_position_whose_mark_is_not_known_can_be_resumed(self, make_feed: MakeFeed) -> None:
        """Its text has the mark 0. The server has an event at its offset, and the next ones are read."""
        feed = make_feed()
        positions = [await feed.publish("key", value) for value in numbers(0, 5)]
        begin = feed.position(str(positions[1]).rpartition("-")[0] + "-0")
        async with Worker(feed, reload=lambda: begin) as worker:
            await worker.applied(positions[-1])
            assert numbers(2, 5) == worker.values

    # -- positions of clients

    @on_loop
    async def test_position_of_a_lost_event_is_never_applied(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Another event has its offset. The two positions differ, and ``applied`` tells them apart."""
        async with Worker(make_feed()) as worker:
            await worker.publish_and_apply(numbers(0, 3))
            lost = await worker.feed.publish("key", b"lost")
            await worker.applied(lost)
            break_and_publish(lambda: faults.lose_last(1), make_feed, [])
            new = await worker.publish_surely(b"new")
            assert new != lost
            assert not new > lost
            assert not lost > new
            try:
                await worker.applied(new)  # if it returns, the event is in the state
                assert b"new" in worker.values or worker.reloads == 2
            except Gone:  # this worker has applied the lost one, and has not seen the gap yet
                assert b"new" not in worker.values
            await until(lambda: worker.reloads == 2 and worker.following.is_following)
            await worker.applied(await worker.feed.publish("key", b"after"))
            with pytest.raises(Gone):
                await worker.applied(lost)
            assert issubclass(Gone, FeedGap)

    @on_loop
    async def test_position_of_an_emptied_feed_is_gone(self, make_feed: MakeFeed, faults: Faults) -> None:
        """It is of an earlier epoch, or its event is not the one that has its offset now."""
        async with Worker(make_feed()) as worker:
            old = await worker.feed.publish("key", b"old")
            await worker.publish_and_apply(numbers(0, 5))
            break_and_publish(faults.empty, make_feed, numbers(0, 3))
            await until(lambda: worker.reloads == 2 and worker.following.is_following)
            await worker.applied(await worker.publish_surely(b"after"))
            with pytest.raises(Gone):
                await worker.applied(old)

    @on_loop
    async def test_position_from_before_the_start_proves_nothing(self, make_feed: MakeFeed) -> None:
        """The worker has no mark of the event, so it cannot know whether its state includes it."""
        feed = make_feed()
        old = await feed.publish("key", b"old")
        last = await feed.publish("key", b"last")
        async with Worker(feed) as worker:
            await worker.applied(last)
            with pytest.raises(Gone, match="older"):
                await worker.applied(old)
