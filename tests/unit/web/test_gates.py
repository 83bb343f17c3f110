"""Endpoints that enter a gate: hang-ups, rejections and the end of the server."""

import asyncio

import pytest
from starlette.requests import Request

from purgatory.gates import Gate
from purgatory.web import HungUp, LongPolls, Unavailable
from tests.support.loops import until


class Client:
    """The other end of a request, which hangs up on request."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self.messages.get)

    def hang_up(self):
        self.messages.put_nowait({"type": "http.disconnect"})


@pytest.fixture
def gate(mock_timer):
    """A gate with one permit."""
    return Gate("model", 1, max_waiting=1, order="fair", timer=mock_timer)


class Endpoint:
    """Endpoints of one application, which write down who is inside."""

    def __init__(self, gate):
        self.gate = gate
        self.polls = LongPolls(gate.async_purgatory)
        self.inside = []
        self.leave = asyncio.Event()

    async def run(self, client, name, **how):
        async with self.polls.enter(client.request, self.gate.enter(**{"timeout_ms": 1_000, **how})):
            self.inside.append(name)
            await self.leave.wait()

    async def start(self, name, client=None, **how):
        """Start a request, and wait until it is inside or waits."""
        waiting = self.gate.statistics().waiting
        task = asyncio.create_task(self.run(client or Client(), name, **how))
        await until(lambda: task.done() or name in self.inside or self.gate.statistics().waiting > waiting)
        return task


def state(gate):
    now = gate.statistics()
    return now.in_use, now.waiting


@pytest.mark.parametrize("end", ["hang-up", "cancellation"])
async def test_client_that_goes_leaves_the_queue(gate, end):
    """A request whose client hangs up, or that is cancelled, waits no longer and takes no permit."""
    endpoint, client = Endpoint(gate), Client()
    first = await endpoint.start("first")
    second = await endpoint.start("second", client)
    client.hang_up() if end == "hang-up" else second.cancel()
    with pytest.raises(HungUp if end == "hang-up" else asyncio.CancelledError):
        await second
    endpoint.leave.set()
    await first
    assert ["first"] == endpoint.inside
    assert (0, 0) == state(gate)


async def test_request_cancelled_at_its_grant_gives_the_permit_back(gate):
    """A request that is cancelled when its permit has come, and before it runs, does not keep it."""
    endpoint = Endpoint(gate)
    first = await endpoint.start("first")
    second = await endpoint.start("second")
    endpoint.leave.set()
    for _ in range(20):
        await asyncio.sleep(0)
        if gate.statistics().granted == 2:
            break
    await asyncio.sleep(0)  # the task that entered has ended, and the request has not resumed
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (0, 0) == state(gate)


@pytest.mark.parametrize(("tenant", "status_code"), [(None, 503), ("a", 429)])
async def test_rejected_request(gate, tenant, status_code):
    """A request that is rejected gets 503, and 429 if its tenant is known, with the gate's estimate."""
    endpoint = Endpoint(gate)
    first = await endpoint.start("first", tenant=tenant)
    with pytest.raises(Unavailable) as caught:
        await (await endpoint.start("second", tenant=tenant, timeout_ms=0))
    assert (status_code, "1") == (caught.value.status_code, caught.value.headers["Retry-After"])
    endpoint.leave.set()
    await first


async def test_request_whose_time_is_up(gate, mock_timer):
    """A request that waited until its deadline gets 503."""
    endpoint = Endpoint(gate)
    first = await endpoint.start("first")
    second = await endpoint.start("second")
    mock_timer.advance_clock(1_000)
    with pytest.raises(Unavailable) as caught:
        await second
    assert 503 == caught.value.status_code
    endpoint.leave.set()
    await first
    assert (0, 0) == state(gate)


async def test_server_that_stops_ends_the_waits(gate):
    """A shutdown answers the requests that wait with 503, and does not disturb the ones inside."""
    endpoint = Endpoint(gate)
    first = await endpoint.start("first")
    second = await endpoint.start("second")
    await gate.async_purgatory.shutdown()  # as drain_on_signals does
    with pytest.raises(Unavailable, match="stopping"):
        await second
    with pytest.raises(Unavailable, match="stopping"):
        await (await endpoint.start("third"))
    endpoint.leave.set()
    await first
    assert (0, 0) == state(gate)
