"""Long polls in as many processes as you like: ``uvicorn examples.fleet.app:app --workers 4``.

    POST /topics/orders?body=hello&id=7                   publish. Repeat with the same id if the answer was lost
    GET  /topics/orders?after=POSITION&timeout_ms=30000   the messages after it. Waits for the first, [] if none comes

With the environment variable ``TARGETS`` each worker serves its own metrics and console: see ``targets.py``.
"""

import contextlib
import os
import signal
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request

from examples.fleet.targets import observed
from purgatory import DelayedOperation, metrics
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import (
    FeedError,
    Gone,
    InvalidPosition,
    PublishRejected,
    PublishUncertain,
    RecentEvents,
    RedisFeed,
)
from purgatory.web import LongPolls

TARGETS = os.environ.get("TARGETS")
KEEP = 1_000  # messages of a topic in the memory of each worker

LONGEST_MS = 60_000  # however long a client asks to wait
feed = RedisFeed(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), stream="messages")
purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("polls", max_parked=10_000)
polls = LongPolls(purgatory)
recent = RecentEvents(feed, per_key=KEEP)  # this worker's copy of the newest ones


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Follow the feed for as long as there are requests. If that ends, end the process."""
    async with observed(TARGETS):
        try:
            following = feed.follow(purgatory, recent.apply, reload=recent.reset, history=KEEP)
            async with following, polls.lifespan(app):
                yield
        except FeedError:
            signal.raise_signal(signal.SIGTERM)
            raise


app = FastAPI(lifespan=lifespan)


@app.post("/topics/{topic}")
async def publish(topic: str, body: str, id: str | None = None) -> str:  # noqa: A002
    """Give a message to all workers."""
    try:
        return str(await feed.publish(topic, body.encode(), id=id or None))
    except (PublishRejected, PublishUncertain) as error:  # it was not accepted, or perhaps it was
        code = 503 if isinstance(error, PublishRejected) else 504
        raise HTTPException(code, str(error), {"Retry-After": "1"}) from error


@app.get("/topics/{topic}")
async def poll(topic: str, request: Request, after: str = "", timeout_ms: int = 30_000) -> list[dict[str, str]]:
    """Answer with the messages after a position, as soon as there is one."""
    timeout_ms = min(timeout_ms, LONGEST_MS)
    try:
        start = recent.position(after)
        await polls.wait_for(request, lambda: recent.is_due(topic, start), keys=[topic], timeout_ms=timeout_ms)
        messages = recent.since(topic, start)
    except InvalidPosition as error:
        raise HTTPException(400, str(error)) from error
    except Gone as error:  # the client may have missed messages: it begins again without a position
        raise HTTPException(410, str(error)) from error
    return [{"position": str(event.position), "body": event.value.decode()} for event in messages]


if TARGETS is None:  # right for one worker only
    app.add_route("/metrics", metrics.app())
