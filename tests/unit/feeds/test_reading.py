"""Reading a feed: what a misbehaving engine does to it, the sizes of batches, and the lag."""

import asyncio
import time

import pytest

from purgatory.aio import WrongLoop
from purgatory.feeds import FeedGap, FeedUnavailable
from purgatory.feeds._following import reading
from purgatory.feeds.engine import Disconnected, Gap
from tests.support import PATIENCE_S
from tests.support.feeds import Scripted, Worker, append
from tests.support.loops import until


class SlowToOpen(Scripted):
    """A feed whose server is slow to accept a connection for reading."""

    after_s = 0.0

    async def open_reader(self):
        await asyncio.sleep(self.after_s)
        return await super().open_reader()


@pytest.mark.parametrize("call", ["end", "resume"])
async def test_connection_that_is_lost_during_the_start_is_made_again(call):
    """The start goes on with another one, for as long as the caller says."""
    async with Worker(Scripted(**{call: [Disconnected("x")]})) as worker:
        await worker.publish(b"1")
        assert ([b"1"], 2) == (worker.state, worker.feed.opened["reader"])
    with pytest.raises(FeedUnavailable, match="memory of this process"):
        async with Worker(Scripted(**{call: [Disconnected("x")]}), start_timeout_ms=0):
            pass


@pytest.mark.guarantee("following is bounded")
@pytest.mark.parametrize("hangs", ["open", "end"])
async def test_server_that_hangs_at_the_start_is_given_up_in_time(hangs):
    """No attempt takes longer than what is left of ``start_timeout_ms``."""
    feed = SlowToOpen(end=[PATIENCE_S])
    feed.after_s = PATIENCE_S if hangs == "open" else 0.0
    began_s = time.monotonic()
    with pytest.raises(FeedUnavailable, match="no answer within 0.05"):
        async with Worker(feed, start_timeout_ms=20):
            pass
    assert time.monotonic() - began_s < reading._ANSWER_S / 2


async def test_one_attempt_at_the_start_has_the_usual_time():
    """With ``start_timeout_ms=0`` a server that is slow to accept a connection is waited for."""
    feed = SlowToOpen(end=[4 * reading._LEAST_S])
    feed.after_s = 4 * reading._LEAST_S
    async with Worker(feed, start_timeout_ms=0) as worker:
        assert worker.following.is_following


@pytest.mark.guarantee("each event once, in order")
async def test_lost_reads_lose_and_double_nothing():
    """However often a read fails, each event is applied once, in order."""
    feed = Scripted(read=[None, Disconnected("1"), None, Disconnected("2"), Disconnected("3")] * 4)
    values = [b"%d" % number for number in range(30)]
    async with Worker(feed) as worker:
        for value in values:
            await worker.publish(value)
        assert values == worker.state
        assert 0 < feed.statistics().reconnections <= 12


async def test_engine_that_does_not_answer_is_given_up(monkeypatch):
    """A read that takes too long counts as a lost connection."""
    monkeypatch.setattr(reading, "_WAIT_S", 0.01)
    monkeypatch.setattr(reading, "_ANSWER_S", 0.02)
    async with Worker(Scripted(read=[60.0])) as worker:
        await worker.feed.publish("key", b"1")
        await until(lambda: worker.state)
        assert 2 == worker.feed.opened["reader"]


async def test_unknown_error_of_an_engine_ends_the_block():
    """A bug is not repeated for ever. The block raises it."""
    with pytest.raises(ZeroDivisionError):
        async with Worker(Scripted(read=[ZeroDivisionError()])):
            await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("close", [60.0, OSError()], ids=["hangs", "fails"])
async def test_close_that_hangs_or_fails_does_not_block_the_end(monkeypatch, close):
    """A connection that cannot be closed is left behind."""
    monkeypatch.setattr("purgatory.feeds._connections.CLOSE_S", 0.01)
    async with Worker(Scripted(close=[close])):
        pass


async def test_gaps_without_an_end_end_the_block():
    """If reloading does not help, the block raises FeedGap in place of reloading for ever."""
    feed = Scripted(read=[Gap("hole")] * 99)
    with pytest.raises(FeedGap, match="hole; have reload return"):
        async with Worker(feed, reload=lambda: None):
            await asyncio.sleep(PATIENCE_S)
    assert 5 == feed.statistics().gaps


