"""Parking on a loop without awaiting: leases and sessions. The names of waits, and which of their ends are normal."""

import asyncio
import inspect

import pytest
import trio

from purgatory import (
    AlreadyParked,
    DelayedOperationPurgatory,
    InvalidOperation,
    NoKeys,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
)
from purgatory.aio import AsyncPurgatory, AsyncThresholdPurgatory, NoRunningLoop, WrongLoop
from tests.support import Waiting, in_thread, satisfy
from tests.support.loops import Async, until


async def test_operation_that_is_started_is_parked_at_once(purgatory):
    """``start`` parks before it returns, so that a keepalive directly after it counts. A check completes it.

    It returns True for an operation that completed at once, which is not parked.
    """
    lease = Waiting()
    assert purgatory.start(Waiting(ready=True), ["k"])
    assert not purgatory.start(lease, ["k"])
    assert (("k",), 1) == (lease.keys, purgatory.parked)
    assert lease.extend(120_000)
    assert 1 == satisfy(purgatory, "k", lease)
    assert ["complete"] == lease.history
    assert 0 == purgatory.waiting


async def test_started_operation_expires(purgatory):
    """An operation that is started expires at its deadline, with both hooks."""
    lease = Waiting(5)
    purgatory.start(lease, ["k"])
    await until(lambda: purgatory.waiting == 0)  # at the end of its hooks
    assert ["complete", "expire"] == lease.history


async def test_coroutine_hooks_of_a_started_operation_run(purgatory):
    """Coroutine hooks run in a task of the purgatory's own, in order. A shutdown waits for them."""
    expired, immediate, drained, cancelled = (Async(5), Async(ready=True), Async(), Async())
    completed, all_hooks = ["complete begins", "complete ends"], ["complete begins", "complete ends", "expire"]
    assert not purgatory.start(expired, ["k"])
    assert purgatory.start(immediate, ["k"])
    await until(lambda: (all_hooks, completed) == (expired.history, immediate.history))
    purgatory.start(drained, ["k"])
    purgatory.start(cancelled, ["k"])
    cancelled.cancel()
    await purgatory.shutdown()
    assert (all_hooks, []) == (drained.history, cancelled.history)
    assert 0 == purgatory.waiting


async def test_started_operation_is_settled_by_a_shutdown(purgatory):
    """A shutdown settles what was started through it, in its own purgatory and over another's."""
    lease = Waiting(60_000)
    purgatory.start(lease, ["k"])
    report = await purgatory.shutdown("cancel")
    assert (lease,) == report.cancelled
    assert Outcome.CANCELLED is lease.outcome
    with pytest.raises(PurgatoryClosed):
        purgatory.start(Waiting(), ["k"])


async def test_rejected_operation_is_not_started(opened):
    """What ``start`` rejects leaves nothing behind, and its coroutine hooks are as they were."""
    async with opened(max_parked=1) as purgatory:
        purgatory.start(Waiting(), ["k"])
        session = Async()
        rejected = [(session, ["k"], PurgatoryFull), (session, [], NoKeys), ("session", ["k"], InvalidOperation)]
        for operation, keys, error in rejected:
            with pytest.raises(error):
                purgatory.start(operation, keys)
        assert (1, 1) == (purgatory.parked, purgatory.waiting)
        purgatory.cancel_for_key("k")
        purgatory.start(session, ["k"])
        with pytest.raises(AlreadyParked):
            purgatory.start(session, ["k"])
        assert session.force_complete()
        await until(lambda: session.history)


async def test_operation_that_had_left_before_is_not_waited_for(purgatory):
    """An operation that was forced before it is started or parked leaves no entry, and ``park`` returns its outcome."""
    forced, another = Waiting(), Waiting()
    assert forced.force_complete()
    assert another.force_complete()
    assert not purgatory.start(forced, ["k"])
    assert Outcome.FORCED is await purgatory.park(another, ["k"])
    assert 0 == purgatory.waiting


