import asyncio
import gc
import json

import attrs
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


@attrs.frozen
class Answer:
    """The response of an ASGI app."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@pytest.fixture
def get():
    """Send one request to an ASGI app, and give the answer."""

    def request(app, path, *, method="GET", query="", headers=(), root_path=""):
        sent = []
        unread = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive():
            return unread.pop() if unread else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "root_path": root_path,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:1"), *((k.encode(), v.encode()) for k, v in headers)],
            "server": ("127.0.0.1", 1),
        }
        asyncio.run(app(scope, receive, send))
        start = sent[0]
        return Answer(
            start["status"],
            {name.decode(): value.decode() for name, value in start["headers"]},
            b"".join(message.get("body", b"") for message in sent[1:]),
        )

    return request
