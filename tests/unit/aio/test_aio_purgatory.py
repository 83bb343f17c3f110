"""The differences between the two ways to drive a purgatory for asyncio."""

import asyncio
import contextlib
import gc
import threading
import weakref
from unittest.mock import Mock

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome
from purgatory.aio import AsyncPurgatory, LoopTimer
from purgatory.aio._mailbox import Mailbox
from purgatory.aio._shutdown import _retry
from tests.support import Waiting, in_thread, park, raising, satisfy
from tests.support.loops import Async, parked, until
from timer import SystemTimer


async def test_everything_on_one_loop(run):
    """On one loop, checks asked for by other threads and expiries run on the loop. No thread of its own is started."""
    seen, before = [], set(threading.enumerate())

    def note(_):
        seen.append(threading.get_ident())

    async with AsyncPurgatory("loop") as purgatory:
        operation = Waiting(complete=note, look=note)
        (task,) = await parked(purgatory, operation)
        assert {"purgatory-watchdog"} >= {thread.name for thread in set(threading.enumerate()) - before}
        assert 0 == in_thread(satisfy, purgatory, "k", operation)
        assert not operation.is_completed
        assert Outcome.SATISFIED is await task
        assert Outcome.EXPIRED is await purgatory.park(Waiting(3, complete=note, expire=note), ["k"])
        assert {threading.get_ident()} == set(seen)


async def test_wait_for_is_false_when_the_time_is_up(purgatory):
    """``if await wait_for(...)`` is true if the predicate held, and false after the timeout and after a shutdown."""
    held = await purgatory.wait_for(lambda: "yes", keys=["k"], timeout_ms=0)
    late = await purgatory.wait_for(lambda: "", keys=["k"], timeout_ms=3)
    task = asyncio.create_task(purgatory.wait_for(lambda: "", keys=["k"], timeout_ms=60_000))
    await until(lambda: purgatory.parked)
    await purgatory.shutdown("cancel")
    outcomes = [held, late, await task]
    assert [Outcome.IMMEDIATE, Outcome.EXPIRED, Outcome.CANCELLED] == outcomes
    assert [True, False, False] == list(map(bool, outcomes))


async def test_many_threads_asking_for_a_key_cost_few_checks(run):
    """Other threads that ask for the same key before the loop gets to it are served by one check."""
    async with AsyncPurgatory("loop") as purgatory:
        operation = Waiting()
        (task,) = await parked(purgatory, operation)
        checks = operation.checks
        in_thread(lambda: [purgatory.check_and_complete("k") for _ in range(1000)])
        operation.ready = True
        assert Outcome.SATISFIED is await task
        assert checks + 1 == operation.checks


def test_loops_share_a_threaded_purgatory(run):
    """Several loops, each on its thread, await in one purgatory. A check wakes them all."""
    core = DelayedOperationPurgatory("shared")
    shared = AsyncPurgatory.over(core)
    state = []

    async def waiter():
        return await shared.wait_for(lambda: state, keys=["k"], timeout_ms=60_000)

    async def main():
        others = [asyncio.create_task(asyncio.to_thread(asyncio.run, waiter())) for _ in range(3)]
        own = asyncio.create_task(waiter())
        await until(lambda: core.parked == 4)
        state.append(1)
        assert 4 == shared.check_and_complete("k")
        assert [Outcome.SATISFIED] * 4 == await asyncio.gather(own, *others)
        await shared.shutdown()

    run(main)
    assert not core.is_closed
    core.shutdown()


async def test_shutdown_over_a_purgatory_leaves_its_own_operations(run):
    """Shutting down settles what was awaited through it. The purgatory beneath, and what was parked there, stay."""
    with DelayedOperationPurgatory("core") as core:
        beneath = park(core)
        async with AsyncPurgatory.over(core) as purgatory:
            (task,) = await parked(purgatory, Waiting())
        assert Outcome.EXPIRED is await task
        assert (None, False) == (beneath.outcome, core.is_closed)
        assert 1 == core.timer.size


