"""Reading a feed: what a misbehaving engine does to it, the sizes of batches, and the lag."""

import asyncio
import time

import pytest

from purgatory import WrongLoop
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedGap, FeedUnavailable, MemoryFeed
from purgatory.feeds._following import reading
from purgatory.feeds.engine import Disconnected, Gap
from tests.support import PATIENCE_S
from tests.support.loops import until


class Fake(MemoryFeed):
    """A feed whose readers do what the test says before each call: raise, or wait."""

    def __init__(self, **scripts):
        super().__init__()
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.asked = []
        self.opened = 0

    async def open_reader(self):
        self.opened += 1
        reader = await super().open_reader()
        for name in ("end", "resume", "read", "close"):
            setattr(reader, name, self._scripted(name, getattr(reader, name)))
        return reader

    def _scripted(self, name, method):
        async def call(*args):
            if name == "read":
                self.asked.append(args[0])
            script = self.scripts.get(name)
            step = script.pop(0) if script else None
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif step is not None:
                raise step
            return await method(*args)

        return call


async def follow(feed, test, **settings):
    """Follow with a state that is the list of values."""
    state = []

    def apply(event):
        state.append(event.value)
        return [event.key]

    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, apply, **settings) as following:
        await test(following, state)


@pytest.mark.parametrize("script", [{"end": [Disconnected("x")]}, {"resume": [Disconnected("x")]}])
async def test_connection_that_is_lost_during_the_start_is_made_again(script):
    """The start goes on with another one, for as long as the caller says."""
    feed = Fake(**script)

    async def test(following, state):
        await following.applied(await feed.publish("key", b"1"))
        assert ([b"1"], 2) == (state, feed.opened)

    await follow(feed, test)
    with pytest.raises(FeedUnavailable, match="memory of this process"):
        await follow(Fake(**{name: [Disconnected("x")] for name in script}), test, start_timeout_ms=0)


@pytest.mark.guarantee("following is bounded")
@pytest.mark.parametrize("hangs", ["open", "end"])
async def test_server_that_hangs_at_the_start_is_given_up_in_time(hangs):
    """No attempt takes longer than what is left of ``start_timeout_ms``."""

    class Hangs(Fake):
        async def open_reader(self):
            if hangs == "open":
                await asyncio.sleep(PATIENCE_S)
            return await super().open_reader()

    async def test(following, state):
        pass

    began_s = time.monotonic()
    with pytest.raises(FeedUnavailable, match="no answer within 0.05"):
        await follow(Hangs(end=[PATIENCE_S]), test, start_timeout_ms=20)
    assert time.monotonic() - began_s < reading._ANSWER_S / 2


async def test_one_attempt_at_the_start_has_the_usual_time():
    """With ``start_timeout_ms=0`` a server that is slow to accept a connection is waited for."""

    class Slow(Fake):
        async def open_reader(self):
            await asyncio.sleep(4 * reading._LEAST_S)
            return await super().open_reader()

    async def test(following, state):
        assert following.is_following

    await follow(Slow(end=[4 * reading._LEAST_S]), test, start_timeout_ms=0)


@pytest.mark.guarantee("each event once, in order")
async def test_lost_reads_lose_and_double_nothing():
    """However often a read fails, each event is applied once, in order."""
    feed = Fake(read=[None, Disconnected("1"), None, Disconnected("2"), Disconnected("3")] * 4)

    async def test(following, state):
        for number in range(30):
            position = await feed.publish("key", b"%d" % number)
            await following.applied(position)
        assert [b"%d" % number for number in range(30)] == state
        assert 0 < feed.statistics().reconnections <= 12

    await follow(feed, test)


async def test_engine_that_does_not_answer_is_given_up(monkeypatch):
    """A read that takes too long counts as a lost connection."""
    monkeypatch.setattr(reading, "_WAIT_S", 0.01)
    monkeypatch.setattr(reading, "_ANSWER_S", 0.02)
    feed = Fake(read=[60.0])

    async def test(following, state):
        await feed.publish("key", b"1")
        await until(lambda: state)
        assert 2 == feed.opened

    await follow(feed, test)


async def test_unknown_error_of_an_engine_ends_the_block():
    """A bug is not repeated for ever. The block raises it."""

    async def test(following, state):
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(ZeroDivisionError):
        await follow(Fake(read=[ZeroDivisionError()]), test)


async def test_close_that_hangs_does_not_block_the_end(monkeypatch):
    """A connection that cannot be closed is left behind."""
    monkeypatch.setattr("purgatory.feeds._connections.CLOSE_S", 0.01)

    async def test(following, state):
        pass

    await follow(Fake(close=[60.0]), test)
    await follow(Fake(close=[OSError()]), test)


async def test_gaps_without_an_end_end_the_block():
    """If reloading does not help, the block raises FeedGap in place of reloading for ever."""
    feed = Fake(read=[Gap("hole")] * 99)

    async def test(following, state):
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(FeedGap, match="hole; have reload return"):
        await follow(feed, test, reload=lambda: None)
    assert 5 == feed.statistics().gaps


async def test_batches_grow_with_a_backlog():
    """The first is small, because the size of events is not known. Later ones are large."""
    feed = Fake()

    async def test(following, state):
        for number in range(3_000):
            feed._append(feed._new_event("key", b"%d" % number, None))
        await until(lambda: len(state) == 3_000)

    await follow(feed, test)
    assert [16, 32, 64, 128, 256, 512, 1_000, 1_000] == feed.asked[:8]


async def test_batches_of_large_events_are_small():
    """A batch takes some megabytes at most, whatever the size of the events."""
    feed = Fake()

    async def test(following, state):
        for _ in range(100):
            feed._append(feed._new_event("key", bytes(1_000_000), None))
        await until(lambda: len(state) == 100)

    await follow(feed, test)
    assert max(feed.asked[1:]) <= 8


async def test_lag_is_known():
    """A worker with a backlog says how many events it has to apply, and for how long it has not been up to date."""
    feed = MemoryFeed()
    seen = []

    def apply(event):
        if event.position.offset % 10 == 0:
            seen.append((following.lag_events + event.position.offset // 10 * 10, following.lag_s))
        return []

    first = await feed.publish("key", b"0")
    for number in range(1, 1_000):
        feed._append(feed._new_event("key", b"%d" % number, None))
    async with AsyncPurgatory("worker") as purgatory:
        following = feed.follow(purgatory, apply, reload=lambda: first, slice_size=10)
        assert (None, True) == (following.lag_events, following.lag_s >= 0)
        async with following:
            await until(lambda: following.lag_s == 0)
            assert (0, 1_000) == (following.lag_events, following.position.offset)
    assert 100 == len(seen)
    assert all(900 <= total <= 1_100 for total, _ in seen)
    assert all(lag_s > 0 for _, lag_s in seen)
    await feed.aclose()


async def test_position_is_awaited_on_the_loop_of_the_block():
    """Another loop gets an error in place of waiting for ever."""
    feed = MemoryFeed()

    async def test(following, state):
        position = await feed.publish("key", b"1")

        def elsewhere():
            asyncio.run(following.applied(position))

        with pytest.raises(WrongLoop):
            await asyncio.to_thread(elsewhere)

    await follow(feed, test)
