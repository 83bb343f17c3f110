"""``purgatory top`` on an address where something else answers, or answers badly: one line, and an end."""

import contextlib
import json
import socketserver
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.console import cli
from purgatory.console._state import Sampler
from tests.support import PATIENCE_S, beside, park


@contextlib.contextmanager
def answering(*parts, rest_s=0.0):
    """A server that sends these bytes to each client: its address, and what the clients sent."""
    over, requests = threading.Event(), []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                requests.append(self.request.recv(65536))
                for part in parts:
                    self.request.sendall(part)
                    if over.wait(rest_s):
                        return

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server, beside(partial(server.serve_forever, 0.01)):
        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", requests=requests)
        finally:
            over.set()
            server.shutdown()


def answer(body, status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


BAD = {
    "no HTTP": b"220 mail ready\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
    "no JSON": answer(b"<html>"),
    "no UTF-8": answer(b"\xff\xfe"),
    "deep": answer(b"[" * 200_000),
    "a list": answer(b"[]"),
    "no list": answer(b'{"purgatories": 5}'),
    "no dictionaries": answer(b'{"purgatories": [5]}'),
    "half a state": answer(b'{"purgatories": [{"id": "p", "parked": 1}], "timers": []}'),
    "wrong types": answer(b'{"purgatories": [], "timers": [{}], "at": "now", "pid": 1}'),
    "a hostile reason": answer(b"", "500 \x1b[2J\x1b]0;owned\x07"),
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    "a long header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_bad_answer_is_one_line(body, capsys):
    with answering(body) as server:
        assert 2 == cli.main([server.url, "--once"])
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert ("", True, True) == (out, line.startswith("purgatory top: "), line.isprintable())


@pytest.mark.parametrize("part", [b"X-Drip: 1\r\n", b" "])
def test_answer_that_drips_ends_after_a_timeout(part, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_PATIENCE_S", 0.5)
    head = b"HTTP/1.1 200 OK\r\n" + (b"" if part != b" " else b"Content-Length: 1000\r\n\r\n")
    began = time.monotonic()
    with answering(head, *[part] * 600, rest_s=0.1) as server:
        assert 2 == cli.main([server.url, "--once"])
        assert time.monotonic() - began < PATIENCE_S  # half as long as the server would take
    assert f"{server.url} did not answer within 0.5 s" in capsys.readouterr().err


def test_token_follows_no_redirect(capsys):
    with answering(answer(b"{}")) as other, answering(answer(b"", "302 Found", Location=f"{other.url}/x")) as server:
        assert 2 == cli.main([server.url, "--once", "--token", "s3cret"])
        assert b"s3cret" in server.requests[0]
        assert [] == other.requests
    assert "answers 302 Found; give the address that it redirects to" in capsys.readouterr().err


def test_control_characters_are_escaped(capsys, monkeypatch):
    """Names of purgatories, types and timers move no cursor and turn no writing around."""
    monkeypatch.setenv("COLUMNS", "200")
    hostile = "p[red]\x1b[2J\u202e\x9b31m"
    with DelayedOperationPurgatory("plain", reaper_enabled=False) as purgatory:
        park(purgatory, "plain")
        plain = json.dumps(Sampler().look()).replace("Waiting", "plain")
    state = json.loads(plain.replace("plain", json.dumps(hostile)[1:-1]))
    with answering(answer(json.dumps(state).encode())) as server:
        assert 0 == cli.main([server.url, "--once"])
        shown = capsys.readouterr().out
        assert 0 == cli.main([server.url, "--json"])
        told = capsys.readouterr().out

    assert "p[red]\\x1b[2J\\u202e\\x9b31m" in shown
    assert state == json.loads(told)
    for text in (shown, told):
        assert not set("\x1b\u202e\x9b") & set(text)
