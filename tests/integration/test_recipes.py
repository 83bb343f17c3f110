"""The code on the recipes' pages, run by the real servers and asked by real clients."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import urllib.request

import grpc
import httpx
import pytest

from tests.support.served import ROOT, answers_at_the_stop, free_port, python_files, served, tally
from tests.support.threads import PATIENCE_S, eventually

LONG_MS = 300_000
#: A layer in front of a page's service, so that a test can see the waiting requests.
LOOKING = "from purgatory.metrics import serve as _serve\n_serve({port})\n"
#: The page's margin before a client's deadline, and one that is enough for a busy machine.
WIDE_MARGIN = ("MARGIN_MS = 200 ", "MARGIN_MS = 20_000 ")
#: The pages' longest wait, and one that a test can wait for.
SHORT = ("LONGEST_MS = 60_000", "LONGEST_MS = 300")

RECIPES = {
    "aiohttp": ("service", "{port}"),
    "django": ("uvicorn", "service:app", "--port", "{port}"),
    "django on hypercorn": ("hypercorn", "service:app", "--bind", "127.0.0.1:{port}", "--workers", "0"),
    "flask": ("gunicorn", "service:app", "--bind", "127.0.0.1:{port}"),
}


def write_out(page, folder, *changes):
    """Write the files of a page into a folder, with changes. The port on which the service's metrics are."""
    port = free_port()
    files = python_files(ROOT / "docs/recipes" / f"{page}.md")
    assert "service.py" in dict(files), page
    for before, after in changes:
        assert any(before in text for _, text in files), before
        files = [(name, text.replace(before, after)) for name, text in files]
    for name, text in files:
        looking = LOOKING.format(port=port) if name == "service.py" else ""
        (folder / name).write_text(looking + text, encoding="utf-8")
    return port


@contextlib.contextmanager
def running(name, folder, *changes, ready="/"):
    metrics = write_out(name.split()[0], folder, *changes)
    command = RECIPES.get(name, ("service", "{port}"))
    with served(*command, cwd=folder, ready=ready, PYTHONPATH=f"{folder}:{ROOT}") as server:
        server.metrics = f"http://127.0.0.1:{metrics}/metrics"
        yield server


@pytest.fixture(params=RECIPES)
def server(request, tmp_path):
    with running(request.param, tmp_path) as server:
        server.name = request.param
        yield server


def measured(server, metric, label=""):
    """The value of a metric of the service, of which one series has this label. None if nothing answers."""
    try:
        with urllib.request.urlopen(server.metrics, timeout=PATIENCE_S) as answer:
            page = answer.read().decode()
    except OSError:
        return None
    (line,) = [line for line in page.splitlines() if line.startswith(f"{metric}{{") and label in line]
    return float(line.split()[-1])


def parked(server):
    return measured(server, "purgatory_parked_operations")


async def wait_until_parked(server, number):
    assert await asyncio.to_thread(eventually, lambda: parked(server) == number), (parked(server), server.output)


def clients(server):
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=2 * PATIENCE_S, limits=limits)


def poll(client, user, timeout_ms=LONG_MS):
    return asyncio.ensure_future(client.get(f"/inbox/{user}", params={"timeout_ms": timeout_ms}))


def test_deadlines_are_spread_and_come_before_the_clients():
    """The page on deadlines runs as it stands, and what it asserts holds."""
    page = (ROOT / "docs/recipes/deadlines.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "deadlines.md", "exec"), {"__name__": "page"})


def bounded(function, *arguments):
    async def main():
        async with asyncio.timeout(3 * PATIENCE_S):
            await function(*arguments)

    asyncio.run(main())


def test_event_answers_its_poll(server):
    """A message answers the poll that waits for it, and no other. A poll whose time is up gets nothing."""

    async def main():
        async with clients(server) as client:
            ann, bob = poll(client, "ann"), poll(client, "bob")
            await wait_until_parked(server, 2)
            assert 204 == (await client.post("/inbox/ann", content="hello")).status_code
            assert ["hello"] == (await ann).json()
            assert [] == (await poll(client, "ann", timeout_ms=10)).json()
            assert not bob.done()
            bob.cancel()

    bounded(main)


def test_message_goes_to_one_of_the_polls_of_its_user(server):
    """A message answers one of four polls for the same user. No other poll is answered before its time is up."""

    async def main():
        async with clients(server) as client:
            polls = [poll(client, "ann") for _ in range(4)]
            await wait_until_parked(server, 4)
            for number in range(3):
                await client.post("/inbox/ann", content=str(number))
                await wait_until_parked(server, 3 - number)
                waiting = [answer for answer in polls if not answer.done()]
                if len(waiting) > 3 - number:  # the answer is on its way
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done = [answer.result().json() for answer in polls if answer.done()]
                assert sorted([str(each)] for each in range(number + 1)) == sorted(done)
            await client.post("/inbox/ann", content="3")
            assert sorted([str(each)] for each in range(4)) == sorted([(await each).json() for each in polls])

    bounded(main)


@pytest.mark.parametrize("timeout_ms", ["abc", "", "1e3"])
def test_timeout_that_is_no_number_is_the_clients_fault(server, timeout_ms):
    """A timeout that is not a whole number is answered 400."""

    async def main():
        async with clients(server) as client:
            answer = await client.get("/inbox/ann", params={"timeout_ms": timeout_ms})
            assert (400, True) == (answer.status_code, "timeout_ms" in answer.text)

    bounded(main)
    assert "Traceback" not in server.output, server.output


@pytest.mark.parametrize("name", RECIPES)
def test_timeout_of_a_client_is_capped(name, tmp_path):
    """A client that asks to wait for ever waits as long as the service allows, and no longer."""

    async def main(server):
        async with clients(server) as client:
            assert [] == (await poll(client, "ann", timeout_ms="9" * 20)).json()

    with running(name, tmp_path, SHORT) as server:
        bounded(main, server)


def test_poll_whose_time_is_up_is_no_failure(server):
    """A poll that ends by its deadline is counted as expired, and not as failed."""

    async def main():
        async with clients(server) as client:
            assert [] == (await poll(client, "ann", timeout_ms=10)).json()

    bounded(main)
    expired = 'outcome="expired"'
    assert 1 == measured(server, "purgatory_operations_completed_total", expired)
    assert 0 == measured(server, "purgatory_operations_failed_total", expired)


def test_server_that_is_told_to_stop_answers_everybody_first(server):
    """At SIGTERM each of thirty waiting polls is answered 503 with Retry-After, and the server ends by itself."""

    async def main():
        async with clients(server) as client:
            polls = [poll(client, f"user {number % 3}") for number in range(30)]
            await wait_until_parked(server, 30)
            await answers_at_the_stop(server, polls)

    bounded(main)
    assert server.end() in (0, -signal.SIGTERM), server.output
    assert "Traceback" not in server.output, server.output


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "flask"])
def test_client_that_hangs_up_is_let_go(name, tmp_path):
    """Where requests wait on a loop, polls whose clients have gone leave the purgatory at once. Others stay."""

    async def main(server):
        async with clients(server) as client:
            going, staying = [poll(client, "ann") for _ in range(10)], poll(client, "bob")
            await wait_until_parked(server, 11)
            for task in going:
                task.cancel()
            await wait_until_parked(server, 1)
            await client.post("/inbox/bob", content="still there")
            assert ["still there"] == (await staying).json()

    with running(name, tmp_path) as server:
        bounded(main, server)


