"""The connections of the console's own server: a client that is silent or does not read is closed."""

import contextlib
import socket

import pytest

from purgatory.console import _app, _connections, serve
from tests.support import PATIENCE_S

REQUEST = b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def console():
    with serve(0) as console:
        yield console


@pytest.fixture
def connect(console):
    """Connects, sends, and closes all connections in the end."""
    with contextlib.ExitStack() as stack:

        def connect(sent=b""):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE_S)
            client.connect(("127.0.0.1", console.port))
            client.sendall(sent)
            return client

        yield connect


def is_answered(client):
    return client.recv(12) == b"HTTP/1.1 200"


def is_closed(client):
    """Whether the server closes the connection in time."""
    with contextlib.suppress(ConnectionError):
        while client.recv(65_536):
            pass
    return True


@pytest.mark.parametrize("sent", [b"", REQUEST[:20], REQUEST[:-2], REQUEST + REQUEST[:20]])
def test_silent_client_is_closed(connect, monkeypatch, sent):
    """It has sent nothing, a part of a request, or a part of another one, and it waits."""
    monkeypatch.setattr(_connections, "PATIENCE_S", 0.1)
    assert is_closed(connect(sent))


def test_client_that_does_not_read_is_closed(connect, monkeypatch):
    """Its answers fill the buffers. It cannot keep a stream open for ever."""
    monkeypatch.setattr(_connections, "PATIENCE_S", 0.3)
    monkeypatch.setattr(_app, "_event", lambda *_: b"x" * 10_000_000)
    client = connect(REQUEST.replace(b"/api/state", b"/events"))
    assert is_answered(client)
    with pytest.raises(OSError, match=".*"):  # noqa: PT012  # sending to it fails at last
        while True:
            client.send(b"x")
            assert not is_late(client)


def is_late(client):
    """Wait a moment. It never is."""
    with contextlib.suppress(TimeoutError):
        client.settimeout(0.02)
        client.recv(0)
    return False


def test_client_that_asks_again_and_again_is_not_closed(connect, monkeypatch):
    """A page keeps its connection."""
    monkeypatch.setattr(_connections, "PATIENCE_S", 0.5)
    client = connect()
    answers = client.makefile("rb")
    for _ in range(40):
        client.sendall(REQUEST)
        head = b"".join(iter(answers.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 200")
        (length,) = (int(line.split()[1]) for line in head.splitlines() if line.startswith(b"content-length"))
        answers.read(length)


def test_one_more_connection_closes_the_oldest_silent_one(connect, monkeypatch):
    """However many clients are silent, the next one is answered."""
    monkeypatch.setattr(_connections, "MOST", 5)
    first = connect(REQUEST)
    assert is_answered(first)
    silent = [connect() for _ in range(20)]
    assert is_answered(connect(REQUEST))
    assert all(is_closed(client) for client in silent[:15])
    first.sendall(REQUEST)
    assert first.recv(1)
