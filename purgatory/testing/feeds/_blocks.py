"""The start, the end, ``apply``, threads, and what is reported. A part of the suite."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import (
    Event,
    FeedGap,
    FeedUnavailable,
    FollowingEnded,
    InvalidPosition,
    Position,
    PublishUncertain,
)
from purgatory.testing.feeds._tools import (
    PATIENCE_MS,
    PATIENCE_S,
    Faults,
    MakeFeed,
    Worker,
    elsewhere,
    numbers,
    on_loop,
    until,
)

if TYPE_CHECKING:
    from purgatory.feeds._following.threads import ThreadFollowing


def publish_until(following: ThreadFollowing, give_up_s: float) -> None:
    """Publish again and again. A gap may end the block while an event is on its way."""
    while time.monotonic() < give_up_s:
        time.sleep(0.01)
        with contextlib.suppress(PublishUncertain):
            following.publish("key", b"2")


class Blocks:
    """The start, the end, ``apply``, threads, and what is reported."""

    # -- the start, and the end

    @on_loop
    async def test_start_is_exact(self, make_feed: MakeFeed) -> None:
        """Events that are published while ``reload`` reads the state are applied, if they are not in the state."""
        feed = make_feed()
        state: list[bytes] = []

        async def reload() -> Position:
            position = await feed.publish("key", b"in the state")
            state.append(b"in the state")
            await feed.publish("key", b"after it")
            return position

        await feed.publish("key", b"before")
        async with Worker(feed, reload=reload) as worker:
            await worker.applied(await feed.publish("key", b"last"))
            assert [b"after it", b"last"] == worker.values
        await feed.aclose()

    @on_loop
    async def test_start_without_a_position_misses_nothing(self, make_feed: MakeFeed) -> None:
        """If ``reload`` returns no position, everything that was published since before it is applied."""
        feed = make_feed()

        async def reload() -> None:
            await feed.publish("key", b"during")

        await feed.publish("key", b"before")
        async with Worker(feed, reload=reload) as worker:
            await until(lambda: worker.seen)
            assert [b"during"] == worker.values

    @on_loop
    async def test_position_that_is_gone_is_no_start(self, make_feed: MakeFeed, faults: Faults) -> None:
        """If ``reload`` keeps returning a position that the feed has lost, the start fails with FeedGap."""
        async with make_feed() as feed:
            position = await feed.publish("key", b"1")
            for value in numbers(0, 10):
                await feed.publish("key", value)
            await asyncio.to_thread(faults.trim, 2)
            with pytest.raises(FeedGap, match="have reload return"):
                async with Worker(feed, reload=lambda: position):
                    pass

    @on_loop
    async def test_error_of_reload_fails_the_start(self, make_feed: MakeFeed) -> None:
        """What ``reload`` raises at the start is raised by the block. So is a wrong type that it returns."""

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with Worker(make_feed(), reload=fail):
                pass
        with pytest.raises(InvalidPosition, match="what reload returns"):
            async with Worker(make_feed(), reload=lambda: "7-7-7"):
                pass

    @on_loop
    async def test_server_that_is_away_at_the_start_is_named(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The error names the server. With a longer timeout, the start waits for it."""
        feed = make_feed()
        await asyncio.to_thread(faults.stop)
        try:
            with pytest.raises(FeedUnavailable) as raised:
                async with Worker(feed, start_timeout_ms=0):
                    pass
            assert feed.where in str(raised.value)
            worker = Worker(feed, start_timeout_ms=PATIENCE_MS)
            entering = asyncio.create_task(worker.__aenter__())
            await asyncio.sleep(0.2)
            assert not entering.done()
        finally:
            await asyncio.to_thread(faults.start)
        await entering
        await worker.applied(await worker.publish_surely(b"1"))
        await worker.__aexit__(None, None, None)

    @on_loop
    async def test_leaving_does_not_wait_for_a_server_that_is_away(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The block ends within a few seconds."""
        async with Worker(make_feed()) as worker:
            await worker.feed.publish("key", b"1")
            await asyncio.to_thread(faults.stop)
            began_s = time.monotonic()
        try:
            assert time.monotonic() - began_s < 5
        finally:
            await asyncio.to_thread(faults.start)

    @on_loop
    async def test_worker_goes_on_after_each_block(self, make_feed: MakeFeed) -> None:
        """A feed may be followed again, also several times at once. A block cannot be entered twice."""
        feed = make_feed()
        for _ in range(2):
            async with Worker(feed) as one, Worker(feed) as other:
                position = await feed.publish("key", b"1")
                await one.applied(position)
                await other.applied(position)
                assert [b"1"] == one.values == other.values
                with pytest.raises(FollowingEnded, match="call follow"):
                    await one.following.__aenter__()

    # -- apply

    @on_loop
    async def test_apply_that_raises_is_skipped(self, make_feed: MakeFeed) -> None:
        """The event counts as skipped. Others are applied, and their keys are checked."""
        async with Worker(make_feed()) as worker:
            polls = [worker.poll(b"1"), worker.poll(b"3")]
            given: Iterator[Any] = iter([["key"], ZeroDivisionError(), ["key"], "key", None, [[]], ["key"]])

            def apply(event: Event) -> Any:
                worker.seen.append(event)
                answer = next(given)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            object.__setattr__(worker.following._settings, "apply", apply)  # noqa: SLF001
            await worker.publish_and_apply(numbers(1, 8))
            assert [Outcome.SATISFIED] * 2 == await asyncio.gather(*polls)
            statistics = worker.feed.statistics()
            assert (3, 4) == (statistics.applied, statistics.skipped)

    @on_loop
    async def test_apply_that_raises_may_stop_the_worker(self, make_feed: MakeFeed) -> None:
        """With ``on_error="stop"`` the block raises the error, and the position is that of the event before."""
        feed = make_feed()

        def apply(event: Event) -> list[Hashable]:
            if event.value == b"3":
                raise ZeroDivisionError
            return [event.key]

        async with AsyncPurgatory("worker") as purgatory:
            following = feed.follow(purgatory, apply, on_error="stop")
            with pytest.raises(ZeroDivisionError):
                async with following:
                    last_good = [await feed.publish("key", value) for value in (b"1", b"2")][-1]
                    await feed.publish("key", b"3")
                    await asyncio.sleep(PATIENCE_S)
            assert last_good == following.position

    @on_loop
    async def test_backlog_does_not_starve_the_loop(self, make_feed: MakeFeed) -> None:
        """While a worker applies a backlog with an ``apply`` that takes its time, the loop runs other callbacks."""
        async with Worker(make_feed()) as worker:

            def apply(event: Event) -> list[Hashable]:
                end_s = time.perf_counter() + 0.001
                while time.perf_counter() < end_s:
                    pass
                return worker.apply(event)

            object.__setattr__(worker.following._settings, "apply", apply)  # noqa: SLF001

            async def publish() -> Position:
                async with make_feed() as feed:
                    return (await asyncio.gather(*(feed.publish("key", value) for value in numbers(0, 300))))[-1]

            position = elsewhere(publish)
            turns = 0
            while worker.following.position is None or not worker.following.position >= position:
                await asyncio.sleep(0)
                turns += 1
            assert turns > 20
            assert numbers(0, 300) == worker.values

    # -- threads

    def test_threads_follow_without_a_loop_of_their_own(self, make_feed: MakeFeed) -> None:
        """In a program on threads, ``with`` does the same, on one thread of the library."""
        seen: list[bytes] = []
        before = set(threading.enumerate())

        def apply(event: Event) -> list[Hashable]:
            seen.append(event.value)
            return [event.key]

        class Seen(DelayedOperation):
            def __init__(self) -> None:
                super().__init__(PATIENCE_MS)
                self.done = threading.Event()

            def try_complete(self) -> bool:
                return b"hello" in seen and self.force_complete()

            def on_complete(self) -> None:
                self.done.set()

        with (
            DelayedOperationPurgatory[Seen]("worker") as purgatory,
            make_feed().follow(purgatory, apply, reload=lambda: None) as following,
        ):
            poll = Seen()
            purgatory.try_complete_else_watch(poll, ["key"])
            position = following.publish("key", b"hello", id="1")
            following.applied(position, timeout_ms=PATIENCE_MS)
            assert poll.done.wait(PATIENCE_S)
            assert (position, True, [b"hello"]) == (following.position, following.is_following, seen)
        with pytest.raises(FollowingEnded):
            following.publish("key", b"late")
        assert before >= {thread for thread in threading.enumerate() if thread.name.startswith("follow")}

    def test_threads_learn_of_a_gap(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Without ``reload``, the next call raises FeedGap, and so does the end of the block."""
        with DelayedOperationPurgatory("worker") as purgatory, pytest.raises(FeedGap):
            with make_feed().follow(purgatory, lambda event: [event.key]) as following:
                following.applied(following.publish("key", b"1"), timeout_ms=PATIENCE_MS)
                faults.empty()
                give_up_s = time.monotonic() + PATIENCE_S
                while following.is_following and time.monotonic() < give_up_s:
                    time.sleep(0.01)
                with pytest.raises(FeedGap):
                    publish_until(following, give_up_s)

    # -- what is reported

    @on_loop
    async def test_statistics_tell_what_happened(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Counters are exact, and the lag is zero when the worker is up to date."""
        feed = make_feed()
        async with Worker(feed) as worker:
            position = await worker.publish_and_apply(numbers(0, 5))
            await until(lambda: feed.statistics().lag_s == 0)
            now = feed.statistics()
            assert (1, True, str(position), 5) == (now.followings, now.is_following, now.position, now.position_events)
            assert 0 == now.lag_events
            assert (5, 0, 5, 0, 0) == (now.applied, now.skipped, now.published, now.rejected, now.uncertain)
            assert 5 == sum(now.publish_ns)
            assert 0 < now.publish_sum_ns
            await asyncio.to_thread(faults.stop)
            await until(lambda: not worker.following.is_following)
            await asyncio.to_thread(faults.start)
            await until(lambda: feed.statistics().reconnections and worker.following.is_following)
        now = feed.statistics()
        assert (0, None, None, None) == (now.followings, now.is_following, now.position, now.position_events)
