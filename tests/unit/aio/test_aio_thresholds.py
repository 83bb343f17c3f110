"""Tasks that await numbers that rise."""

import asyncio
import traceback

import pytest

from purgatory import (
    InvalidSetting,
    PurgatoryClosed,
    PurgatoryFull,
    UnhashableKey,
    WaitCancelled,
    WaitDrained,
)
from purgatory.aio import AsyncThresholdPurgatory, NoRunningLoop
from purgatory.testing import Purgatories
from tests.support import in_thread
from tests.support.loops import until
from timer import DelayTypeError


@pytest.fixture
def watermark(run):
    return AsyncThresholdPurgatory("watermark")


async def waiting_for(watermark, *thresholds, keys=(None,)):
    """Tasks that wait for these thresholds, each under each key."""
    waiting = watermark.num_waiting + len(thresholds) * len(keys)
    tasks = [
        asyncio.create_task(watermark.wait(at, timeout_ms=60_000, **({} if key is None else {"key": key})))
        for at in thresholds
        for key in keys
    ]
    await until(lambda: watermark.num_waiting == waiting)
    return tasks


async def test_value_reaches_some_thresholds(run, watermark):
    """A value completes the waits at or below it, each with that value. The others keep waiting."""
    waiting = await waiting_for(watermark, 1, 5, 5, 9)
    assert 0 == watermark.maybe_complete(0)
    assert 3 == watermark.maybe_complete(7)
    assert [7, 7, 7] == [await task for task in waiting[:3]]
    assert not waiting[3].done()
    assert 0 == watermark.maybe_complete(3)
    assert (7, 7) == (watermark.value, await watermark.wait(6, timeout_ms=5))
    assert 1 == watermark.maybe_complete(9)
    assert 9 == await waiting[3]


async def test_event_asks_only_the_waits_that_it_completes(run, watermark):
    """An event costs what it completes, not what waits: no other operation is checked."""
    waiting = await waiting_for(watermark, *range(1, 101))
    operations = watermark.purgatory.operations()
    before = sum(operation.checks for operation in operations)
    assert 1 == watermark.maybe_complete(1)
    assert before + 1 == sum(operation.checks for operation in operations)
    watermark.complete_all(5)
    assert [1] + [5] * 99 == [await task for task in waiting]


async def test_numbers_have_keys(run):
    """Each key has a number of its own, and the number without a key is another."""
    async with AsyncThresholdPurgatory("watermarks", value=3) as watermarks:
        one, two = await waiting_for(watermarks, 3, keys=["one", "two"])
        assert 1 == watermarks.maybe_complete(4, key="one")
        assert (4, False) == (await one, two.done())
        assert (3, 4, None) == (watermarks.value, watermarks.value_of("one"), watermarks.value_of("two"))
        assert 1 == watermarks.forget(LookupError("deleted"), key="two")
        with pytest.raises(LookupError, match="deleted"):
            await two
        assert [None, "one"] == watermarks.keys()
        with pytest.raises(UnhashableKey):
            await watermarks.wait(1, timeout_ms=5, key=[])


@pytest.mark.parametrize("end", ["fail", "fail_all", "forget"])
async def test_an_error_that_many_waits_raise_keeps_its_traceback(run, end, watermark):
    """The traceback has the place where the error came from and the wait, also for the hundredth task."""

    def origin():
        raise OSError("no")

    waiting = await waiting_for(watermark, *[1] * 100)
    with pytest.raises(OSError, match="no") as raised:
        origin()
    assert 100 == getattr(watermark, end)(raised.value)
    await asyncio.wait(waiting)
    assert {raised.value} == {task.exception() for task in waiting}
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    frames = [name for name in frames if name != "__step"]  # a task's own, where asyncio is pure Python
    assert ["wait", test_an_error_that_many_waits_raise_keeps_its_traceback.__name__, "origin"] == frames


async def test_time_is_up_by_hand():
    """A wait raises ``TimeoutError`` at its deadline, on a clock that the test moves."""
    async with Purgatories() as purgatories:
        watermark = purgatories.make_async_threshold(value=1)
        waiting = asyncio.create_task(watermark.wait(3, timeout_ms=500))
        assert not await purgatories.advance_async(499)
        assert await purgatories.advance_async(1)
        with pytest.raises(TimeoutError, match="did not reach 3 within 500 ms"):
            await waiting


async def test_cancelled_task_is_taken_out(run, watermark):
    """Cancelling the task takes the wait out, and nothing is left of it."""
    (waiting,) = await waiting_for(watermark, 3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (0, 0) == (watermark.num_waiting, watermark.purgatory.waiting)


@pytest.mark.parametrize(("drain", "error"), [("expire", WaitDrained), ("cancel", PurgatoryClosed)])
async def test_shutdown_answers_every_wait(run, watermark, drain, error):
    """A shutdown ends the waits with an error that says so, and rejects new ones."""
    watermark.maybe_complete(7)
    (waiting,) = await waiting_for(watermark, 9)
    await watermark.shutdown(drain)
    with pytest.raises(error, match="watermark"):
        await waiting
    for threshold in (9, 7):
        with pytest.raises(PurgatoryClosed):
            await watermark.wait(threshold, timeout_ms=5)


async def test_other_ends_are_told_apart(run):
    """A wait that is taken out raises ``WaitCancelled``, one too many ``PurgatoryFull``."""
    async with AsyncThresholdPurgatory("watermark", max_parked=1) as watermark:
        (waiting,) = await waiting_for(watermark, 3)
        with pytest.raises(PurgatoryFull):
            await watermark.wait(4, timeout_ms=5)
        assert 1 == len(watermark.purgatory.cancel_for_key(3))
        with pytest.raises(WaitCancelled):
            await waiting


async def test_bad_arguments_raise(run, watermark):
    """A number that is none is rejected, and a wait that is rejected adds no key."""
    for threshold in (2.5, "3"):
        with pytest.raises(InvalidSetting, match="threshold"):
            await watermark.wait(threshold, timeout_ms=5)
    with pytest.raises(InvalidSetting, match="value"):
        watermark.maybe_complete("3")
    with pytest.raises(DelayTypeError):
        await watermark.wait(3, timeout_ms="soon", key="new")
    assert "new" not in set(watermark.keys())


async def test_value_may_rise_on_another_thread(run, watermark):
    """``maybe_complete`` from another thread has the loop complete the waits, and loses none."""

    def rise():
        for value in range(1, 201):
            watermark.maybe_complete(value)

    rising = asyncio.create_task(asyncio.to_thread(rise))
    async with asyncio.timeout(30):
        values = await asyncio.gather(*(watermark.wait(at, timeout_ms=60_000) for at in range(1, 201)))
    await rising
    assert all(value >= at for at, value in enumerate(values, 1))
    with pytest.raises(NoRunningLoop):
        in_thread(lambda: watermark.wait(1, timeout_ms=5).send(None))


async def test_wait_without_a_deadline_ends_by_a_value(run, watermark):
    """With ``timeout_ms=None``, only a value, a cancellation or a shutdown ends the wait."""
    task = asyncio.create_task(watermark.wait(3, None))
    await until(lambda: 1 == watermark.num_waiting)
    watermark.maybe_complete(4)
    assert 4 == await task
    await watermark.shutdown()
