"""The stream of events: it ends by itself, and a page that connects again misses nothing."""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
from starlette.requests import ClientDisconnect, Request

from purgatory.console import _app, _hub, serve
from purgatory.console._app import make_app
from tests.support import PATIENCE_S

SERVICE = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from purgatory.console import _app

_app._STREAM_S = 1.0
uvicorn.run(Starlette(routes=[Mount("/purgatory", _app.app())]), fd=int(sys.argv[1]), log_level="error")
"""


@pytest.fixture
def service():
    """The console mounted in a service, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        command = [sys.executable, "-c", SERVICE, str(listening.fileno())]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])
        port = listening.getsockname()[1]
    yield process, port
    process.kill()
    process.wait()


def events(body):
    """The kind and the data of each event."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in body.decode().split("\n\n")[:-1]]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_an_open_page_does_not_keep_a_service_from_stopping(service):
    process, port = service
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    page.request("GET", "/purgatory/events")
    assert page.getresponse().readline()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    page.close()


def test_a_stream_has_the_history_then_states_and_ends_by_itself(hub, get, monkeypatch):
    monkeypatch.setattr(_app, "_STREAM_S", 0.2)
    found = events(get(make_app(hub, token=None, hosts=None), "/events").content)
    assert ["history", "state"] == [kind for kind, _ in found][:2]


@pytest.mark.parametrize(("last", "points"), [("{now}", 0), ("{before}", 1), ("nonsense", 1)])
def test_a_page_that_connects_again_gets_only_what_it_missed(hub, get, monkeypatch, last, points):
    monkeypatch.setattr(_app, "_STREAM_S", 0.0)
    monkeypatch.setattr(_hub, "WATCHED_S", 3600.0)  # one look is enough
    before = time.time()
    hub.latest()
    header = last.format(now=time.time(), before=before)
    answer = get(make_app(hub, token=None, hosts=None), "/events", headers=[("last-event-id", header)])
    assert points == len(events(answer.content)[0][1]["points"])


def test_streams_that_begin_at_once_are_limited(monkeypatch):
    """Each stream counts from its request on, so many that come together are no more than the limit. Then they end."""
    monkeypatch.setattr(_app, "_MOST_WATCHERS", 3)
    monkeypatch.setattr(_app, "_STREAM_S", 0.5)
    with serve(0) as console:
        for _ in range(2):
            with ExitStack() as stack:
                clients = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", console.port), PATIENCE_S))
                    for _ in range(20)
                ]
                for client in clients:
                    client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                status = sorted(int(client.makefile("rb").readline().split()[1]) for client in clients)
                assert [200] * 3 + [503] * 17 == status
                for client in clients:
                    while client.recv(65_536):
                        pass


def test_stream_that_fails_or_never_begins_is_not_counted(hub, monkeypatch):
    """A client that goes before the first event leaves its place to another, and so does a look that fails."""
    console = _app._Console(hub)

    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        raise OSError

    async def main():
        scope = {"type": "http", "headers": [], "asgi": {"spec_version": "2.4"}}
        response = await console.events(Request(scope))
        assert 1 == console._watchers
        with pytest.raises(ClientDisconnect):
            await response(scope, gone, send)
        assert 0 == console._watchers
        monkeypatch.setattr(hub, "latest", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await console.events(Request(scope))
        assert 0 == console._watchers

    asyncio.run(main())


def test_history_is_encoded_when_it_is_noted_and_sent_from_another_thread(hub, monkeypatch):
    """The history of many purgatories is large: the loop of the service does not make it, and no page encodes it."""
    for number in range(3):
        hub._note({"fetch": [number, 0.5]})
    threads, dumped = [], []
    dumps, history = json.dumps, hub.history
    monkeypatch.setattr(_hub.json, "dumps", lambda value: dumped.append(value) or dumps(value))
    monkeypatch.setattr(hub, "history", lambda since: threads.append(threading.get_ident()) or history(since))
    assert [[0, 0.5], [1, 0.5], [2, 0.5]] == [point["fetch"] for _, point in json.loads(history())["points"]]
    assert [_hub.OUTCOMES] == dumped

    async def main():
        stream = _app._Console(hub)._stream(b"{}", 0.0)
        assert b"history" in [await anext(stream), await anext(stream)][1]
        await stream.aclose()

    asyncio.run(main())
    assert threads != [threading.get_ident()]
    assert 1 == len(threads)
