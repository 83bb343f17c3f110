"""Long polls in several processes, with a real Redis between them."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import redis

from tests.support.served import free_port, served, tally
from tests.support.threads import PATIENCE_S, eventually

if not shutil.which("redis-server") and os.environ.get("CI") != "true":
    pytest.skip("redis-server is not installed: run `make programs`", allow_module_level=True)

LONG_MS = 300_000


class RedisServer:
    """A Redis with an append-only file, which can be killed and started again."""

    def __init__(self, folder):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._process = None

    def start(self):
        settings = {"port": self.port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": "always", "save": ""}
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            ["redis-server", *options, "--dir", str(self._folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert eventually(self.answers)

    def answers(self):
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            return client.ping()
        return False

    def client(self):
        return redis.Redis(port=self.port)

    def cut_connections(self):
        """Have it close every connection but this one."""
        with self.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None


@pytest.fixture
def between(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def workers(between):
    """Two processes."""
    command = ("uvicorn", "examples.fleet.app:app", "--port", "{port}")
    with (
        served(*command, ready="/metrics", REDIS_URL=between.url) as one,
        served(*command, ready="/metrics", REDIS_URL=between.url) as other,
    ):
        yield one, other


def parked(server):
    (line,) = [line for line in server.get("/metrics").splitlines() if line.startswith("purgatory_parked_operations{")]
    return float(line.split()[-1])


async def wait_until_parked(server, number):
    assert await asyncio.to_thread(eventually, lambda: parked(server) == number), server.output


def bounded(function):
    async def main():
        limits = httpx.Limits(max_connections=None)
        async with asyncio.timeout(3 * PATIENCE_S), httpx.AsyncClient(timeout=2 * PATIENCE_S, limits=limits) as client:
            await function(client)

    asyncio.run(main())


async def publish(client, server, topic, body):
    """Publish, again for as long as there is no Redis. Its number."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        answer = await client.post(f"{server.url}/topics/{topic}", params={"body": body})
        if answer.status_code != 503:
            assert 200 == answer.status_code
            return answer.json()
        await asyncio.sleep(0.1)
    raise AssertionError(server.output)


async def poll(client, server, topic, after="0-0", timeout_ms=LONG_MS):
    params = {"after": after, "timeout_ms": timeout_ms}
    answer = await client.get(f"{server.url}/topics/{topic}", params=params)
    assert 200 == answer.status_code, answer.text
    return answer.json()


def test_event_in_one_process_answers_the_poll_in_another(workers):
    """A message that comes in on one worker answers the polls in both, with the same number."""
    one, other = workers

    async def main(client):
        here, there = (asyncio.create_task(poll(client, server, "orders")) for server in workers)
        elsewhere = asyncio.create_task(poll(client, other, "mail"))
        await wait_until_parked(one, 1)
        await wait_until_parked(other, 2)
        number = await publish(client, one, "orders", "hello")
        expected = [{"number": number, "topic": "orders", "body": "hello"}]
        assert (expected, expected) == (await here, await there)
        assert not elsewhere.done()
        assert [] == await poll(client, other, "orders", after=number, timeout_ms=20)
        elsewhere.cancel()

    bounded(main)


def test_worker_that_starts_later_knows_what_was_said(workers, between):
    """A worker begins with the messages that are in the stream."""

    async def main(client):
        number = await publish(client, workers[0], "orders", "before")
        with served(
            "uvicorn", "examples.fleet.app:app", "--port", "{port}", ready="/metrics", REDIS_URL=between.url
        ) as it:
            assert [number] == [message["number"] for message in await poll(client, it, "orders")]

    bounded(main)


def test_no_message_is_lost_or_doubled_while_connections_are_cut(workers, between):
    """A client that polls one worker gets all that is said to the other, in order, though connections are cut."""
    one, other = workers

    async def main(client):
        said = [f"message {number}" for number in range(60)]

        async def say():
            for body in said:
                await publish(client, one, "orders", body)
                if body.endswith("5"):
                    await asyncio.to_thread(between.cut_connections)

        async def hear():
            heard, after = [], "0-0"
            while len(heard) < len(said):
                messages = await poll(client, other, "orders", after)
                heard += [message["body"] for message in messages]
                after = messages[-1]["number"]
            return heard

        heard, _ = await asyncio.gather(hear(), say())
        assert said == heard

    bounded(main)


def test_polls_wait_on_while_redis_is_away(workers, between):
    """Redis may be killed and started again while polls wait. Publishing is rejected meanwhile, and then goes on."""
    one, other = workers

    async def main(client):
        waiting = asyncio.create_task(poll(client, other, "orders"))
        await wait_until_parked(other, 1)
        between.kill()
        refused = await client.post(f"{one.url}/topics/orders", params={"body": "too early"})
        assert 503 == refused.status_code
        assert not waiting.done()
        await asyncio.to_thread(between.start)
        number = await publish(client, one, "orders", "here again")
        assert [number] == [message["number"] for message in await waiting]

    bounded(main)


def test_one_event_answers_polls_in_every_worker_of_a_server(between):
    """Behind uvicorn with two workers, one message answers all, whichever worker they wait in."""

    async def main(client):
        polls = [asyncio.create_task(poll(client, server, "orders")) for _ in range(40)]
        give_up = time.monotonic() + PATIENCE_S
        while await asyncio.to_thread(connections, server.port) < 40:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)
        number = await publish(client, server, "orders", "hello")
        assert {number: 40} == tally([messages[0]["number"] for messages in await asyncio.gather(*polls)])

    command = ("uvicorn", "examples.fleet.app:app", "--port", "{port}", "--workers", "2")
    with served(*command, ready="/metrics", REDIS_URL=between.url) as server:
        bounded(main)


def connections(port):
    """How many connections to a port of this machine are open, by the kernel's own list."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()][1:]
    return sum(local.endswith(f":{port:04X}") and state == "01" for _, local, _, state, *_ in rows)


def test_number_that_is_none_is_refused(workers):
    """A poll after something that is no number is answered 400."""
    assert 400 == httpx.get(f"{workers[0].url}/topics/orders?after=yesterday", timeout=PATIENCE_S).status_code


def targets(folder):
    """What Prometheus would scrape, by worker."""
    found = {}
    for file in folder.glob("worker-*.json"):
        with contextlib.suppress(FileNotFoundError):
            (each,) = json.loads(file.read_text(encoding="utf-8"))
            found[int(each["labels"]["worker"])] = each["targets"][0]
    return found


def test_every_worker_is_a_target_of_its_own(between, tmp_path):
    """Each worker has metrics and a console of its own, and the target of a worker that is killed goes."""
    folder = tmp_path / "targets"
    command = ("uvicorn", "examples.fleet.app:app", "--port", "{port}", "--workers", "2")
    with served(*command, ready="/openapi.json", REDIS_URL=between.url, TARGETS=str(folder)) as server:
        assert eventually(lambda: len(targets(folder)) == 2), server.output
        first = targets(folder)
        for address in first.values():
            text = httpx.get(f"http://{address}/metrics", timeout=PATIENCE_S).text
            assert 1 == text.count("purgatory_parked_operations{"), text
        pages = re.findall(r"console at (\S+)", server.output)
        assert 2 == len(set(pages))
        assert [200, 200] == [httpx.get(page, timeout=PATIENCE_S).status_code for page in pages]
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        assert eventually(
            lambda: killed not in targets(folder) and len(targets(folder)) == 2, seconds=2 * PATIENCE_S
        ), server.output
        assert 404 == httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).status_code
        server.tell()
        server.end()
    assert {} == targets(folder)
