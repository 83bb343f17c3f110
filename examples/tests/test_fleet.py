"""Long polls in several processes, with a real Redis between them."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from purgatory.feeds import RedisFeed
from tests.support.redis_server import RedisServer, need_redis
from tests.support.served import served, tally
from tests.support.threads import PATIENCE_S, eventually

need_redis()

LONG_MS = 300_000
KEEP = 1_000  # as in the service, whose feed must not live in this process


@pytest.fixture
def between(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


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
    """Publish, again until it is accepted. Its position."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        answer = await client.post(f"{server.url}/topics/{topic}", params={"body": body, "id": body})
        if answer.status_code not in {503, 504}:
            assert 200 == answer.status_code, answer.text
            return answer.json()
        await asyncio.sleep(0.1)
    raise AssertionError(server.output)


async def poll(client, server, topic, after=None, timeout_ms=LONG_MS):
    params = {"timeout_ms": timeout_ms} | ({} if after is None else {"after": after})
    answer = await client.get(f"{server.url}/topics/{topic}", params=params)
    assert 200 == answer.status_code, answer.text
    return answer.json()


def test_event_in_one_process_answers_the_poll_in_another(workers):
    """A message that comes in on one worker answers the polls in both, with the same position."""
    one, other = workers

    async def main(client):
        here, there = (asyncio.create_task(poll(client, server, "orders")) for server in workers)
        elsewhere = asyncio.create_task(poll(client, other, "mail"))
        await wait_until_parked(one, 1)
        await wait_until_parked(other, 2)
        position = await publish(client, one, "orders", "hello")
        expected = [{"position": position, "body": "hello"}]
        assert (expected, expected) == (await here, await there)
        assert not elsewhere.done()
        assert [] == await poll(client, other, "orders", after=position, timeout_ms=20)
        elsewhere.cancel()

    bounded(main)


def test_worker_that_starts_later_knows_what_was_said(workers, between):
    """A worker begins with the messages that are in the stream, also if an operator has removed the first ones."""

    async def main(client):
        for number in range(5):
            position = await publish(client, workers[0], "orders", f"before {number}")
        between.ask("XTRIM", "messages", "MAXLEN", 1)
        with served(
            "uvicorn", "examples.fleet.app:app", "--port", "{port}", ready="/metrics", REDIS_URL=between.url
        ) as it:
            assert [position] == [message["position"] for message in await poll(client, it, "orders")]

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
            heard, after = [], None
            while len(heard) < len(said):
                messages = await poll(client, other, "orders", after)
                heard += [message["body"] for message in messages]
                after = messages[-1]["position"]
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
        position = await publish(client, one, "orders", "here again")
        assert [position] == [message["position"] for message in await waiting]

    bounded(main)


def test_one_event_answers_polls_in_every_worker_of_a_server(between):
    """Behind uvicorn with two workers, one message answers all, whichever worker they wait in."""

    async def main(client):
        polls = [asyncio.create_task(poll(client, server, "orders")) for _ in range(40)]
        give_up = time.monotonic() + PATIENCE_S
        while await asyncio.to_thread(connections, server.port) < 40:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)
        position = await publish(client, server, "orders", "hello")
        assert {position: 40} == tally([messages[0]["position"] for messages in await asyncio.gather(*polls)])

    command = ("uvicorn", "examples.fleet.app:app", "--port", "{port}", "--workers", "2")
    with served(*command, ready="/metrics", REDIS_URL=between.url) as server:
        bounded(main)


def connections(port):
    """How many connections to a port of this machine are open, by the kernel's own list."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()][1:]
    return sum(local.endswith(f":{port:04X}") and state == "01" for _, local, _, state, *_ in rows)


def test_message_that_is_published_twice_with_an_id_is_there_once(workers):
    """A client that got no answer sends the message again, to any worker, and learns the same position."""
    one, other = workers

    async def main(client):
        first, again = [await publish(client, server, "orders", "hello") for server in (one, other)]
        last = await publish(client, one, "orders", "last")
        assert first == again
        assert [last] == [message["position"] for message in await poll(client, other, "orders", after=first)]

    bounded(main)


def test_client_that_is_too_far_behind_is_told_so(workers, between):
    """Messages that a client has missed are not left out silently: it is answered 410 and begins again."""

    async def main(client):
        first, second, *_ = [await publish(client, workers[0], "orders", f"{number}") for number in range(3)]
        async with RedisFeed(between.url, stream="messages") as feed:
            *_, last_but_one, _ = await asyncio.gather(*(feed.publish("orders", b"more") for _ in range(KEEP - 1)))
        assert 1 == len(await poll(client, workers[1], "orders", after=str(last_but_one)))
        answers = [
            await client.get(f"{workers[1].url}/topics/orders", params={"after": after}) for after in (first, second)
        ]
        assert [410, 200] == [answer.status_code for answer in answers]
        assert KEEP == len(await poll(client, workers[1], "orders"))

    bounded(main)


def test_polls_are_answered_after_the_stream_was_emptied(workers, between):
    """Each worker notices, begins again, and answers 410. A client that begins again gets the next message."""
    one, other = workers

    async def main(client):
        before = await publish(client, one, "orders", "before")
        params = {"after": before, "timeout_ms": LONG_MS}
        waiting = asyncio.create_task(client.get(f"{other.url}/topics/orders", params=params))
        await wait_until_parked(other, 1)
        between.ask("FLUSHALL")
        position = await publish(client, one, "orders", "after")
        assert 410 == (await waiting).status_code
        assert [position] == [message["position"] for message in await poll(client, other, "orders")]

    bounded(main)


def test_position_that_is_none_is_rejected(workers):
    """A poll after something that is not a position is answered 400."""
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
