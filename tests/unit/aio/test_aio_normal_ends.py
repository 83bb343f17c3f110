"""Waits that say which ends are normal, on both kinds of asyncio's purgatory."""

import asyncio

import pytest

from purgatory import Outcome
from purgatory.aio import AsyncPurgatory, AsyncThresholdPurgatory
from tests.support.loops import until

EXPIRED = frozenset({Outcome.EXPIRED})


def wait(purgatory, timeout_ms=1, **options):
    return asyncio.create_task(purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=timeout_ms, **options))


async def test_wait_takes_normal_ends(purgatory):
    """An expiry counts as normal if the wait says so, and as a failure if it does not."""
    assert Outcome.EXPIRED is await wait(purgatory)
    assert Outcome.EXPIRED is await wait(purgatory, normal_ends={Outcome.EXPIRED})
    with pytest.raises(TimeoutError):
        await purgatory.wait_for_result(lambda: None, keys=["k"], timeout_ms=1, normal_ends=[Outcome.EXPIRED])
    totals = purgatory.totals()
    assert (3, 2) == (totals.expired, totals.expired_normally)


async def test_type_of_a_wait_is_named_after_its_normal_ends(purgatory):
    """Waits without a name whose normal ends differ have types of different names. A name that is given stays."""
    ends = [(), EXPIRED, {Outcome.EXPIRED, Outcome.CANCELLED}]
    tasks = [wait(purgatory, 60_000, normal_ends=each) for each in ends]
    tasks.append(wait(purgatory, 60_000, name="poll", normal_ends=EXPIRED))
    await until(lambda: 4 == purgatory.waiting)
    kinds = {type(operation) for operation in purgatory.operations()}
    purgatory.cancel_for_key("k")
    await asyncio.gather(*tasks)
    wanted = {"Until": (), "UntilOrExpired": EXPIRED, "UntilOrCancelledOrExpired": ends[2], "poll": EXPIRED}
    assert {name: frozenset(each) for name, each in wanted.items()} == {
        kind.__qualname__: kind.normal_ends for kind in kinds
    }


async def test_awaited_thresholds_take_normal_ends(mock_timer):
    """``AsyncThresholdPurgatory`` says for all of its waits which ends are normal."""
    async with AsyncThresholdPurgatory("t", timer=mock_timer, normal_ends=EXPIRED) as thresholds:
        late = asyncio.create_task(thresholds.wait(3, 5))
        await until(lambda: thresholds.num_waiting)
        mock_timer.advance_clock(5)
        with pytest.raises(TimeoutError):
            await late
        totals = thresholds.purgatory.totals()
        assert (1, 1) == (totals.expired, totals.expired_normally)


async def test_many_waits_share_a_type():
    """Waits that say the same have one type: it is made once."""
    async with AsyncPurgatory("p") as purgatory:
        tasks = [wait(purgatory, normal_ends=[Outcome.EXPIRED]) for _ in range(3)]
        await asyncio.sleep(0)
        kinds = {type(operation) for operation in purgatory.operations()}
        await asyncio.gather(*tasks)
        assert 1 == len(kinds)
