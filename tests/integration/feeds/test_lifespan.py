"""A feed in the lifespan of a web application: what the docstring of ``Following`` says to write."""

import signal

import pytest

from tests.support.served import served

APP = """
import contextlib
import signal

from fastapi import FastAPI

from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedError, MemoryFeed

feed = MemoryFeed()
purgatory = AsyncPurgatory("polls")
state = []


def apply(event):
    state.append(event.value)
    return [event.key]


@contextlib.asynccontextmanager
async def lifespan(app):
    try:
        async with purgatory, feed.follow(purgatory, apply) as following:
            app.state.following = following
            yield
    except FeedError:
        signal.raise_signal(signal.SIGTERM)
        raise


app = FastAPI(lifespan=lifespan)


@app.get("/publish")
async def publish():
    await app.state.following.applied(await feed.publish("key", b"1"))
    return len(state)


@app.get("/empty")
async def empty():
    feed.restart()
"""


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.slow
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_gap_without_reload_ends_the_process(tmp_path, server):
    """The worker must not serve on with a state that stands still. Its supervisor starts another."""
    (tmp_path / "feeds_app.py").write_text(APP, encoding="utf-8")
    port = {"uvicorn": ("--port", "{port}"), "hypercorn": ("--bind", "127.0.0.1:{port}")}[server]
    with served(server, "feeds_app:app", *port, cwd=tmp_path, ready="/openapi.json") as process:
        assert "1" == process.get("/publish")
        process.get("/empty")
        assert process.end() in {0, 1, 3, -signal.SIGTERM}, process.output
        assert "FeedGap" in process.output
