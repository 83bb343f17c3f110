"""Long polls in FastAPI, behind real servers, asked by real clients, ended by a real signal."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.support.served import answers_at_the_stop, served, tally
from tests.support.threads import PATIENCE_S, eventually

APP = "examples.longpoll.app:app"
SERVERS = {
    "uvicorn": ("uvicorn", APP, "--port", "{port}"),
    "uvicorn on asyncio": ("uvicorn", APP, "--port", "{port}", "--loop", "asyncio", "--http", "h11"),
    "hypercorn": ("hypercorn", APP, "--bind", "127.0.0.1:{port}", "--workers", "0"),
    "hypercorn on uvloop": ("hypercorn", APP, "--bind", "127.0.0.1:{port}", "--workers", "0", "-k", "uvloop"),
    "gunicorn": ("gunicorn", APP, "--bind", "127.0.0.1:{port}", "-k", "uvicorn.workers.UvicornWorker"),
    "granian": ("granian", APP, "--interface", "asgi", "--port", "{port}"),
}
#: Far longer than any of these tests: an earlier answer did not come from the deadline.
LONG_MS = 300_000

WAITING_BY_WORKER = """
import os

from examples.longpoll.app import app, purgatory


@app.get("/worker")
async def worker() -> tuple[int, int]:
    return os.getpid(), purgatory.waiting
"""
AT_MOST_TWO = """
from examples.longpoll import app as example
from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

example.purgatory = AsyncPurgatory("inbox", max_parked=2)
example.polls = LongPolls(example.purgatory, retry_after_s=7)
app = example.app
"""
STAMPED = """
from examples.longpoll.app import app


@app.middleware("http")
async def stamp(request, call_next):
    answer = await call_next(request)
    answer.headers["stamp"] = "yes"
    return answer
"""

TAKING = """
import pathlib
import time

from fastapi import FastAPI, Request

from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

items = []
purgatory = AsyncPurgatory("items")
polls = LongPolls(purgatory)
app = FastAPI(lifespan=polls.lifespan)
busy = pathlib.Path(__file__).with_name("busy")


@app.get("/take")
async def take(request: Request):
    find = lambda: items.pop() if items else None
    return await polls.wait_for_result(request, find, keys=["items"], timeout_ms=60_000, give_back=items.append)


@app.get("/put")
async def put():
    busy.touch()
    while busy.exists():
        time.sleep(0.01)
    items.append("item")
    purgatory.check_and_complete("items")


@app.get("/parked")
async def parked():
    return purgatory.parked


@app.get("/items")
async def left():
    return items


for _ in range(2):
    @app.middleware("http")
    async def pass_on(request, call_next):
        return await call_next(request)
"""


@pytest.fixture(params=SERVERS)
def server(request):
    with served(*SERVERS[request.param], ready="/metrics") as server:
        yield server


@pytest.fixture
def uvicorn():
    with served(*SERVERS["uvicorn"], ready="/metrics") as server:
        yield server


@contextlib.contextmanager
def page(folder, source, *options, ready="/metrics"):
    """A server of the app in a source."""
    (folder / "page.py").write_text(source)
    with served("uvicorn", "page:app", "--app-dir", str(folder), "--port", "{port}", *options, ready=ready) as server:
        yield server


def parked(server):
    (line,) = [line for line in server.get("/metrics").splitlines() if line.startswith("purgatory_parked_operations{")]
    return float(line.split()[-1])


async def wait_until_parked(server, number):
    assert await asyncio.to_thread(eventually, lambda: parked(server) == number), parked(server)


@contextlib.asynccontextmanager
async def clients(server):
    async with (
        asyncio.timeout(3 * PATIENCE_S),
        httpx.AsyncClient(
            base_url=server.url, timeout=2 * PATIENCE_S, limits=httpx.Limits(max_connections=None)
        ) as client,
    ):
        yield client


def poll(client, user, timeout_ms=LONG_MS):
    return asyncio.ensure_future(client.get(f"/inbox/{user}", params={"timeout_ms": timeout_ms}))


def test_event_answers_its_poll(server):
    """A message answers the poll that waits for it, and no other."""

    async def main():
        async with clients(server) as client:
            ann, bob = poll(client, "ann"), poll(client, "bob")
            await wait_until_parked(server, 2)
            assert 200 == (await client.post("/inbox/ann", params={"text": "hello"})).status_code
            assert ["hello"] == (await ann).json()
            assert not bob.done()
            assert [] == (await poll(client, "ann", timeout_ms=10)).json()

    asyncio.run(main())


@pytest.fixture
def enough_sockets():
    """A thousand connections take a thousand file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("enough_sockets")
