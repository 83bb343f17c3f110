"""Streams in any ASGI framework, behind any server: what the client gets, its hang-up, and the stop of the server."""

import asyncio
import contextlib
import importlib.util
import resource
import signal
import time
import urllib.request

import pytest

from tests.support.served import ROOT, python_files, served
from tests.support.threads import PATIENCE_S

APP = "tests.support.stream_service:app"
SERVERS = {
    "uvicorn": ("uvicorn", APP, "--port", "{port}", "--log-level", "warning"),
    "hypercorn": ("hypercorn", APP, "--bind", "127.0.0.1:{port}", "--workers", "0"),
    "granian": ("granian", "--interface", "asgi", "--port", "{port}", "--log-level", "warning", APP),
}
#: Each framework once, and each server once.
PAIRS = [
    *(("uvicorn", framework) for framework in ("bare", "starlette", "fastapi", "litestar", "falcon")),
    *((server, "bare") for server in ("hypercorn", "granian")),
]
MANY = 1_000
#: How a server ends at SIGTERM: uvicorn passes the signal on to itself when it has shut down.
STOPPED = {0, -signal.SIGTERM}
#: The streams that are open, per connection: the answer's head and its first line.
REQUEST = b"GET /news HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def rest_of(reader, writer):
    """What a client still gets until its response ends."""
    try:
        return await reader.read()
    finally:
        await closed(writer)


async def closed(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def opened(port):
    """A client whose stream has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    await reader.readuntil(b"hello\n")
    return reader, writer


async def post(port, line):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /news HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(line)}\r\n\r\n"
    writer.write(head.encode() + line)
    await rest_of(reader, writer)


def bounded(main):
    async def run():
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    return asyncio.run(run())


@pytest.fixture(params=PAIRS, ids="-".join)
def server(request):
    name, framework = request.param
    if framework in {"litestar", "falcon"} and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with served(*SERVERS[name], FRAMEWORK=framework) as server:
        yield server


@pytest.mark.slow
def test_stream_works_in_any_framework_behind_any_server(server):
    """Each client gets each line in order. At SIGTERM its response is complete, and the server ends."""

    async def main():
        clients = [await opened(server.port) for _ in range(3)]
        for number in range(5):
            await post(server.port, b"line %d" % number)
        for reader, _ in clients:
            for number in range(5):
                await reader.readuntil(b"line %d\n" % number)
        await closed(clients.pop()[1])  # a client that hangs up holds nothing back
        server.tell(signal.SIGTERM)
        return [await rest_of(*client) for client in clients]

    assert all(rest.endswith(b"0\r\n\r\n") for rest in bounded(main))
    assert server.end() in STOPPED, server.output
    assert "Traceback" not in server.output


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["bare", "starlette"])
def test_thousand_streams_end_within_a_second_of_the_stop_signal(framework):
    """Also behind two middlewares. Each response is complete, and nothing is written to standard error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * MANY), hard))

    async def main():
        clients = []
        for _ in range(MANY // 50):
            clients += await asyncio.gather(*(opened(server.port) for _ in range(50)))
        began = time.monotonic()
        server.tell(signal.SIGTERM)
        ends = await asyncio.gather(*(rest_of(*client) for client in clients))
        return time.monotonic() - began, ends

    try:
        with served(*SERVERS["uvicorn"], FRAMEWORK=framework) as server:
            seconds, ends = bounded(main)
            assert server.end() in STOPPED
            print(f"{MANY} streams ended {seconds:.2f} s after SIGTERM ({framework})")
            assert MANY == sum(end.endswith(b"0\r\n\r\n") for end in ends)
            assert "" == server.output
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seconds < 10, seconds  # about half a second on an idle machine


@pytest.mark.slow
def test_stream_over_a_websocket(tmp_path):
    """The recipe: each message comes once and in order, whatever the client sends. The stop ends every socket."""
    client = pytest.importorskip("websockets.asyncio.client")
    (_, text) = next(file for file in python_files(ROOT / "docs/recipes/websockets.md") if file[0] == "stream.py")
    (tmp_path / "stream.py").write_text(text, encoding="utf-8")

    async def main():
        async with client.connect(f"ws://127.0.0.1:{server.port}/news") as socket:
            for number in range(3):
                await socket.send("anything")
                await asyncio.to_thread(
                    urllib.request.urlopen, urllib.request.Request(f"{server.url}/news?text={number}", method="POST")
                )
                assert f'["{number}"]' == await socket.recv()
            async with client.connect(f"ws://127.0.0.1:{server.port}/news") as other:
                assert '["0","1","2"]' == await other.recv()
            server.tell(signal.SIGTERM)
            await socket.wait_closed()
            return socket.close_code

    command = ("uvicorn", "stream:app", "--port", "{port}", "--log-level", "warning")
    with served(*command, cwd=tmp_path, ready="/docs", PYTHONPATH=str(ROOT)) as server:
        assert 1012 == bounded(main)
        assert server.end() in STOPPED
        assert "" == server.output
