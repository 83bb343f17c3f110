"""The time limit of a feed's reads."""

import asyncio

import pytest

from purgatory.feeds import _connections
from purgatory.feeds._connections import ReadLimit
from purgatory.feeds._errors import Disconnected
from tests.support import PATIENCE_S

pytestmark = pytest.mark.guarantee("following is bounded")


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    async def passes(self, seconds):
        """So much time passes, and the limit has looked."""
        self.now_s += seconds
        await asyncio.sleep(0.05)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the limit, which looks often."""
    clock = Clock()
    monkeypatch.setattr(_connections, "time", clock)
    monkeypatch.setattr(_connections, "_LOOK_S", 0.001)
    return clock


@pytest.fixture
def limit(clock):
    """Reads may take ten seconds."""
    limit = ReadLimit(10.0)
    yield limit
    limit.stop()


async def test_each_read_has_the_whole_time(limit, clock):
    """Time between two reads, and that of the reads before, does not count."""
    for _ in range(3):
        with limit:
            await clock.passes(9.0)
        await clock.passes(9.0)


async def test_read_that_takes_too_long_is_given_up_each_time(limit, clock):
    """The task goes on, and the limit works for its next reads."""
    for _ in range(3):
        with pytest.raises(Disconnected, match="no answer within 10 seconds"), limit:
            await clock.passes(11.0)
            await asyncio.sleep(PATIENCE_S)
        with limit:
            await clock.passes(9.0)
        assert 0 == asyncio.current_task().cancelling()


async def test_what_is_awaited_after_a_read_is_never_given_up(limit, clock):
    """Applying the events of a read may take long."""
    with limit:
        pass
    await clock.passes(60.0)


async def test_cancellation_wins_over_the_limit(limit, clock):
    """A block that is left while a read is given up ends."""
    reading = asyncio.Event()

    async def read():
        with limit:
            reading.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                asyncio.current_task().cancel()
                raise

    task = asyncio.create_task(read())
    await reading.wait()
    await clock.passes(11.0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 == task.cancelling()


async def test_read_that_was_answered_at_the_last_moment_is_kept(limit, clock):
    """An engine that has its answer may ignore the cancellation."""
    with limit:
        try:
            await clock.passes(11.0)
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            answer = "answer"
    assert ("answer", 0) == (answer, asyncio.current_task().cancelling())
    await clock.passes(11.0)


async def test_nothing_is_left_after_the_end(limit, clock):
    """There is no timer any more."""
    with limit:
        pass
    limit.stop()
    await clock.passes(11.0)
    assert limit._timer is None
