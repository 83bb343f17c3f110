"""Publishing says what happened. A part of the suite."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory import InvalidSetting
from purgatory.feeds import EventTooLarge, PublishRejected, PublishUncertain
from purgatory.testing.feeds._tools import Faults, MakeFeed, Worker, numbers, on_loop


class Publishing:
    """Publishing says what happened."""

    @on_loop
    async def test_id_is_accepted_once(self, make_feed: MakeFeed) -> None:
        """A second publish with an id, by any worker, adds nothing and returns the first position."""
        one, other = make_feed(), make_feed()
        async with Worker(one) as worker:
            first = await one.publish("key", b"a", id="x")
            again = [await feed.publish("key", b"b", id="x") for feed in (one, other)]
            both = await asyncio.gather(one.publish("key", b"c", id="y"), one.publish("key", b"d", id="y"))
            await worker.applied(await other.publish("key", b"end"))
            await other.aclose()
            assert [first, first] == again
            assert [str(first)] * 2 == [str(position) for position in again]
            assert 1 == len(set(both))
            assert [b"a", b"c", b"end"] == worker.values

    @on_loop
    async def test_publish_is_rejected_while_the_server_is_away(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Nothing can have been accepted, so the error says that."""
        async with make_feed() as feed:
            await feed.publish("key", b"1")
            await asyncio.to_thread(faults.stop)
            try:
                while True:  # the first may find out that the connection is lost
                    try:
                        await feed.publish("key", b"2")
                    except PublishUncertain:
                        continue
            except PublishRejected as error:
                assert feed.where in str(error)
            finally:
                await asyncio.to_thread(faults.start)

    @on_loop
    async def test_publishes_of_one_task_keep_their_order(self, make_feed: MakeFeed) -> None:
        """Publishes that are begun one after the other are accepted in that order, without waiting for each other."""
        feed = make_feed()
        async with Worker(feed) as worker:
            positions = await asyncio.gather(*(feed.publish("key", value) for value in numbers(0, 600)))
            await worker.applied(await feed.publish("other", b"end"))
            assert [*numbers(0, 600), b"end"] == worker.values
            assert positions == [event.position for event in worker.seen[:-1]]

    @on_loop
    async def test_cancelled_publish_disturbs_no_other(self, make_feed: MakeFeed) -> None:
        """The others are accepted in order, and what was cancelled is applied at most once."""
        feed = make_feed()
        async with Worker(feed) as worker:
            tasks = [asyncio.create_task(feed.publish("key", value)) for value in numbers(0, 100)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await worker.applied(await feed.publish("key", b"end"))
            kept = [value for number, value in enumerate(numbers(0, 100)) if number % 3]
            assert [*kept, b"end"] == [value for value in worker.values if value == b"end" or int(value) % 3]
            assert len(set(worker.values)) == len(worker.values)

    @on_loop
    async def test_bad_events_are_rejected(self, make_feed: MakeFeed) -> None:
        """An event of another type, or one that is too large, is an error before anything is sent."""
        async with make_feed(max_bytes=10) as feed:
            with pytest.raises(EventTooLarge, match="at most 10 bytes"):
                await feed.publish("key", b"12345678")
            bad: tuple[Any, ...] = ((7, b""), ("key", "text"), ("\ud800", b""))
            for arguments in bad:
                with pytest.raises(InvalidSetting):
                    await feed.publish(*arguments)
            with pytest.raises(InvalidSetting):
                await feed.publish("key", b"", id="")
            await feed.publish("key", b"1234567")

    @on_loop
    async def test_pending_publishes_are_bounded(self, make_feed: MakeFeed) -> None:
        """Beyond ``max_pending`` a publish is rejected at once."""
        async with make_feed(max_pending=3) as feed:
            answers = await asyncio.gather(*(feed.publish("key", b"") for _ in range(5)), return_exceptions=True)
            assert [False, False, False, True, True] == [isinstance(answer, PublishRejected) for answer in answers]
