"""Gates under races: every permit comes back, none is used twice, and no deadline is early.

A million grants: ``GATE_GRANTS=150000 pytest tests/concurrency/test_gate_races.py``.
"""

import asyncio
import os
import random
import threading
import time

import pytest

from purgatory import PurgatoryClosed, WaitCancelled
from purgatory.gates import Gate, GateRejected, GateTimeout
from tests.support import run_threads

#: About how many permits are granted in each test.
GRANTS = int(os.environ.get("GATE_GRANTS", "4000"))

ORDERS = ("arrival", "priority", "fair")


class Guarded:
    """The thing behind the gate, which knows by itself how many are inside."""

    def __init__(self, most):
        self.most = most  # the largest number of permits so far
        self.inside = self.entered = self.early = 0
        self.lock = threading.Lock()

    def enter(self):
        with self.lock:
            self.inside += 1
            self.entered += 1
            assert self.inside <= self.most, f"{self.inside} inside, of {self.most}"

    def leave(self):
        with self.lock:
            self.inside -= 1

    def expired(self, began_s, timeout_ms):
        if time.monotonic() - began_s < timeout_ms / 1000:
            self.early += 1


def arguments(chance):
    """How a caller enters: often with too little time."""
    timeout_ms = chance.choice((None, 0, 1, 2, 5, 1_000))
    return {"timeout_ms": timeout_ms, "priority": chance.randrange(3), "tenant": chance.choice("abcd")}


def check_at_rest(gate, guarded, permits):
    """No permit is lost: all are free, and that many callers may enter at once."""
    assert (0, 0) == (guarded.inside, guarded.early)
    statistics = gate.statistics()
    assert (permits, 0, 0) == (statistics.permits, statistics.in_use, statistics.waiting)


async def call(gate, guarded, chance, grants):
    """A task that enters again and again."""
    while guarded.entered < grants:
        how = arguments(chance)
        began_s = time.monotonic()
        try:
            async with gate.enter(**how):
                guarded.enter()
                try:
                    await asyncio.sleep(0 if chance.randrange(30) else 0.0002)
                finally:
                    guarded.leave()
        except GateTimeout:
            guarded.expired(began_s, how["timeout_ms"])
        except GateRejected:
            await asyncio.sleep(0)


@pytest.mark.guarantee("permits come back")
@pytest.mark.parametrize("order", ORDERS)
def test_tasks_race(order):
    """Cancellations, deadlines and resizes meet grants on a loop, and no permit is lost or granted twice."""
    asyncio.run(tasks_race(order))


async def tasks_race(order):
    chance = random.Random(order)
    guarded = Guarded(8)
    gate = Gate("races", 4, max_waiting=40, order=order, weights={"a": 3} if order == "fair" else None)
    async with gate:
        tasks = [asyncio.create_task(call(gate, guarded, chance, GRANTS)) for _ in range(60)]
        while guarded.entered < GRANTS:
            number = chance.randrange(len(tasks))
            if tasks[number].done():
                await tasks[number]
            tasks[number].cancel()
            await asyncio.gather(tasks[number], return_exceptions=True)
            tasks[number] = asyncio.create_task(call(gate, guarded, chance, GRANTS))
            if not chance.randrange(8):
                gate.resize(chance.randrange(1, 9))
        await asyncio.gather(*tasks)
        gate.resize(5)
        assert gate.purgatory.totals().forced, "no caller waited"
        check_at_rest(gate, guarded, 5)


@pytest.mark.guarantee("permits come back")
@pytest.mark.parametrize("order", ORDERS)
def test_threads_race(order):
    """Cancelled waits, deadlines and resizes meet grants on threads, and no permit is lost or granted twice."""
    guarded = Guarded(4)

    def caller(seed):
        chance = random.Random(seed)
        while guarded.entered < GRANTS:
            how = arguments(chance)
            began_s = time.monotonic()
            try:
                with gate.enter(**how):
                    guarded.enter()
                    time.sleep(0 if chance.randrange(30) else 0.0002)
                    guarded.leave()
            except GateTimeout:
                guarded.expired(began_s, how["timeout_ms"])
            except (GateRejected, WaitCancelled):
                pass

    def meddler():
        chance = random.Random(order)
        while guarded.entered < GRANTS:
            gate.resize(chance.randrange(1, 5))
            for wait in gate.purgatory.operations()[:2]:
                wait.cancel()
            time.sleep(0.0002)

    with Gate("races", 2, max_waiting=5, order=order) as gate:
        run_threads(*(lambda seed=seed: caller(seed) for seed in range(6)), meddler, seconds=60 + GRANTS / 200)
        gate.resize(3)
        assert gate.purgatory.totals().forced, "no caller waited"
        check_at_rest(gate, guarded, 3)


@pytest.mark.guarantee("permits come back")
def test_tasks_and_threads_race_with_a_shutdown():
    """Tasks and threads share gates that are shut down under them, and every permit comes back."""
    asyncio.run(shutdown_race())


async def shutdown_race():
    guarded = Guarded(2)
    chance = random.Random(1)
    for _ in range(max(4, GRANTS // 400)):
        gate = Gate("races", 2, max_waiting=None)
        most = guarded.entered + 400

        def caller(gate=gate, most=most):
            chance = random.Random(most)
            try:
                while guarded.entered < most:
                    with gate.enter(timeout_ms=chance.choice((None, 1_000))):
                        guarded.enter()
                        guarded.leave()
            except PurgatoryClosed:
                pass

        threads = [asyncio.create_task(asyncio.to_thread(caller)) for _ in range(3)]
        tasks = [asyncio.create_task(call(gate, guarded, chance, most)) for _ in range(10)]
        await asyncio.sleep(chance.random() / 50)
        await gate.aclose(chance.choice(("expire", "cancel", "wait")))
        for ended in await asyncio.gather(*tasks, *threads, return_exceptions=True):
            assert ended is None or isinstance(ended, PurgatoryClosed)
        check_at_rest(gate, guarded, 2)
