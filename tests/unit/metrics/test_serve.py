"""Serving the page: from a thread of its own, and as an ASGI app."""

import asyncio
import os
import signal
import urllib.request

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import app, serve


def test_page_is_served(registry):
    """``serve`` registers and answers on loopback."""
    with DelayedOperationPurgatory("fetch", timer_enabled=False), serve(0, registry=registry) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            assert b'purgatory_parked_operations{purgatory="fetch"} 0.0' in answer.read()


def test_asgi_app_answers(registry):
    """``app`` is an ASGI app that answers with the page."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": []}
    with DelayedOperationPurgatory("fetch", timer_enabled=False):
        asyncio.run(app(registry)(scope, receive, send))

    assert 200 == sent[0]["status"]
    assert b'purgatory="fetch"' in sent[1]["body"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_server_closes_in_a_forked_child(registry):
    """A forked child, which does not have the server's thread, closes its copy at once."""
    with serve(0, registry=registry) as server:
        urllib.request.urlopen(server.url, timeout=10).close()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # ends the child if it hangs
            server.close()
            os._exit(0)
        assert 0 == os.waitpid(pid, 0)[1]
        urllib.request.urlopen(server.url, timeout=10).close()