async def test_batches_grow_with_a_backlog():
    """The first is small, because the size of events is not known. Later ones are large."""
    async with Worker(Scripted()) as worker:
        append(worker.feed, *[b""] * 3_000)
        await until(lambda: len(worker.state) == 3_000)
    assert [16, 32, 64, 128, 256, 512, 1_000, 1_000] == worker.feed.asked[:8]


async def test_batches_of_large_events_are_small():
    """A batch takes some megabytes at most, whatever the size of the events."""
    async with Worker(Scripted()) as worker:
        append(worker.feed, *[bytes(1_000_000)] * 100)
        await until(lambda: len(worker.state) == 100)
    assert max(worker.feed.asked[1:]) <= 8


async def test_batch_is_halved_after_a_read_that_failed(feed, worker):
    """It may have been too much for the time. Otherwise a worker would ask for the same events for ever."""
    await worker.publish(b"1")
    before = worker.following._reading._batch
    feed.disconnect()
    await until(lambda: before // 2 == worker.following._reading._batch)


async def test_lag_is_known(feed):
    """A worker with a backlog says how many events it has to apply, and for how long it has not been up to date."""
    seen = []

    def apply(event):
        if event.position.offset % 10 == 0:
            seen.append((worker.following.lag_events + event.position.offset // 10 * 10, worker.following.lag_s))
        return []

    first = await feed.publish("key", b"0")
    append(feed, *[b""] * 999)
    worker = Worker(feed, apply=apply, reload=lambda: first, slice_size=10)
    assert (None, True) == (worker.following.lag_events, worker.following.lag_s >= 0)
    async with worker:
        await until(lambda: worker.following.lag_s == 0)
        assert (0, 1_000) == (worker.following.lag_events, worker.following.position.offset)
    assert 100 == len(seen)
    assert all(900 <= total <= 1_100 for total, _ in seen)
    assert all(lag_s > 0 for _, lag_s in seen)


async def test_worker_that_finds_nothing_more_is_up_to_date(monkeypatch):
    """After a full batch there may be more events. An empty read says that there are none."""
    monkeypatch.setattr(reading, "_WAIT_S", 0.01)
    async with Worker(Scripted()) as worker:
        append(worker.feed, *[b""] * 16)  # the size of the first batch
        await until(lambda: len(worker.state) == 16 and worker.following.lag_s == 0)
        assert (0, 16) == (worker.following.lag_events, worker.feed.asked[0])


async def test_position_is_awaited_on_the_loop_of_the_block(worker):
    """Another loop gets an error in place of waiting for ever."""
    position = await worker.feed.publish("key", b"1")

    def elsewhere():
        asyncio.run(worker.following.applied(position))

    with pytest.raises(WrongLoop):
        await asyncio.to_thread(elsewhere)


async def test_reloads_after_a_gap_are_spread(monkeypatch, feed):
    """All workers see a gap at once, and would ask the database at once. At the start a worker does not wait."""
    reloads, spreads = [], []

    def uniform(least, most):
        spreads.append((least, most))
        return 0.3

    monkeypatch.setattr(reading.random, "uniform", uniform)
    async with Worker(feed, reload=lambda: reloads.append(time.monotonic())) as worker:
        await worker.publish(b"1")
        assert (1, []) == (len(reloads), [spread for spread in spreads if spread == (0, reading._SPREAD_S)])
        began = time.monotonic()
        feed.restart()
        await until(lambda: len(reloads) == 2)
        assert 0.3 <= reloads[1] - began
        assert (0, reading._SPREAD_S) in spreads


@pytest.mark.guarantee("the start is exact")
async def test_worker_begins_with_the_last_events_instead_of_the_end(feed):
    """Without a ``reload``, too. An event that is published meanwhile is applied once."""
    append(feed, b"1", b"2", b"3")
    async with Worker(feed, history=2) as worker:
        await worker.publish(b"4")
        assert [b"2", b"3", b"4"] == worker.state