def test_thousand_polls_take_each_message_once(uvicorn):
    """Twenty polls of a user share his messages: none is taken twice, and no poll is answered before its time."""

    async def take(session, user):
        async with session.get(f"/inbox/{user}", params={"timeout_ms": LONG_MS}) as answer:
            return answer.status, user, await answer.json()

    async def main():
        connections = aiohttp.TCPConnector(limit=0)
        async with (
            asyncio.timeout(3 * PATIENCE_S),
            aiohttp.ClientSession(uvicorn.url, connector=connections) as session,
        ):
            polls = [asyncio.ensure_future(take(session, number % 50)) for number in range(1000)]
            await wait_until_parked(uvicorn, 1000)
            for number in range(500):
                (await session.post(f"/inbox/{number % 25}", params={"text": str(number)})).raise_for_status()
            served = await asyncio.gather(*[task for number, task in enumerate(polls) if number % 50 < 25])
            assert [(200, user, [str(number)]) for user in range(25) for number in range(user, 500, 25)] == sorted(
                served, key=lambda answer: (answer[1], int(answer[2][0]))
            )
            assert 500.0 == parked(uvicorn)
            uvicorn.tell()
            waiting = await asyncio.gather(*[task for number, task in enumerate(polls) if number % 50 >= 25])
            assert {503: 500} == tally(status for status, _, _ in waiting)

    asyncio.run(main())
    uvicorn.end()
    assert "Traceback" not in uvicorn.output, uvicorn.output


def test_bad_poll_is_refused(uvicorn):
    """A time that is no number, below zero, or longer than five minutes, is answered 422 with what is wrong."""
    for timeout_ms in ("soon", "-1", "300001", "99999999999999999999"):
        answer = httpx.get(f"{uvicorn.url}/inbox/ann", params={"timeout_ms": timeout_ms})
        assert (422, "timeout_ms") == (answer.status_code, answer.json()["detail"][0]["loc"][-1]), timeout_ms


def test_client_that_hangs_up_is_let_go(server):
    """Polls whose clients close the connection leave the purgatory at once, far before their time. Others stay."""

    async def main():
        async with clients(server) as client:
            going = [poll(client, "ann") for _ in range(20)]
            staying = poll(client, "bob")
            await wait_until_parked(server, 21)
            for task in going:
                task.cancel()
            await wait_until_parked(server, 1)
            await client.post("/inbox/bob", params={"text": "still there"})
            assert ["still there"] == (await staying).json()

    asyncio.run(main())
    cancelled = 'purgatory_operations_completed_total{outcome="cancelled",purgatory="inbox"} 20.0'
    assert cancelled in server.get("/metrics").splitlines()


def test_server_that_is_told_to_stop_answers_everybody_first(server):
    """At SIGTERM each of fifty waiting polls is answered 503 with Retry-After, and the server ends by itself."""

    async def main():
        async with clients(server) as client:
            polls = [poll(client, f"user {number % 5}") for number in range(50)]
            await wait_until_parked(server, 50)
            answers = await answers_at_the_stop(server, polls)
            assert {"the server is stopping"} == {answer.json()["detail"] for answer in answers}

    asyncio.run(main())
    assert server.end() in (0, -signal.SIGTERM)
    assert "Traceback" not in server.output, server.output


def test_every_worker_answers_when_the_server_is_told_to_stop(tmp_path):
    """With several workers, SIGTERM to their supervisor has each worker answer its waiting polls."""

    async def main(server):
        async with clients(server) as client:
            polls = [poll(client, "ann") for _ in range(40)]
            holds = {}
            give_up = time.monotonic() + PATIENCE_S
            while sum(holds.values()) < 40:  # whichever worker is asked
                worker, waiting = json.loads(await asyncio.to_thread(server.get, "/worker"))
                holds[worker] = waiting
                assert time.monotonic() < give_up, holds
            server.tell()
            assert {503: 40} == tally(answer.status_code for answer in await asyncio.gather(*polls))

    with page(tmp_path, WAITING_BY_WORKER, "--workers", "2", ready="/worker") as server:
        asyncio.run(main(server))
        server.end()
        assert "Traceback" not in server.output, server.output


def test_interrupt_answers_everybody_too(uvicorn):
    """Ctrl-C answers as SIGTERM does."""

    async def main():
        async with clients(uvicorn) as client:
            waiting = poll(client, "ann")
            await wait_until_parked(uvicorn, 1)
            uvicorn.tell(signal.SIGINT)
            assert 503 == (await waiting).status_code

    asyncio.run(main())
    uvicorn.end()


