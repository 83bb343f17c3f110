"""Long polls in as many processes as you like: ``uvicorn examples.fleet.app:app --workers 4``.

    POST /topics/orders?body=hello&id=7                   publish. Repeat with the same id if the answer was lost
    GET  /topics/orders?after=POSITION&timeout_ms=30000   the messages after it. Waits for the first, [] if none comes

With the environment variable ``TARGETS`` each worker serves its own metrics and console: see ``targets.py``.
"""

import contextlib
import itertools
import os
import signal
from collections import deque
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request

from examples.fleet.targets import observed
from purgatory import DelayedOperation, metrics
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import Event, FeedError, InvalidPosition, Position, PublishRejected, PublishUncertain, RedisFeed
from purgatory.feeds.engine import LogPosition
from purgatory.web import LongPolls

TARGETS = os.environ.get("TARGETS")
KEEP = 1_000  # messages in the memory of each worker

# [the worker]
feed = RedisFeed(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), stream="messages")
purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("polls", max_parked=10_000)
polls = LongPolls(purgatory)
messages: deque[Event] = deque(maxlen=KEEP)  # this worker's copy of the newest ones


def apply(event: Event) -> list[str]:
    """Change the copy, and name the key whose polls are to be checked."""
    messages.append(event)
    return [event.key]


async def reload() -> Position:
    """At the start and after a gap: begin with the last messages that the feed has."""
    reader = await feed.open_reader()
    try:
        end = await reader.end()
    finally:
        await reader.close()
    assert isinstance(end, LogPosition)
    messages.clear()
    return LogPosition(end.epoch, max(0, end.offset - KEEP))


def newer(topic: str, start: Position | None) -> list[Event]:
    """The messages of a topic after a position. A poll has mostly seen all but the last ones."""
    later = itertools.takewhile(lambda event: start is None or event.position > start, reversed(messages))
    return [event for event in later if event.key == topic][::-1]


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Follow the feed for as long as there are requests. If that ends, end the process."""
    async with observed(TARGETS):
        try:
            async with feed.follow(purgatory, apply, reload=reload), polls.lifespan(app):
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
    try:
        start = feed.position(after) if after else None
    except InvalidPosition as error:
        raise HTTPException(400, str(error)) from error
    if start is not None and messages and start < (first := messages[0].position) and start.events_until(first) != 1:
        raise HTTPException(410, "the messages after this position are gone: ask without after=")
    await polls.wait_for(request, lambda: newer(topic, start), keys=[topic], timeout_ms=timeout_ms)
    return [{"position": str(event.position), "body": event.value.decode()} for event in newer(topic, start)]


# [end of the worker]
if TARGETS is None:  # right for one worker only
    app.add_route("/metrics", metrics.app())