def test_news_find_a_thread_where_every_poll_has_one(tmp_path):
    """With threads, polls beyond ``max_parked`` are rejected, and a message still comes in."""

    async def main(server):
        async with clients(server) as client:
            polls = [poll(client, f"user {number}") for number in range(80)]
            await wait_until_parked(server, 80)
            refused = await poll(client, "one more")
            assert (503, "1") == (refused.status_code, refused.headers["Retry-After"])
            await client.post("/inbox/user 7", content="hello")
            assert ["hello"] == (await polls[7]).json()
            server.tell()
            assert {200: 1, 503: 79} == tally(answer.status_code for answer in await asyncio.gather(*polls))

    with running("flask", tmp_path) as server:
        bounded(main, server)


@contextlib.contextmanager
def grpc_server(folder, *changes):
    with running("grpc", folder, WIDE_MARGIN, *changes, ready=None) as server:
        assert eventually(lambda: can_connect(server.port)), server.output
        yield server


def can_connect(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def call(channel, method, timeout=None, **message):
    stub = channel.unary_unary(
        f"/Inbox/{method}", request_serializer=lambda it: json.dumps(it).encode(), response_deserializer=json.loads
    )
    return stub(message, timeout=timeout)


@contextlib.asynccontextmanager
async def waiting_calls(server, number):
    """So many calls that wait."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        calls = [call(channel, "Take", user="ann") for _ in range(number)]
        await wait_until_parked(server, number)
        yield calls


def test_grpc_call_waits_for_its_event(tmp_path):
    """A call is answered by its event. One whose client sets a deadline is answered, empty, before that."""

    async def main(server):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            waiting = call(channel, "Take", user="ann")
            await asyncio.sleep(0)
            await wait_until_parked(server, 1)
            await call(channel, "Leave", user="ann", text="hello")
            assert ["hello"] == await waiting
            assert [] == await call(channel, "Take", timeout=21, user="ann")

    with grpc_server(tmp_path) as server:
        bounded(main, server)


def test_grpc_message_goes_to_one_of_the_calls_of_its_user(tmp_path):
    """A message answers one of four calls for the same user, and the others wait on."""

    async def main(server):
        async with waiting_calls(server, 4) as calls, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for number in range(4):
                await call(channel, "Leave", user="ann", text=str(number))
                await wait_until_parked(server, 3 - number)
            assert [["0"], ["1"], ["2"], ["3"]] == sorted(await asyncio.gather(*calls))

    with grpc_server(tmp_path) as server:
        bounded(main, server)


def test_grpc_client_without_a_deadline_waits_no_longer_than_the_service_allows(tmp_path):
    """A call whose client sets no deadline, or one far away, is answered at the service's own."""

    async def main(server):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert [] == await call(channel, "Take", user="ann")
            assert [] == await call(channel, "Take", timeout=1e6, user="ann")

    with grpc_server(tmp_path, SHORT) as server:
        bounded(main, server)


def test_grpc_client_that_goes_is_let_go(tmp_path):
    """A call that its client cancels leaves the purgatory."""

    async def main(server):
        async with waiting_calls(server, 5) as calls:
            for going in calls[1:]:
                going.cancel()
            await wait_until_parked(server, 1)

    with grpc_server(tmp_path) as server:
        bounded(main, server)


def test_grpc_server_that_is_told_to_stop_answers_everybody_first(tmp_path):
    """At SIGTERM each waiting call is answered UNAVAILABLE, and the server ends."""

    async def main(server):
        async with waiting_calls(server, 20) as calls:
            server.tell()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert {grpc.StatusCode.UNAVAILABLE: 20} == tally(answer.code() for answer in answers)
            assert {"the server is stopping"} == {answer.details() for answer in answers}

    with grpc_server(tmp_path) as server:
        bounded(main, server)
        assert 0 == server.end(), server.output
