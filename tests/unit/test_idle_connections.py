"""Idle and slow connections to the servers of metrics and journal: they cost no thread, and stop no other client."""

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from purgatory import metrics
from purgatory._wsgi import _MOST, WsgiServer
from tests.support import PATIENCE_S, beside, eventually

PATIENT_S, SOON_S = 60.0, 0.2
REQUEST = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: More than the buffers of two sockets take.
LARGE = b"x" * 10_000_000


class Answering:
    """A WSGI app that counts its calls, and waits in those with the path /hang."""

    def __init__(self, body=b"answer"):
        self.body, self.calls = body, 0
        self.entered, self.hanging = threading.Event(), threading.Event()

    def __call__(self, environ, start_response):
        self.calls += 1
        if environ["PATH_INFO"] == "/hang":
            self.entered.set()
            self.hanging.wait(PATIENCE_S)
        start_response("200 OK", [("Content-Length", str(len(self.body)))])
        return [self.body]


def served(app, patience_s):
    return WsgiServer(app, 0, "127.0.0.1", path="/", thread="answering", patience_s=patience_s)


@pytest.fixture
def clients():
    """Connects, and closes all connections in the end."""
    with contextlib.ExitStack() as stack:

        def connect(server, sent=b""):
            made = stack.enter_context(socket.socket())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            made.settimeout(PATIENCE_S)
            made.connect(("127.0.0.1", server.port))
            made.sendall(sent)
            return made

        yield connect


