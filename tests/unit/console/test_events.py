"""The stream of events: it ends by itself, and a page that connects again misses nothing."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from purgatory.console import _app, _hub
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
