"""The code on the recipes' pages about leases, barriers, quorums, approvals and others, as it stands, and pressed."""

import asyncio
import contextlib
import importlib
import itertools
import json
import random
import re
import sys

import httpx
import pytest

from purgatory import PurgatoryClosed
from purgatory.aio import AsyncPurgatory
from purgatory.testing import Purgatories
from tests.support.loops import until
from tests.support.served import ROOT, python_files

pytestmark = pytest.mark.usefixtures("shut_down_after")

NAMES = ("approvals", "barrier", "correlation", "leases", "observers", "periodic", "quorum")
PAGES = {name: ROOT / "docs/recipes" / f"{name}.md" for name in NAMES}
FILES = {name: dict(python_files(page)) for name, page in PAGES.items()}


def blocks(page):
    """The blocks of a page that are no files."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGES[page].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in found if block not in FILES[page].values()]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import one of a page's files, which runs what it asserts."""
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set()

    def load(page, name):
        for file, text in FILES[page].items():
            (tmp_path / file).write_text(text, encoding="utf-8")
            loaded.add(file.removesuffix(".py"))
        return importlib.import_module(name)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("page", "name"), [(page, name) for page in NAMES for name in FILES[page]])
def test_file_on_a_page_runs(load, page, name):
    """A file on a page runs as it stands, and what it asserts holds."""
    load(page, name.removesuffix(".py"))


@pytest.mark.parametrize(("page", "number"), [(page, number) for page in NAMES for number in range(len(blocks(page)))])
def test_block_on_a_page_runs(page, number):
    """A block on a page runs as it stands, and what it asserts holds."""
    block = blocks(page)[number]
    assert "assert " in block
    exec(compile(block, f"{page}.md", "exec"), {"__name__": "page"})


def test_leases_are_granted_in_order_of_arrival(load):
    """Of many callers, each gets the lock after the one before it, with a higher token, although some give up."""
    page = load("leases", "leases")

    async def main():
        granted = []

        async def caller(number, locks):
            lease = await locks.acquire("door", ttl_ms=60_000, timeout_ms=60_000)
            granted.append((number, lease.token))
            await asyncio.sleep(0)
            assert lease.release()

        async with page.Locks() as locks:
            tasks = [asyncio.create_task(caller(number, locks)) for number in range(600)]  # more than a slice
            await asyncio.sleep(0)
            for task in tasks[1::3]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not locks.held
            assert not locks.leases.parked
        numbers = [number for number, _ in granted]
        assert sorted(numbers) == numbers
        assert [number for number in range(600) if number % 3 != 1] == numbers
        assert sorted(token for _, token in granted) == [token for _, token in granted]

    asyncio.run(main())


def test_lease_is_held_by_one(load):
    """Callers that are cancelled at random, leases that run out and a store that checks tokens: never two holders."""
    page, seeded = load("leases", "leases"), random.Random(7)

    async def main():
        inside, highest = set(), 0

        async def caller(locks):
            nonlocal highest
            with contextlib.suppress(TimeoutError):
                lease = await locks.acquire(
                    "door", ttl_ms=seeded.choice([2, 60_000]), timeout_ms=seeded.choice([1, 60_000])
                )
                inside.intersection_update({held.token for held in locks.held.values()})  # those that ran out
                assert not inside
                assert lease.token > highest
                inside.add(lease.token)
                highest = lease.token
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(seeded.choice([0, 0, 0.004]))
                inside.discard(lease.token)
                lease.release()

        async with page.Locks() as locks:
            tasks = [asyncio.create_task(caller(locks)) for _ in range(300)]
            while not all(task.done() for task in tasks):
                seeded.choice(tasks).cancel()
                await asyncio.sleep(0.001)
            failed = [task for task in tasks if not task.cancelled() and task.exception() is not None]
            assert [] == failed
            await until(lambda: not locks.held)

    asyncio.run(main())


def test_leases_end_with_the_shutdown(load):
    """A shutdown ends the waits first, so no lease is granted after it began."""
    page = load("leases", "leases")

    async def main():
        locks = page.Locks()
        lease = await locks.acquire("door", ttl_ms=60_000, timeout_ms=0)
        waiting = asyncio.create_task(locks.acquire("door", ttl_ms=60_000, timeout_ms=60_000))
        await asyncio.sleep(0)
        async with locks:
            pass
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], PurgatoryClosed)
        assert not lease.renew()
        assert locks.find(lease.token) is None

    asyncio.run(main())


def test_leases_over_http(load):
    """Clients that take the lock, renew it, lose it and hang up in the line: one holder at a time, in order."""
    app = load("leases", "service").app

    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client, lifespan_of(app):
            first = (await client.post("/locks/door", params={"ttl_ms": 60_000})).json()
            assert 423 == (await client.post("/locks/door", params={"timeout_ms": 1})).status_code
            waiting = [asyncio.ensure_future(client.post("/locks/door", params={"ttl_ms": 5})) for _ in range(2)]
            await until(lambda: 2 == sys.modules["service"].locks.waits.parked)
            assert 200 == (await client.put(f"/locks/door/{first}")).status_code
            assert 409 == (await client.put(f"/locks/window/{first}")).status_code
            assert 200 == (await client.delete(f"/locks/door/{first}")).status_code
            second, third = [answer.json() for answer in await asyncio.gather(*waiting)]  # the second is not renewed
            assert first < second < third
            for late in (first, second):
                assert 409 == (await client.delete(f"/locks/door/{late}")).status_code

    asyncio.run(main())