def answer_to(client):
    """All that a connection brings until it is closed."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1_000_000):
            parts.append(part)
    return b"".join(parts)


def is_answered(clients, server):
    return answer_to(clients(server, REQUEST)).endswith(b"\r\n\r\nanswer")


@pytest.mark.parametrize("sent", [b"", REQUEST[:20], REQUEST[:-2]], ids=["silent", "half a line", "half a head"])
def test_request_that_takes_too_long_is_closed(sent, clients, logs, capfd):
    """A connection without a whole request is closed in silence, and the app is never called."""
    app = Answering()
    with served(app, SOON_S) as server:
        client = clients(server, sent)
        assert b"" == answer_to(client)

    assert 0 == app.calls
    assert [("connection_dropped", "reading")] == [(event["event"], event["stage"]) for event in logs]
    assert ("", "") == capfd.readouterr()


def test_request_that_drips_is_closed(clients):
    """The time is that of the whole request, and does not begin again with each byte."""
    with served(Answering(), SOON_S) as server:
        client = clients(server, b"GET / HTTP/1.1\r\n")
        client.settimeout(0.01)
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                client.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1):
                        raise ConnectionResetError


def test_answer_that_is_not_taken_is_closed(clients, logs):
    """A client that sends a request and does not read loses its connection."""
    with served(Answering(LARGE), SOON_S) as server:
        client = clients(server, REQUEST)
        assert eventually(lambda: logs)
        assert len(answer_to(client)) < len(LARGE)

    assert ["writing"] == [event["stage"] for event in logs]


def test_idle_connections_cost_no_thread(clients, logs):
    """Beyond the bound the oldest is closed for each new one, so a request is answered. It is one line in the log."""
    with served(Answering(), PATIENT_S) as server:
        before = threading.active_count()
        idle = [clients(server, REQUEST[: 1 + number % 30]) for number in range(3 * _MOST)]
        assert is_answered(clients, server)
        assert before == threading.active_count()
        assert [b""] * 2 * _MOST == [answer_to(client) for client in idle[: 2 * _MOST]]
        idle[-1].sendall(REQUEST[1 + (3 * _MOST - 1) % 30 :])
        assert answer_to(idle[-1]).endswith(b"answer")

    assert ["connection_dropped"] == [event["event"] for event in logs]


def test_answers_that_are_not_taken_stop_no_other(clients, monkeypatch):
    """As many clients as may be do not read their answers. The next one gets its own, and the oldest is closed."""
    monkeypatch.setattr("purgatory._wsgi._MOST", 4)
    app = Answering(LARGE)
    with served(app, PATIENT_S) as server:
        idle = []
        for number in range(4):
            idle.append(clients(server, REQUEST))
            assert eventually(lambda stay=number + 1: stay == len(server._writing))
        assert len(answer_to(clients(server, REQUEST))) > len(app.body)
        assert len(answer_to(idle[0])) < len(app.body)
        assert len(answer_to(idle[-1])) > len(app.body)


def test_slow_answer_stops_no_other(clients):
    """While the app makes one answer, another request is answered."""
    app = Answering()
    with served(app, PATIENT_S) as server:
        slow = clients(server, REQUEST.replace(b"/x", b"/hang"))
        assert app.entered.wait(PATIENCE_S)
        assert is_answered(clients, server)
        app.hanging.set()
        assert answer_to(slow).endswith(b"answer")


def test_closed_connection_gets_no_answer_made(clients, monkeypatch):
    """A request whose connection was closed while it waited for a worker does not reach the app."""
    monkeypatch.setattr("purgatory._wsgi._MOST", 2)
    monkeypatch.setattr("purgatory._wsgi._WORKERS", 1)
    app = Answering()
    with served(app, PATIENT_S) as server:
        asking = [clients(server, REQUEST.replace(b"/x", b"/hang"))]
        assert app.entered.wait(PATIENCE_S)
        for _ in range(4):
            asking.append(clients(server, REQUEST))
            assert eventually(lambda: not server._reading)
        assert [b""] * 3 == [answer_to(client) for client in asking[:3]]
        app.hanging.set()
        assert all(answer_to(client).endswith(b"answer") for client in asking[3:])
    assert 3 == app.calls


def test_request_in_parts_is_answered(clients):
    """A request may come byte by byte, and its lines may end without a carriage return."""
    with served(Answering(), PATIENT_S) as server:
        for request in (REQUEST, REQUEST.replace(b"\r\n", b"\n")):
            client = clients(server)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in request:
                client.sendall(bytes([byte]))
            assert answer_to(client).endswith(b"answer")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 70_000, HTTPStatus.REQUEST_URI_TOO_LONG),
        (REQUEST[:-2] + b"A: " + b"x" * 70_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (REQUEST[:-2] + b"A: x\r\n" * 20_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (REQUEST[:-2] + b"A: x\r\n" * 200 + b"\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (b"GET / HTTP/x\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x00\xee\x01\x00", HTTPStatus.BAD_REQUEST),
    ],
    ids=["long line", "long header", "long head", "many headers", "no version", "TLS"],
)
def test_request_that_cannot_be_one_is_rejected_at_once(sent, status, clients):
    """A request that is too long, or is not HTTP, gets an error before its time is up. The app is not called."""
    app = Answering()
    with served(app, PATIENT_S) as server:
        client = clients(server)
        with contextlib.suppress(ConnectionError):
            client.sendall(sent)
        assert f" {status.value} ".encode() in answer_to(client).partition(b"\r\n")[0]
    assert 0 == app.calls


def test_client_that_leaves_is_forgotten(clients, logs):
    """Clients that close without a request, with half of one, or without reading leave nothing, and no line."""
    with served(Answering(LARGE), SOON_S) as server:
        for sent in (b"", REQUEST[:20], REQUEST):
            clients(server, sent).close()
        assert eventually(lambda: not any(server._stages))
    assert [] == logs


def test_error_of_the_server_is_one_line(clients, logs, monkeypatch):
    """A server that cannot answer logs it once. Here it has no standard error for the traceback of an app."""

    def broken(environ, start_response):
        raise ValueError("broken")

    monkeypatch.setattr(sys, "stderr", None)
    with served(broken, PATIENT_S) as server:
        for _ in range(10):
            assert b"" == answer_to(clients(server, REQUEST))
    assert ["request_failed"] == [event["event"] for event in logs]


def test_answer_under_way_is_sent_before_closing(clients):
    """Closing waits for the app and for the client, and closes idle connections."""
    app = Answering(LARGE)
    server = served(app, PATIENT_S)
    idle, slow = clients(server, REQUEST[:20]), clients(server, REQUEST.replace(b"/x", b"/hang"))
    assert app.entered.wait(PATIENCE_S)
    with beside(server.close):
        assert b"" == answer_to(idle)
        app.hanging.set()
        assert len(answer_to(slow)) > len(LARGE)
    with pytest.raises(ConnectionRefusedError):
        clients(server)


def test_app_that_hangs_does_not_hang_closing(clients, no_threads_left, monkeypatch):
    """Closing does not wait for long. The worker ends when the app returns."""
    monkeypatch.setattr("purgatory._wsgi._GRACE_S", SOON_S)
    app = Answering()
    server = served(app, PATIENT_S)
    client = clients(server, REQUEST.replace(b"/x", b"/hang"))
    assert app.entered.wait(PATIENCE_S)
    server.close()
    assert b"" == answer_to(client)
    app.hanging.set()


def test_process_without_file_descriptors_does_not_spin(clients, monkeypatch):
    """A connection that cannot be accepted waits until it can. The server's thread sleeps meanwhile."""
    sleeps = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: sleeps.append(s) or time.sleep(s))
    monkeypatch.setattr("purgatory._wsgi.time", clock)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served(Answering(), PATIENT_S) as server:
        client = clients(server, REQUEST[:1])
        assert eventually(lambda: server._reading)
        waiting = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, limits[1]))
        try:
            waiting.connect(("127.0.0.1", server.port))
            waiting.sendall(REQUEST)
            assert eventually(lambda: sleeps)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with waiting:
            assert answer_to(waiting).endswith(b"answer")
        client.sendall(REQUEST[1:])
        assert answer_to(client).endswith(b"answer")