async def test_many_threads_complete_started_operations_once(purgatory):
    """Operations that are started while threads check their keys complete once each, and nothing is left."""
    leases = [Waiting() for _ in range(100)]

    def check():
        while not all(lease.is_completed for lease in leases):
            for key in range(10):
                purgatory.check_and_complete(key)

    checking = asyncio.create_task(asyncio.to_thread(check))
    for number, lease in enumerate(leases):
        purgatory.start(lease, [number % 10])
        lease.ready = True
        await asyncio.sleep(0)
    await checking
    await until(lambda: purgatory.waiting == 0)
    assert [["complete"]] * 100 == [lease.history for lease in leases]


async def test_waits_can_have_names(purgatory):
    """``name`` names the type of the operation, which logs, metrics, spans and the journal show."""
    names = ({"name": "fetch"}, {}, {"name": "fetch"})
    waits = [purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=60_000, **name) for name in names]
    waiting = [asyncio.create_task(wait) for wait in waits]
    result = asyncio.create_task(purgatory.wait_for_result(list.pop, keys=["k"], timeout_ms=60_000, name="take"))
    result.cancel()
    await until(lambda: 3 == purgatory.parked)
    types = [type(operation) for operation in purgatory.operations_for_key("k")]
    assert ["fetch", "Until", "fetch"] == [kind.__qualname__ for kind in types]
    assert types[0] is types[2]
    purgatory.cancel_for_key("k")
    assert [Outcome.CANCELLED] * 3 == await asyncio.gather(*waiting)


async def test_nothing_found_names_purgatory_and_keys(purgatory):
    """The ``TimeoutError`` of ``wait_for_result`` says where and for what it waited."""
    with pytest.raises(TimeoutError, match=r"purgatory 'test' found nothing under 'a', 3 within 5 ms"):
        await purgatory.wait_for_result(lambda: None, keys=["a", 3], timeout_ms=5)


def test_trio_is_told_what_to_do():
    """On trio, where no asyncio loop runs, the error says what to do instead."""

    async def main():
        await AsyncPurgatory("polls").wait_for(lambda: True, keys=["k"], timeout_ms=5)

    with pytest.raises(NoRunningLoop, match=r"'polls' needs a running asyncio loop; this is trio; .*trio\.Event"):
        trio.run(main)


def test_plain_code_is_told_what_to_do():
    """Without a loop the error says what to do. Trio being imported does not matter."""
    purgatory = AsyncPurgatory("polls")
    with pytest.raises(NoRunningLoop, match="call it from a coroutine"):
        purgatory.start(Waiting(), ["k"])
    assert isinstance(NoRunningLoop("polls", "x"), RuntimeError)


def test_purgatory_belongs_to_one_loop():
    """``start`` on another loop, or on a thread beside the loop, is rejected. ``park`` says what to use instead."""

    async def first(purgatory):
        purgatory.start(Waiting(5), ["k"])
        with pytest.raises(NoRunningLoop):
            in_thread(purgatory.start, Waiting(), ["k"])

    async def second(purgatory):
        for call in (purgatory.park, purgatory.start):
            with pytest.raises(WrongLoop, match="over"):
                await call(Waiting(), ["k"])

    purgatory = AsyncPurgatory("one")
    asyncio.run(first(purgatory))
    asyncio.run(second(purgatory))


def test_settings_are_those_of_the_core():
    """Each setting of the core can be passed, with its default, except those about its timer's thread."""
    ours, core = (
        {name: setting.default for name, setting in inspect.signature(kind).parameters.items()}
        for kind in (AsyncPurgatory, DelayedOperationPurgatory)
    )
    assert {"slice_size": 512} == dict(ours.items() - core.items())
    assert {"reaper_enabled": True, "timer_enabled": True} == dict(core.items() - ours.items())


# -- normal ends

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
    """Waits without a name have one type per set of normal ends, named after it. A name that is given stays."""
    ends = [(), EXPIRED, {Outcome.EXPIRED, Outcome.CANCELLED}]
    tasks = [wait(purgatory, 60_000, normal_ends=each) for each in (*ends, EXPIRED)]
    tasks.append(wait(purgatory, 60_000, name="poll", normal_ends=EXPIRED))
    await until(lambda: 5 == purgatory.waiting)
    kinds = {type(operation) for operation in purgatory.operations()}
    assert 4 == len(kinds)
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
