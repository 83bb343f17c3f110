"""Every event once and in order, and polls that do not miss. A part of the suite."""

from __future__ import annotations

import asyncio
import time

import pytest

from purgatory import Outcome
from purgatory.feeds import FollowingEnded, InvalidPosition, Position
from purgatory.feeds.engine import NewEvent
from purgatory.testing.feeds._tools import Faults, MakeFeed, Worker, elsewhere, numbers, on_loop, until


class Order:
    """Every event once and in order, and polls that do not miss."""

    # -- every event, once, in order

    @on_loop
    async def test_every_worker_applies_every_event_once_in_one_order(self, make_feed: MakeFeed) -> None:
        """Events of several publishers are applied by each worker once, and in the same order."""
        one, other = make_feed(), make_feed()
        async with Worker(one) as first, Worker(other) as second, Worker(make_feed()) as third:
            published = await asyncio.gather(
                *(one.publish("key", b"one %d" % number) for number in range(200)),
                *(other.publish("key", b"other %d" % number) for number in range(200)),
            )
            last = max(published, key=lambda position: sum(position >= each for each in published))
            for worker in (first, second, third):
                await worker.applied(last)
            assert 400 == len(first.seen)
            assert first.seen == second.seen == third.seen
            for name in (b"one", b"other"):
                ours = [value for value in first.values if value.startswith(name)]
                assert [name + b" %d" % number for number in range(200)] == ours

    @on_loop
    async def test_event_arrives_as_it_was_published(self, make_feed: MakeFeed) -> None:
        """Key, value and id are unchanged, whatever their bytes, and the position is the publisher's."""
        feed = make_feed()
        async with Worker(feed) as worker:
            given = [("", b"", None), ("käse-✓", bytes(range(256)), "id-é"), ("a b\n", b"\r\n$-1\r\n", "*")]
            positions = [await feed.publish(key, value, id=name) for key, value, name in given]
            await worker.applied(positions[-1])
            assert given == [(event.key, event.value, event.id) for event in worker.seen]
            assert positions == [event.position for event in worker.seen]

    @on_loop
    async def test_trace_context_arrives(self, make_feed: MakeFeed) -> None:
        """What a tracer of the publisher adds to an event arrives with it. Without a tracer nothing is added."""
        feed = make_feed()
        contexts = ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None]
        async with Worker(feed) as worker:
            publisher = await feed.open_publisher()
            for context in contexts:
                (answer,) = await publisher.publish([NewEvent("key", b"", None, time.time_ns(), context, 3)])
                assert isinstance(answer, Position)
                await worker.applied(answer)
            await publisher.close()
            assert contexts == [event.context for event in worker.seen]
            assert all(abs(time.time_ns() - event.published_ns) < 60e9 for event in worker.seen)

    @on_loop
    async def test_worker_that_stood_still_catches_up(self, make_feed: MakeFeed) -> None:
        """A worker whose process was stopped applies what was published meanwhile."""
        async with Worker(make_feed()) as worker:

            async def publish() -> Position:
                async with make_feed() as feed:
                    return [await feed.publish("key", value) for value in numbers(0, 100)][-1]

            await worker.applied(elsewhere(publish))
            assert numbers(0, 100) == worker.values
            assert 1 == worker.reloads

    @on_loop
    async def test_cut_connections_lose_and_double_nothing(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Lost connections of publishers and of workers cost time, and no event."""
        feed = make_feed()
        async with Worker(feed) as worker, Worker(make_feed()) as other:
            for value in numbers(0, 60):
                position = await worker.publish_surely(value)
                if value.endswith(b"7"):
                    await asyncio.to_thread(faults.cut)
            await worker.applied(position)
            await other.applied(position)
            assert numbers(0, 60) == worker.values == other.values
            assert 1 == worker.reloads == other.reloads

    @on_loop
    async def test_restart_of_the_server_loses_and_doubles_nothing(self, make_feed: MakeFeed, faults: Faults) -> None:
        """A worker reads on after a restart of the server."""
        feed = make_feed()
        async with Worker(feed) as worker:
            for value in numbers(0, 10):
                await worker.publish_surely(value)
            await asyncio.to_thread(faults.stop)
            await until(lambda: not worker.following.is_following)
            publishing = asyncio.create_task(worker.publish_surely(b"10"))
            await asyncio.to_thread(faults.start)
            await worker.applied(await publishing)
            assert numbers(0, 11) == worker.values
            assert (1, 0) == (worker.reloads, feed.statistics().gaps)

    # -- polls do not miss

    @on_loop
    async def test_polls_outlast_a_server_that_is_away(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Polls that were parked before, during and after a lost connection are all answered."""
        feed = make_feed()
        async with Worker(feed) as worker:
            before = worker.poll(b"hello")
            await asyncio.sleep(0)
            await asyncio.to_thread(faults.stop)
            during = worker.poll(b"hello")
            await until(lambda: not worker.following.is_following)
            assert not before.done()
            assert not during.done()
            await asyncio.to_thread(faults.start)
            after = worker.poll(b"hello")
            await worker.publish_surely(b"hello")
            assert [Outcome.SATISFIED] * 3 == list(await asyncio.gather(before, during, after))

    @on_loop
    async def test_state_changes_before_the_key_is_checked(self, make_feed: MakeFeed) -> None:
        """A check that an event causes sees the state after it."""
        async with Worker(make_feed()) as worker:
            for number in range(20):
                poll = worker.poll(b"%d" % number, key=f"key {number}")
                await asyncio.sleep(0)
                await worker.feed.publish(f"key {number}", b"%d" % number)
                assert Outcome.SATISFIED is await poll

    # -- positions

    @on_loop
    async def test_positions_are_ordered_and_have_a_text(self, make_feed: MakeFeed) -> None:
        """A later event on a key has a greater position, and the text leads back to it."""
        async with make_feed() as feed:
            first, second = [await feed.publish("key", b"") for _ in range(2)]
            assert first < second
            assert second >= first
            assert not first >= second
            assert feed.position(str(first)) == first
            assert hash(feed.position(str(first))) == hash(first)
            for text in ("", "x", "1", "-1-1-1", "1-2-3-4", str(first) + " ", "9" * 99):
                with pytest.raises(InvalidPosition):
                    feed.position(text)
            with pytest.raises(InvalidPosition):
                feed.position(None)  # type: ignore[arg-type]

    @on_loop
    async def test_applied_waits_for_the_position(self, make_feed: MakeFeed) -> None:
        """It returns when this worker has applied the event, and raises if that takes too long."""
        feed = make_feed()
        async with Worker(feed) as worker:
            position = await feed.publish("key", b"1")
            await worker.applied(position)
            assert [b"1"] == worker.values
            await worker.applied(position)
            with pytest.raises(InvalidPosition):
                await worker.following.applied(str(position))  # type: ignore[arg-type]
        with pytest.raises(FollowingEnded):
            await worker.following.applied(position)
