import asyncio
import gc

import httpx
import pytest

from purgatory.console import _hub


@pytest.fixture(autouse=True)
def alone():
    """The console shows every purgatory of the process: those that other tests have left to the collector go first."""
    gc.collect()


@pytest.fixture(autouse=True)
def quiet(logs):
    """Lines about purgatories that come and go are caught here."""


@pytest.fixture
def hub():
    """A hub that is closed in the end."""
    made = _hub.Hub()
    yield made
    made.close()


@pytest.fixture
def get():
    """Send one request to an ASGI app, and give the answer."""

    async def ask(app, path, query, headers):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            return await client.get(f"{path}?{query}" if query else path, headers=list(headers))

    return lambda app, path, query="", headers=(): asyncio.run(ask(app, path, query, headers))
