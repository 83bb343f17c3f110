"""The long-poll example as a process, with clients over sockets."""

import asyncio
import collections
import contextlib
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support.loops import loop_factory

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100


@pytest.fixture(autouse=True)
def enough_sockets():
    """A thousand connections take a thousand file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Server:
    """The example, running."""

    def __init__(self, process, url):
        self.process = process
        self.url = url
        self.output = ""

    def stop(self):
        """End it as an operator would. Its last output."""
        self.process.send_signal(signal.SIGTERM)
        self.output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@pytest.fixture(params=["asyncio", "uvloop"])
def kind(request):
    loop_factory(request.param)
    return request.param


@pytest.fixture
def served(kind):
    """Start the example: ``with served("--max-polls", "2") as server``."""

    @contextlib.contextmanager
    def start(*arguments):
        command = [sys.executable, "-m", "examples.longpoll", "--port", "0", *arguments]
        if kind == "uvloop":
            command.append("--uvloop")
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                for line in process.stdout:
                    if line.startswith("listening on "):
                        yield Server(process, line.split()[-1])
                        break
                else:
                    pytest.fail("the server did not start")
            finally:
                if process.poll() is None:
                    process.kill()

    return start


def clients(function):
    """Run an async test of clients against its server, bounded, with a session of unlimited connections."""

    def test(served):
        async def main(server):
            connector = aiohttp.TCPConnector(limit=0)
            async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(server.url, connector=connector) as session:
                await function(server, session)

        with served(*getattr(function, "arguments", ())) as server:
            asyncio.run(main(server))

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


async def parked(session, number):
    """Wait until a number of polls wait in the server."""
    give_up = time.monotonic() + PATIENCE_S
    while (stats := await get_stats(session))["waiting"] != number:
        assert time.monotonic() < give_up, stats
        await asyncio.sleep(0.01)


async def get_stats(session):
    async with session.get("/stats") as response:
        return await response.json()


async def poll(session, *topics, timeout_ms=50_000):
    """A long poll: its status and the bodies of its messages."""
    query = [("topic", topic) for topic in topics] + [("timeout_ms", str(timeout_ms))]
    async with session.get("/news", params=query) as response:
        if response.status != 200:
            return response.status, await response.text()
        return 200, [message["body"] for message in (await response.json())["messages"]]


async def publish(session, topic, body):
    async with session.post(f"/topics/{topic}", json=body) as response:
        assert 201 == response.status
        return (await response.json())["number"]


@clients
async def test_thousand_polls_are_answered_by_their_topics(server, session):
    """1,000 polls wait at the same time, each on a connection of its own. Each is answered by its topic, once."""
    tasks = [asyncio.create_task(poll(session, f"t{number % 50}:0", "all:0")) for number in range(1000)]
    await parked(session, 1000)
    for topic in range(25):
        assert 1 == await publish(session, f"t{topic}", {"from": topic})
    answers = await asyncio.gather(*[task for number, task in enumerate(tasks) if number % 50 < 25])
    assert collections.Counter({(200, topic): 20 for topic in range(25)}) == collections.Counter(
        (status, body["from"]) for status, (body,) in answers
    )
    assert 500 == (await get_stats(session))["waiting"]
    await publish(session, "all", "everyone")
    assert {(200, ("everyone",))} == {
        (status, tuple(bodies))
        for status, bodies in await asyncio.gather(*[task for n, task in enumerate(tasks) if n % 50 >= 25])
    }
    stats = await get_stats(session)
    assert (0, 1000) == (stats["waiting"], stats["satisfied"])


@clients
async def test_client_that_hangs_up_is_taken_out(server, session):
    """A poll whose client disconnects leaves the purgatory. The others stay and are answered."""
    leaving = [asyncio.create_task(poll(session, "t:0")) for _ in range(200)]
    staying = [asyncio.create_task(poll(session, "t:0")) for _ in range(50)]
    await parked(session, 250)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await parked(session, 50)
    await publish(session, "t", 1)
    assert [(200, [1])] * 50 == await asyncio.gather(*staying)
    stats = await get_stats(session)
    assert (200, 50, 0) == (stats["cancelled"], stats["satisfied"], stats["expired"])


@clients
async def test_shutdown_answers_all(server, session):
    """At SIGTERM every one of 1,000 waiting polls gets its answer, and the server ends cleanly."""
    tasks = [asyncio.create_task(poll(session, "t:0")) for _ in range(1000)]
    await parked(session, 1000)
    status = await asyncio.to_thread(server.stop)
    assert [(503, "shutting down\n")] * 1000 == await asyncio.gather(*tasks)
    assert 0 == status, server.output
    assert "0 polls satisfied, 1000 expired, 0 hung up" in server.output


@clients
async def test_poll_ends_when_its_time_is_up(server, session):
    """A poll without news is answered 204, not before its time."""
    began = time.monotonic()
    assert (204, "") == await poll(session, "t:0", timeout_ms=150)
    assert time.monotonic() - began >= 0.15


@clients
async def test_poll_that_has_news_waits_for_nothing(server, session):
    """What came since the last message seen is answered at once, from all topics asked for."""
    for number in range(1, 4):
        assert number == await publish(session, "a", f"a{number}")
    await publish(session, "b:c", "b1")
    assert (200, ["a3", "b1"]) == await poll(session, "a:2", "b:c:0")


@clients
async def test_bad_poll_is_refused(server, session):
    """A poll that makes no sense is answered 400, with what would."""
    for query in ("", "topic=a", "topic=:1", "topic=a:x", "topic=a:1&timeout_ms=-1", "topic=a:1&timeout_ms=soon"):
        async with session.get(f"/news?{query}") as response:
            assert 400 == response.status, query
            text = await response.text()
            assert "topic=" in text or "timeout_ms" in text


@clients
async def test_body_that_is_no_json_is_refused(server, session):
    """A message that is no JSON is answered 400."""
    async with session.post("/topics/a", data=b"\xff{") as response:
        assert 400 == response.status


async def _full(server, session):
    first = [asyncio.create_task(poll(session, "t:0")) for _ in range(2)]
    await parked(session, 2)
    async with session.get("/news?topic=t:0") as response:
        assert (503, "1") == (response.status, response.headers["Retry-After"])
    await publish(session, "t", 1)
    assert [(200, [1])] * 2 == await asyncio.gather(*first)


_full.arguments = ("--max-polls", "2")


def test_full_server_says_so(served):
    """Beyond its limit the server rejects polls at once, and those that wait go on waiting."""
    clients(_full)(served)