async def test_purgatory_beneath_may_be_shut_down_first(run):
    """A waiting task is answered when the thread-based purgatory is shut down beneath."""
    core = DelayedOperationPurgatory("core")
    async with AsyncPurgatory.over(core) as purgatory:
        (task,) = await parked(purgatory, Waiting())
        await asyncio.to_thread(core.shutdown)
        assert Outcome.EXPIRED is await task
        assert purgatory.is_closed


async def test_purgatories_share_a_timer(run):
    """Two purgatories on one loop share a timer. Neither shuts it down."""
    with LoopTimer() as timer:
        async with AsyncPurgatory("a", timer=timer) as a, AsyncPurgatory("b", timer=timer) as b:
            tasks = [asyncio.create_task(each.park(Waiting(3), ["k"])) for each in (a, b)]
            assert [Outcome.EXPIRED] * 2 == await asyncio.gather(*tasks)
        assert not timer.is_closed


@pytest.mark.parametrize(
    "make",
    [
        lambda: AsyncPurgatory("x", timer=SystemTimer()),
        lambda: AsyncPurgatory("x", timer="soon"),
        lambda: AsyncPurgatory("x", slice_size=0),
        lambda: AsyncPurgatory(""),
        lambda: AsyncPurgatory.over("core"),
        lambda: AsyncPurgatory.over(DelayedOperationPurgatory("x", reaper_enabled=False), slice_size=True),
    ],
)
def test_bad_settings_raise(make):
    """A setting that cannot work is rejected."""
    with pytest.raises(InvalidSetting):
        make()


def test_check_before_anyone_has_waited():
    """A check of a purgatory that no loop has used yet finds nothing."""
    assert 0 == AsyncPurgatory("idle").check_and_complete("k")


async def test_finished_operation_is_let_go(run):
    """Nothing refers to an operation once the task that awaited it has dropped it."""
    async with AsyncPurgatory("loop") as purgatory:
        operation = Waiting(ready=True)
        await purgatory.park(operation, ["k"])
        gone = weakref.ref(operation)
        del operation
        gc.collect()
        assert gone() is None


async def test_mailbox_wakes_its_loop_once_for_many(run):
    """Many messages from a thread cost one wake-up, keep their order, and one that fails stops none."""
    got, errors, loop = [], [], asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    counting = Mock(wraps=loop)
    mailbox = Mailbox(counting, 10)

    def post_all():
        mailbox.post(lambda: 1 / 0)
        for number in range(95):
            mailbox.post(got.append, number)

    in_thread(post_all)
    await until(lambda: len(got) == 95)
    assert (list(range(95)), 1, 1) == (got, counting.call_soon_threadsafe.call_count, len(errors))


def test_mailbox_of_a_closed_loop_swallows():
    """Messages to a loop that is closed are dropped without a fuss."""
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop, 10)
    loop.close()
    mailbox.post(print, "never")
    mailbox.post(print, "never")
    assert not mailbox._messages


def test_interrupted_delivery_goes_on():
    """An interrupt that ends a delivery leaves the messages behind it due."""
    loop, got = asyncio.new_event_loop(), []
    with contextlib.closing(loop):
        mailbox = Mailbox(loop, 10)
        mailbox.post(raising(KeyboardInterrupt))
        mailbox.post(got.append, 1)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        loop.run_until_complete(asyncio.sleep(0))
        assert [1] == got


def test_interrupted_request_is_made_again_by_the_next():
    """An interrupt that ends a request for a check is not taken for a request that was made."""
    loop, operation = asyncio.new_event_loop(), Waiting(30_000)

    def check_twice():
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop, "call_soon_threadsafe", raising(KeyboardInterrupt))
            purgatory.check_and_complete("k")
        purgatory.check_and_complete("k")

    with contextlib.closing(loop):
        purgatory = AsyncPurgatory("loop")
        (task,) = loop.run_until_complete(parked(purgatory, operation))
        operation.ready = True
        in_thread(check_twice)
        assert Outcome.SATISFIED is loop.run_until_complete(asyncio.wait_for(task, 20))
        loop.run_until_complete(purgatory.shutdown())


