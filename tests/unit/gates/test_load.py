"""Gates under more load than they can serve, on a clock that is moved by hand."""

import asyncio
from types import SimpleNamespace

import pytest

from purgatory.gates import Gate, GateRejected, GateTimeout

PERMITS, HOLD_MS, TIMEOUT_MS = 32, 400, 1_000


def jain(shares):
    """1 if all shares are equal, and 1/n if one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


async def settle():
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture
def now_ms(mock_timer, monkeypatch):
    """The time, of which the gate's measurements take theirs."""
    begin_ns = mock_timer.now_ns()
    clock = SimpleNamespace(monotonic_ns=lambda: 1 + mock_timer.now_ns() - begin_ns)
    monkeypatch.setattr("purgatory.gates._permits.time", clock)
    return lambda: clock.monotonic_ns() // 1_000_000


async def test_1024_callers_on_32_permits(mock_timer, now_ms):
    """Whoever is not rejected at once is admitted within the deadline, and the permits are always in use."""
    waits, rejected, in_vain = [], [], []
    exits = {}

    async def caller(gate):
        came_ms = now_ms()
        try:
            async with gate.enter(timeout_ms=TIMEOUT_MS):
                waits.append(now_ms() - came_ms)
                leave = asyncio.Event()
                exits.setdefault(now_ms() + HOLD_MS, []).append(leave)
                await leave.wait()
        except GateRejected:
            rejected.append(now_ms() - came_ms)
        except GateTimeout:
            in_vain.append(now_ms() - came_ms)

    async with Gate("model", PERMITS, max_waiting=None, hold_ms=HOLD_MS, timer=mock_timer) as gate:
        tasks = []
        while len(tasks) < 1_024 or exits:
            tasks += [asyncio.create_task(caller(gate)) for _ in range(2 if len(tasks) < 1_024 else 0)]
            await settle()
            if len(tasks) in range(200, 1_024):
                assert PERMITS == gate.statistics().in_use
            mock_timer.advance_clock(1)
            for leave in exits.pop(now_ms(), ()):
                leave.set()
            await settle()
        await asyncio.gather(*tasks)

    assert 1_024 == len(waits) + len(rejected) + len(in_vain)
    assert {0} == set(rejected)
    assert len(in_vain) <= 0.01 * len(waits)
    assert sorted(waits)[round(0.99 * len(waits)) - 1] <= TIMEOUT_MS
    assert len(waits) > PERMITS * 2


@pytest.mark.guarantee("no caller starves")
@pytest.mark.parametrize(("order", "is_fair"), [("fair", True), ("arrival", False)])
async def test_flood_beside_nine_quiet_tenants(mock_timer, order, is_fair):
    """A tenant with 200 callers gets no more than nine with four each. By arrival it gets nearly all."""
    admitted = dict.fromkeys(["flood", *(f"quiet {number}" for number in range(9))], 0)

    async def caller(gate, tenant):
        while sum(admitted.values()) < 2_000:
            async with gate.enter(timeout_ms=None, tenant=tenant):
                admitted[tenant] += 1
                await asyncio.sleep(0)

    async with Gate("model", 4, max_waiting=None, order=order, timer=mock_timer) as gate:
        calls = [caller(gate, tenant) for tenant in admitted for _ in range(200 if tenant == "flood" else 4)]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # before the rest of the queue is served
        shares = list(admitted.values())
        await asyncio.gather(*tasks)
    assert is_fair == (jain(shares) > 0.95)
