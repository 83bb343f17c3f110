"""Serving the page: from a thread of its own, and as an ASGI app."""

import os
import signal
import urllib.request

import httpx
import pytest
from starlette.applications import Starlette

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import app, serve


async def test_asgi_app_answers(registry):
    """``app`` is an ASGI app that answers with the page, as a route under its own path, without a redirect."""
    service = Starlette()
    service.add_route("/metrics", app(registry))
    with DelayedOperationPurgatory("fetch", timer_enabled=False):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://test") as client:
            answer = await client.get("/metrics")
    assert 200 == answer.status_code
    assert 'purgatory_parked_operations{purgatory="fetch"} 0.0' in answer.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_server_closes_in_a_forked_child(registry):
    """A forked child, which does not have the server's thread, closes its copy at once."""
    with serve(0, registry=registry) as server:
        assert server.url.startswith("http://127.0.0.1:")
        urllib.request.urlopen(server.url, timeout=10).close()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # ends the child if it hangs
            server.close()
            os._exit(0)
        assert 0 == os.waitpid(pid, 0)[1]
        urllib.request.urlopen(server.url, timeout=10).close()
