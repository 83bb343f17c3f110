"""Long polls in as many processes as you like: ``uvicorn examples.fleet.app:app --workers 4``.

    POST /topics/orders?body=hello                        publish; answers the message's number
    GET  /topics/orders?after=NUMBER&timeout_ms=30000     the messages after it, waiting for the first; [] if there is
                                                          none in time

A client says which message it saw last, so it may ask any worker, and another one each time.

With the environment variable ``TARGETS``, a folder, each worker serves its metrics and its console on free ports of its
own, and announces the metrics to Prometheus in that folder (see ``targets``). Without it, ``/metrics`` is on the port
of the requests, which is right for one worker per port only.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
from fastapi import FastAPI, HTTPException, Request
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import RedisError

from examples.fleet.feed import Feed
from examples.fleet.targets import target
from purgatory import DelayedOperation, console, metrics
from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("polls", max_parked=10_000)
polls = LongPolls(purgatory)
feed = Feed(
    Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), decode_responses=True),
    purgatory.check_and_complete,
)


TARGETS = os.environ.get("TARGETS")

log = logging.getLogger("uvicorn.error")


@contextlib.asynccontextmanager
async def observed(folder: str) -> AsyncIterator[None]:
    """Serve this worker's metrics and console on ports of their own, and announce the metrics."""
    worker = str(os.getpid())
    with metrics.serve(0, registry=CollectorRegistry()) as measured, console.serve(0) as page:
        log.info("worker %s: metrics at %s, console at %s", worker, measured.url, page.url)
        async with target(Path(folder), f"127.0.0.1:{measured.port}", worker=worker):
            yield


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Follow the stream for as long as there are requests."""
    async with contextlib.AsyncExitStack() as stack:
        if TARGETS is not None:
            await stack.enter_async_context(observed(TARGETS))
        await stack.enter_async_context(feed)
        await stack.enter_async_context(polls.lifespan(app))
        yield


app = FastAPI(lifespan=lifespan)
if TARGETS is None:
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