async def test_check_after_the_shutdown_is_logged(run, logs):
    """A check on a closed purgatory of a loop completes nothing, and the log says so at level info."""
    purgatory = AsyncPurgatory("closed")
    await purgatory.shutdown()
    assert 0 == purgatory.check_and_complete("k")
    assert ["info"] == [entry["log_level"] for entry in logs if entry["event"] == "checked_when_closed"]


async def test_stuck_operation_that_ends_after_the_shutdown_wakes_its_task(purgatory):
    """An operation that a shutdown reported as stuck ends once its lock is free, and its task wakes."""
    lock = threading.Lock()
    operation = Waiting(lock=lock)
    (task,) = await parked(purgatory, operation)
    with lock:
        assert (operation,) == (await purgatory.shutdown(timeout_ms=20)).stuck
    assert Outcome.EXPIRED is await task
    assert purgatory._waiters not in purgatory.purgatory._observers._observers


async def test_hook_that_hangs_is_reported(purgatory):
    """A coroutine hook that runs until the timeout of the shutdown is in its report. A stuck operation is not."""
    lock, released = threading.Lock(), asyncio.Event()
    stuck = Waiting(lock=lock)
    tasks = await parked(purgatory, Async(complete=released.wait), stuck)
    with lock:
        report = await purgatory.shutdown(timeout_ms=30)
        assert ((stuck,), 1, True) == (report.stuck, report.running, report.timed_out)
        released.set()
    assert [Outcome.EXPIRED] * 2 == [await task for task in tasks]


async def test_stuck_operation_whose_lock_raises_does_not_stop_the_others(purgatory):
    """After a shutdown, every stuck operation is checked again, also if the lock of another one raises."""
    bad, good = locks = [Mock(**{"acquire.return_value": True}) for _ in range(2)]
    operations = [Waiting(lock=lock) for lock in locks]
    tasks = await parked(purgatory, *operations)
    bad.acquire.return_value = good.acquire.return_value = False
    assert set(operations) == set((await purgatory.shutdown(timeout_ms=20)).stuck)
    bad.acquire.side_effect = OSError("lost connection")
    await until(lambda: "try_complete" in purgatory.purgatory.callback_errors)
    for lock, task in ((good, tasks[1]), (bad, tasks[0])):
        lock.acquire.configure_mock(side_effect=None, return_value=True)
        assert Outcome.EXPIRED is await task


@pytest.mark.guarantee("shutdown")
async def test_interrupt_while_stuck_operations_are_checked_is_raised(run):
    """An interrupt ends the round of checks after a shutdown. The next round checks the operations that are left."""

    class Stuck:
        def __init__(self, *errors):
            self.errors = list(errors)
            self.outcome = None

        def maybe_try_complete(self):
            if self.errors:
                raise self.errors.pop()
            self.outcome = Outcome.EXPIRED

    operations = [Stuck(KeyboardInterrupt), Stuck()]
    with pytest.raises(KeyboardInterrupt):
        _retry(operations)
    await until(lambda: all(operation.outcome is not None for operation in operations))


@pytest.mark.parametrize("call", [lambda function, *args: function(*args), in_thread])
def test_started_operation_of_a_closed_loop_is_forgotten(call):
    """A started operation that completes after its loop was closed is not waited for, whichever thread completes it."""
    operation = Async()

    async def start():
        purgatory.start(operation, ["k"])

    with DelayedOperationPurgatory("threads") as core:
        purgatory = AsyncPurgatory.over(core)
        asyncio.run(start())
        assert 1 == call(satisfy, core, "k", operation)
        assert 0 == purgatory.waiting
