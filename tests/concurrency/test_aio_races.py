"""Waiters on loops against threads: one outcome an operation, one answer a waiter, and every cancellation is raised."""

import asyncio
import collections
import functools
import random
import threading

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.aio import AsyncOperation, AsyncPurgatory
from tests.support import Waiting, run_threads
from tests.support.loops import until


class Counted(AsyncOperation):
    """Counts its hooks. They are coroutines."""

    def __init__(self, delay_ms):
        super().__init__(delay_ms)
        self.ready = False
        self.completed = self.expired = 0

    def try_complete(self):
        return self.ready and self.force_complete()

    async def on_complete(self):
        await asyncio.sleep(0)
        self.completed += 1

    async def on_expiration(self):
        assert self.completed == 1
        self.expired += 1


class Plain(Counted):
    """The same with plain hooks."""

    def on_complete(self):
        self.completed += 1

    def on_expiration(self):
        self.expired += 1


def check_once(operation, answer):
    """A waiter's answer fits the operation's one outcome, and so does the number of its hooks' calls."""
    outcome = operation.outcome
    assert outcome is not None
    assert isinstance(answer, asyncio.CancelledError) or answer is outcome
    assert (outcome is not Outcome.CANCELLED) == operation.completed
    assert (outcome is Outcome.EXPIRED) == operation.expired


@pytest.mark.parametrize("kind", [Plain, Counted])
async def test_completion_expiry_and_cancellation_race(opened, kind):
    """Events from a thread, deadlines and cancellations meet: one outcome each, no cancellation swallowed."""
    chance = random.Random(7)
    async with opened(slice_size=16) as purgatory:
        operations = [kind(chance.choice((1, 2, 3, 60_000))) for _ in range(300)]
        tasks = [
            asyncio.create_task(purgatory.park(operation, [number % 5, "all"]))
            for number, operation in enumerate(operations)
        ]

        def events():
            random_here = random.Random(11)
            for operation in random_here.sample(operations, len(operations)):
                if random_here.random() < 0.6:
                    operation.ready = True
                    purgatory.check_and_complete(random_here.choice([0, 1, 2, 3, 4, "all"]))

        thread = threading.Thread(target=events)
        thread.start()
        cancelled = set()
        for number in chance.sample(range(300), 150):
            if tasks[number].cancel():
                cancelled.add(number)
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        await asyncio.to_thread(thread.join)
        for operation in operations:
            operation.ready = True
        purgatory.check_and_complete("all")
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled does not wait for hooks that another thread has begun.
        await until(lambda: purgatory.waiting == 0 and not purgatory.purgatory._shards.completing())
        for number, (operation, answer) in enumerate(zip(operations, answers, strict=True)):
            if operation.outcome is None:  # cancelled before its task had begun
                assert number in cancelled
                assert not operation.keys
                continue
            check_once(operation, answer)
            # A task that accepted a cancellation ends cancelled: the error was not swallowed.
            assert (number in cancelled) == isinstance(answer, asyncio.CancelledError)
        assert (0, 0) == (purgatory.purgatory.parked, purgatory.timer.size)


async def test_no_wake_up_is_lost(purgatory):
    """Threads set states and check keys while tasks come to wait: everyone is woken by an event."""
    states = [False] * 200

    def events():
        for number in range(200):
            states[number] = True
            purgatory.check_and_complete(number % 7)

    async def waiter(number):
        return await purgatory.wait_for(lambda: states[number], keys=[number % 7], timeout_ms=50_000)

    thread = threading.Thread(target=events)
    thread.start()
    tasks = []
    for number in range(200):
        tasks.append(asyncio.create_task(waiter(number)))
        if number % 9 == 0:
            await asyncio.sleep(0)
    outcomes = collections.Counter(await asyncio.gather(*tasks))
    await asyncio.to_thread(thread.join)
    assert 200 == outcomes[Outcome.IMMEDIATE] + outcomes[Outcome.SATISFIED]


async def test_cancelled_waiters_take_no_wake_up_from_others(purgatory):
    """In each round half of the waiters are cancelled at the moment of the event. The other half is woken."""
    for round_ in range(30):
        operations = [Waiting() for _ in range(6)]
        tasks = [asyncio.create_task(purgatory.park(operation, ["k"])) for operation in operations]
        await until(lambda operations=operations: all(operation.keys for operation in operations))
        for operation in operations:
            operation.ready = True
        checking = asyncio.to_thread(purgatory.check_and_complete, "k")
        if round_ % 2:
            checking = asyncio.create_task(checking)
        for task in tasks[::2]:
            task.cancel()
        await checking
        assert [Outcome.SATISFIED] * 3 == await asyncio.gather(*tasks[1::2])
        for task in tasks[::2]:
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_shutdown_while_tasks_come_to_wait(opened):
    """A shutdown among tasks that park: each is answered or rejected, none is left."""
    async with opened(slice_size=8) as purgatory:
        answers = collections.Counter()

        async def waiter():
            for _ in range(20):
                try:
                    answers[await purgatory.park(Waiting(), ["k"])] += 1
                except RuntimeError:
                    answers["refused"] += 1
                    return

        tasks = [asyncio.create_task(waiter()) for _ in range(50)]
        await asyncio.sleep(0.002)
        report = await purgatory.shutdown()
        await asyncio.gather(*tasks)
        assert (0, ()) == (purgatory.waiting, report.stuck)
        assert {Outcome.EXPIRED: 50, "refused": 50} == dict(answers)


def test_loops_and_threads_on_one_purgatory():
    """Three loops wait in one purgatory while two threads complete: everyone on every loop is answered."""
    with DelayedOperationPurgatory("shared") as core:
        shared = AsyncPurgatory.over(core, slice_size=32)
        states = {(loop, number): False for loop in range(3) for number in range(100)}

        async def wait_on_loop(loop):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        shared.wait_for(
                            functools.partial(states.get, (loop, number)), keys=[number % 3], timeout_ms=50_000
                        )
                    )
                    for number in range(100)
                ]
            return collections.Counter(task.result() for task in tasks)

        def on_a_thread(loop):
            return asyncio.run(wait_on_loop(loop))

        def complete(offset):
            for place in list(states)[offset::2]:
                states[place] = True
                shared.check_and_complete(place[1] % 3)

        results = run_threads(
            *[functools.partial(on_a_thread, loop) for loop in range(3)],
            *[functools.partial(complete, offset) for offset in range(2)],
        )
        for outcomes in results[:3]:
            assert 100 == outcomes[Outcome.IMMEDIATE] + outcomes[Outcome.SATISFIED]
        assert 0 == core.parked


def test_loop_that_closes_with_waiters_harms_nobody():
    """A loop that is torn down with tasks still waiting takes their operations out. The purgatory goes on."""
    with DelayedOperationPurgatory("shared") as core:
        shared = AsyncPurgatory.over(core)
        operations = [Waiting() for _ in range(20)]

        async def leave_waiting():
            for operation in operations:
                asyncio.ensure_future(shared.park(operation, ["k"]))
            await until(lambda: core.parked == 20)

        asyncio.run(leave_waiting())  # which cancels what is left
        assert {Outcome.CANCELLED} == {operation.outcome for operation in operations}
        assert (0, 0) == (core.parked, shared.waiting)
        again = Waiting(ready=True)
        assert Outcome.IMMEDIATE is asyncio.run(shared.park(again, ["k"]))