def test_poll_on_a_full_server_is_refused_at_once(tmp_path):
    """Beyond ``max_parked``, a poll that would have to wait is answered 503 with Retry-After. Those that wait go on."""

    async def main(server):
        async with clients(server) as client:
            waiting = [poll(client, "ann") for _ in range(2)]
            await wait_until_parked(server, 2)
            refused = await poll(client, "ann")
            assert (503, "7") == (refused.status_code, refused.headers["Retry-After"])
            assert {False} == {task.done() for task in waiting}
            for task in waiting:
                task.cancel()

    with page(tmp_path, AT_MOST_TWO) as server:
        asyncio.run(main(server))


def test_middleware_between_is_no_hindrance(tmp_path):
    """Behind Starlette's own kind of middleware, hang-ups are noticed, and at SIGTERM every poll is answered."""

    async def main(server):
        async with clients(server) as client:
            going, staying = poll(client, "ann"), poll(client, "bob")
            await wait_until_parked(server, 2)
            going.cancel()
            await wait_until_parked(server, 1)
            server.tell()
            answer = await staying
            assert (503, "yes") == (answer.status_code, answer.headers["stamp"])

    with page(tmp_path, STAMPED) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize(
    "parser",
    [
        "h11",
        # Its connection reports the loss to the request that came last, which has not begun.
        pytest.param("httptools", marks=pytest.mark.xfail(strict=True, reason="uvicorn does not report it")),
    ],
)
def test_hang_up_after_a_second_request_on_the_connection(parser):
    """A client that has sent another request before it hangs up is noticed, except with httptools, as the docs say."""
    if parser == "httptools" and os.environ.get("CI") != "true":
        pytest.importorskip("httptools")
    with served("uvicorn", APP, "--port", "{port}", "--http", parser, ready="/metrics") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.send(f"GET /inbox/ann?timeout_ms={LONG_MS} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 2)
            assert eventually(lambda: parked(server) == 1)
        assert eventually(lambda: parked(server) == 0, 2.0)


def test_stream_that_is_reset_is_a_hang_up():
    """Over HTTP/2, several polls share a connection. Its client may give up one of them."""
    with served(*SERVERS["hypercorn"], ready="/metrics") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            connection = H2Connection(H2Configuration(client_side=True))
            connection.initiate_connection()
            for stream, user in ((1, "ann"), (3, "bob")):
                path = f"/inbox/{user}?timeout_ms={LONG_MS}"
                head = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "localhost"}
                connection.send_headers(stream, list(head.items()), end_stream=True)
            client.sendall(connection.data_to_send())
            assert eventually(lambda: parked(server) == 2)
            connection.reset_stream(1)
            client.sendall(connection.data_to_send())
            assert eventually(lambda: parked(server) == 1)
        assert eventually(lambda: parked(server) == 0)


def test_hang_up_behind_middlewares_wins_over_an_item(tmp_path):
    """An item that comes at the moment of a hang-up is given back, though two middlewares are between."""
    with page(tmp_path, TAKING, ready="/parked") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.send(b"GET /take HTTP/1.1\r\nHost: x\r\n\r\n")
            assert eventually(lambda: server.get("/parked") == "1")
            with ThreadPoolExecutor(1) as pool:
                putting = pool.submit(server.get, "/put")
                assert eventually((tmp_path / "busy").exists)  # the loop sleeps, and the client goes
                client.close()
                (tmp_path / "busy").unlink()
                putting.result()
        assert ["item"] == json.loads(server.get("/items"))


def test_metrics_are_found_without_a_redirect(uvicorn):
    """``/metrics`` answers itself, with and without what Prometheus asks for."""
    answer = httpx.get(uvicorn.url + "/metrics", follow_redirects=False)
    assert (200, 'purgatory="inbox"' in answer.text) == (200, True)
    asked = httpx.get(uvicorn.url + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert "# EOF" == asked.text.splitlines()[-1]


def test_other_clients_are_served_alike(uvicorn):
    """curl that gives up, and an aiohttp client that goes, are released. Those that stay are answered."""
    gave_up = subprocess.run(
        ["curl", "--silent", "--max-time", "0.5", f"{uvicorn.url}/inbox/ann?timeout_ms={LONG_MS}"],
        check=False,
        timeout=PATIENCE_S,
    )
    assert 28 == gave_up.returncode  # curl's word for it
    assert eventually(lambda: parked(uvicorn) == 0)

    async def main():
        async with aiohttp.ClientSession(uvicorn.url) as session:
            going = asyncio.ensure_future(session.get("/inbox/ann", params={"timeout_ms": LONG_MS}))
            await wait_until_parked(uvicorn, 1)
            going.cancel()
            await wait_until_parked(uvicorn, 0)
            staying = asyncio.ensure_future(session.get("/inbox/ann", params={"timeout_ms": LONG_MS}))
            await wait_until_parked(uvicorn, 1)
            uvicorn.tell()
            async with await staying as answer:
                assert (503, {"detail": "the server is stopping"}) == (answer.status, json.loads(await answer.text()))

    asyncio.run(main())