#: Keeps many connections: silent ones, and ones that send a byte now and then. It connects again if one is closed.
CROWD = """
import contextlib, itertools, random, resource, selectors, socket, sys

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
crowd = min(int(sys.argv[2]), most - 100)
selector = selectors.DefaultSelector()
made = itertools.count(1)
while True:
    for _ in range(min(50, crowd - len(selector.get_map()))):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", int(sys.argv[1])))
        selector.register(client, selectors.EVENT_READ)
        if next(made) == crowd:
            print("crowded", flush=True)
    everyone = [key.fileobj for key in selector.get_map().values()]
    for client in random.choices(everyone, k=100):
        with contextlib.suppress(OSError):
            client.send(b"G")
    for key, _ in selector.select(0.02):
        selector.unregister(key.fileobj)
        key.fileobj.close()
"""


@pytest.mark.slow
def test_ten_thousand_idle_connections_stop_no_scrape():
    """Beside 10,000 idle and slow connections scrapes are answered within a second, and other threads go on."""
    took, pauses, done = [], [], threading.Event()

    def work():
        while not done.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            pauses.append(time.monotonic() - began)

    def scrape():
        began = time.monotonic()
        with urllib.request.urlopen(server.url, timeout=PATIENCE_S) as answer:
            assert b"python_info" in answer.read()
        took.append(time.monotonic() - began)

    worker = threading.Thread(target=work)
    with metrics.serve(0) as server:
        before = threading.active_count()
        command = [sys.executable, "-c", CROWD, str(server.port), "10000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as crowd:
            try:
                os.set_blocking(crowd.stdout.fileno(), False)
                worker.start()
                while (said := crowd.stdout.read()) is None:
                    scrape()
                assert b"crowded\n" == said
                for _ in range(50):
                    scrape()
                assert before + 1 == threading.active_count()
            finally:
                done.set()
                worker.join()
                crowd.kill()

    assert statistics.quantiles(took, n=20)[-1] < 1
    assert statistics.median(pauses) < 0.1
