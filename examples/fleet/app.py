"""Long polls in as many processes as you like: ``uvicorn examples.fleet.app:app --workers 4``.

    POST /topics/orders?body=hello                        publish; answers the message's number
    GET  /topics/orders?after=NUMBER&timeout_ms=30000     the messages after it, waiting for the first; [] if there is
                                                          none in time

A client says which message it saw last, so it may ask any worker, and another one each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import attrs
from fastapi import FastAPI, HTTPException, Request
from redis.asyncio import Redis
from redis.exceptions import RedisError

from examples.fleet.feed import Feed
from purgatory import DelayedOperation, metrics
from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("polls", max_parked=10_000)
polls = LongPolls(purgatory)
feed = Feed(
    Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), decode_responses=True),
    purgatory.check_and_complete,
)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Follow the stream for as long as there are requests."""
    async with feed, polls.lifespan(app):
        yield


app = FastAPI(lifespan=lifespan)
app.add_route("/metrics", metrics.app())


@app.post("/topics/{topic}")
async def publish(topic: str, body: str) -> str:
    """Give a message to all workers."""
    try:
        return await feed.publish(topic, body)
    except RedisError as error:
        raise HTTPException(503, "messages can't be taken now", headers={"Retry-After": "1"}) from error


@app.get("/topics/{topic}")
async def poll(topic: str, request: Request, after: str = "0-0", timeout_ms: int = 30_000) -> list[dict[str, Any]]:
    """Answer with what came after, as soon as there is something."""
    try:
        feed.after(topic, after)
    except ValueError:
        raise HTTPException(400, "after= takes the number of a message") from None
    await polls.wait_for(request, lambda: feed.after(topic, after), keys=[topic], timeout_ms=timeout_ms)
    return [attrs.asdict(message) for message in feed.after(topic, after)]