def test_barrier_lets_whole_groups_go(load):
    """Members that come, give up and are cancelled at random: each group has its size, and no member is in two."""
    page, seeded = load("barrier", "barrier"), random.Random(7)

    async def main():
        groups = []

        async def member(number, barrier):
            with contextlib.suppress(TimeoutError):
                groups.append(tuple(await barrier.arrive(number, timeout_ms=seeded.choice([1, 3, 100]))))

        async with AsyncPurgatory("barrier") as purgatory:
            barrier = page.Barrier(purgatory, size=5)
            tasks = []
            for number in range(1_000):
                tasks.append(asyncio.create_task(member(number, barrier)))
                if number % 7 == 0:
                    await asyncio.sleep(0.001)
                    seeded.choice(tasks).cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [] == barrier.meeting.arrivals
            assert not purgatory.parked
        assert {5} == {len(set(group)) for group in groups}
        met = [number for group in set(groups) for number in group]
        assert len(set(met)) == len(met)

    asyncio.run(main())


def test_approval_has_one_decision(load):
    """Of two people one decides, the other one gets 409, and every poll gets the decision."""
    app = load("approvals", "service").app

    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client, lifespan_of(app):
            asked = (await client.post("/approvals")).json()
            polls = [asyncio.ensure_future(client.get(f"/approvals/{asked}")) for _ in range(3)]
            await asyncio.sleep(0.05)
            decisions = [client.post(f"/approvals/{asked}/{word}") for word in ("approved", "rejected")]
            assert [200, 409] == sorted([answer.status_code for answer in await asyncio.gather(*decisions)])
            (decision,) = {answer.json() for answer in await asyncio.gather(*polls)}
            assert decision in {"approved", "rejected"}
            late = (await client.post("/approvals", params={"timeout_ms": 10})).json()
            assert "expired" == (await client.get(f"/approvals/{late}")).json()
            assert 409 == (await client.post(f"/approvals/{late}/approved")).status_code
            assert 404 == (await client.get("/approvals/unknown")).status_code
            assert 404 == (await client.post("/approvals/unknown/approved")).status_code

    asyncio.run(main())


@contextlib.asynccontextmanager
async def lifespan_of(app):
    async with app.router.lifespan_context(app):
        yield


@contextlib.asynccontextmanager
async def connected(page, answer):
    """A client of the page, and a server that answers each request as a function says."""

    async def serve(reader, writer):
        async for line in reader:
            request = json.loads(line)
            if request["method"] == "close":
                break
            for message in answer(request):
                writer.write(json.dumps(message).encode() + b"\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        client = page.Client(reader, writer)
        reading = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            writer.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def test_calls_get_their_answers_in_any_order(load):
    """A thousand calls at once: each gets its own answer, and nothing is left."""
    page = load("correlation", "client")
    held = []

    def answer(request):  # every tenth request answers the last ten, the last one first
        held.append(request)
        if len(held) == 10:
            for each in reversed(held):
                yield {"id": each["id"], "result": each["method"]}
            held.clear()

    async def main():
        async with connected(page, answer) as client:
            results = await asyncio.gather(*(client.call(f"method {number}") for number in range(1_000)))
            assert [f"method {number}" for number in range(1_000)] == results
            assert (0, 0) == (client.pending.parked, client.pending.waiting)

    asyncio.run(main())


def test_calls_without_an_answer_leave_nothing(load):
    """A call ends by its deadline, with its task, and with the connection. An answer that comes late is dropped."""
    page = load("correlation", "client")

    def answer(request):
        if request["method"] == "echo":
            yield {"id": 1, "result": "late"}
            yield {"id": request["id"], "result": "echo"}

    async def main():
        async with connected(page, answer) as client:
            with pytest.raises(TimeoutError, match="no answer to silent"):
                await client.call("silent", timeout_ms=5)
            assert "echo" == await client.call("echo")
            waiting = asyncio.create_task(client.call("silent"))
            await until(lambda: client.pending.parked)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert (0, 0) == (client.pending.parked, client.pending.waiting)
            calls = [asyncio.create_task(client.call(method)) for method in ("silent", "silent", "close")]
            assert {ConnectionError} == {type(end) for end in await asyncio.gather(*calls, return_exceptions=True)}
            with pytest.raises((PurgatoryClosed, ConnectionError)):
                await client.call("silent")

    asyncio.run(main())


def test_periods_do_not_drift(load):
    """An hour of seconds is 3,600 calls, and one that raises does not end them."""
    page = load("periodic", "periodic")
    calls = itertools.count()

    def work(key):
        if next(calls) % 2:
            raise ValueError(key)

    async def main():
        async with Purgatories() as purgatories:
            ticks = purgatories.make_async("ticks")
            page.every(ticks, "ann", 1_000, work)
            for _ in range(3_600):
                await purgatories.advance_async(1_000)
            ticks.cancel_for_key("ann")
            assert {("ticks", "on_expiration"): 1_800} == purgatories.take_errors()

    asyncio.run(main())
    assert 3_600 == next(calls)


def test_work_may_end_its_own_task(load):
    """``cancel_for_key`` in the work of a periodic task is its end."""
    page = load("periodic", "periodic")

    async def main():
        async with Purgatories() as purgatories:
            ticks = purgatories.make_async("ticks")
            page.every(ticks, "ann", 1_000, ticks.cancel_for_key)
            await purgatories.advance_async(5_000)
            assert not ticks.parked

    asyncio.run(main())
