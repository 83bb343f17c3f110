"""Clients that come back with a position, to any worker: ``RecentEvents``. A part of the suite."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.feeds import Feed, Gone, Position, RecentEvents
from purgatory.testing.feeds._gaps import break_and_publish
from purgatory.testing.feeds._tools import PATIENCE_MS, Faults, MakeFeed, Worker, numbers, on_loop, until


class Remembering(Worker):
    """A worker whose state is the recent events."""

    def __init__(self, feed: Feed, **limits: int) -> None:
        self.recent = RecentEvents(feed, **limits)
        super().__init__(feed, apply=self.recent.apply, reload=self.reset, history=100)

    def reset(self, position: Position) -> None:
        self.reload()
        self.recent.reset(position)

    def after(self, position: Position | None, key: str = "key") -> list[bytes]:
        return [event.value for event in self.recent.since(key, position)]


class Clients:
    """Clients that come back with a position, to any worker."""

    @on_loop
    async def test_client_gets_each_event_once_from_any_worker(self, make_feed: MakeFeed) -> None:
        """It asks one worker and then another, which has begun later. Each knows the events after its position."""
        feed = make_feed()
        async with Remembering(feed) as one:
            await asyncio.gather(*(feed.publish(f"key {number % 3}", b"%d" % number) for number in range(30)))
            position = await feed.publish("key 0", b"30")
            async with Remembering(make_feed()) as other:
                got: list[bytes] = []
                start: Position | None = None
                for worker in (one, other):
                    await worker.applied(position)
                    events = worker.recent.since("key 0", start)[:5]
                    got += [event.value for event in events]
                    start = other.recent.position(str(events[-1].position))
                assert [b"%d" % number for number in range(0, 30, 3)] == got
                assert [b"30"] == one.after(start, "key 0") == other.after(start, "key 0")
                assert [] == one.after(position, "key 0") == other.after(position, "key 0")

    @on_loop
    async def test_client_that_is_ahead_waits(self, make_feed: MakeFeed) -> None:
        """It has the position of an event that this worker has not applied. At the end of its time it is gone."""
        feed = make_feed()
        async with Remembering(feed) as worker:
            first = await feed.publish("key", b"1")
            await worker.applied(first)
            text = str(await feed.publish("key", b"2"))
            ahead = worker.recent.position(text)
            recent = RecentEvents(feed)
            recent.apply(worker.recent.since("key", None)[0])
            assert not recent.is_due("key", ahead)
            with pytest.raises(Gone, match="has not applied"):
                recent.since("key", ahead)
            wait = worker.purgatory.wait_for(
                lambda: worker.recent.is_due("key", ahead), keys=["key"], timeout_ms=PATIENCE_MS
            )
            waiting = asyncio.create_task(wait)
            await feed.publish("key", b"3")
            assert await waiting
            assert [b"3"] == worker.after(ahead)

    @on_loop
    async def test_client_with_the_position_of_a_lost_event_learns_of_it(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """Another event has its place, which the client would never get. A position before that still counts."""
        async with Remembering(make_feed()) as worker:
            kept = await worker.publish_and_apply(numbers(0, 5))
            lost = await worker.feed.publish("key", b"lost")
            await worker.applied(lost)
            break_and_publish(lambda: faults.lose_last(1), make_feed, [b"new", b"newer"])
            await until(lambda: worker.reloads == 2 and worker.following.is_following)
            await worker.applied(await worker.publish_surely(b"last"))
            assert worker.recent.is_due("key", lost)
            with pytest.raises(Gone, match="another event"):
                worker.recent.since("key", lost)
            assert [b"new", b"newer", b"last"] == worker.after(kept)

    @on_loop
    async def test_client_whose_events_were_trimmed_learns_of_it(self, make_feed: MakeFeed, faults: Faults) -> None:
        """A worker that starts afterwards does not have them. One that has applied them still does."""
        async with Remembering(make_feed()) as one:
            start = await one.publish_and_apply([b"first"])
            position = await one.publish_and_apply(numbers(0, 10))
            await asyncio.to_thread(faults.trim, 4)
            async with Remembering(make_feed()) as other:
                await other.applied(position)
                assert numbers(0, 10) == one.after(start)
                assert numbers(6, 10) == other.after(None)
                with pytest.raises(Gone):
                    other.recent.since("key", start)

    @on_loop
    async def test_client_of_an_emptied_feed_learns_of_it(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Its position is of an earlier epoch, or of another event."""
        async with Remembering(make_feed()) as worker:
            old = await worker.publish_and_apply(numbers(0, 2))
            await worker.publish_and_apply(numbers(2, 5))
            break_and_publish(faults.empty, make_feed, numbers(5, 9))
            await until(lambda: worker.reloads == 2 and worker.following.is_following)
            await worker.applied(await worker.publish_surely(b"last"))
            assert [*numbers(5, 9), b"last"] == worker.after(None)
            with pytest.raises(Gone):
                worker.recent.since("key", old)
