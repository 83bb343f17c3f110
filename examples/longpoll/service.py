"""The HTTP side: publish, poll, and look at what waits.

    POST /topics/{topic}                       publish the body, any JSON; answers its number
    GET  /news?topic=orders:12&topic=mail:0    messages after number 12 of orders and 0 of mail, waiting for the first:
                                               200 with messages; 204 when ``timeout_ms`` is over; 503 when the server
                                               is shutting down, or as many polls wait as it will hold
    GET  /stats                                what waits, and how polls ended so far

A poll is five lines (``poll``): it waits under one key per topic until the feed has news. Publishing checks the topic's
key.

**A hang-up** ends the wait. The server is run with ``handler_cancellation=True``, so aiohttp cancels the handler of a
closed connection, and the purgatory removes the operation of a cancelled task.

**At the end** ``on_shutdown`` drains the purgatory: every poll that waits gets its 503 *before* the connections are
closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError

import attrs
from aiohttp import web

from examples.longpoll.feed import Feed
from purgatory import DelayedOperation, Outcome, PurgatoryClosed, PurgatoryFull
from purgatory.aio import AsyncPurgatory

__all__ = ["PURGATORY", "make_app"]

FEED = web.AppKey("feed", Feed)
PURGATORY = web.AppKey("purgatory", AsyncPurgatory[DelayedOperation])

#: How long a poll waits if it doesn't say, and how long it may.
DEFAULT_TIMEOUT_MS, LONGEST_TIMEOUT_MS = 30_000, 300_000
MOST_TOPICS = 100

routes = web.RouteTableDef()


def make_app(*, max_polls: int = 100_000, keep: int = 1000) -> web.Application:
    """The service, for aiohttp. Run it with ``handler_cancellation=True``."""
    app = web.Application()
    app[FEED] = Feed(keep)
    app[PURGATORY] = AsyncPurgatory("polls", max_parked=max_polls)
    app.add_routes(routes)
    app.on_shutdown.append(_answer_all)
    return app


async def _answer_all(app: web.Application) -> None:
    await app[PURGATORY].shutdown()


@routes.post("/topics/{topic}")
async def publish(request: web.Request) -> web.Response:
    """Take a message, and wake the polls of its topic."""
    try:
        body = await request.json()
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise web.HTTPBadRequest(text=f"the body is no JSON: {error}\n") from None
    message = request.app[FEED].publish(request.match_info["topic"], body)
    request.app[PURGATORY].check_and_complete(message.topic)
    return web.json_response({"topic": message.topic, "number": message.number}, status=201)


@routes.get("/news")
async def poll(request: web.Request) -> web.Response:
    """Answer with news, as soon as there are any."""
    feed, purgatory = request.app[FEED], request.app[PURGATORY]
    seen, timeout_ms = _asked_for(request)
    try:
        outcome = await purgatory.wait_for(
            lambda: feed.has_news(seen), keys=list(seen), timeout_ms=timeout_ms, normal_ends={Outcome.EXPIRED}
        )
    except PurgatoryFull:
        raise _unavailable("too many polls are waiting") from None
    except PurgatoryClosed:
        raise _unavailable("shutting down") from None
    if outcome is Outcome.EXPIRED:
        if purgatory.is_closed:
            raise _unavailable("shutting down")
        return web.Response(status=204)
    return web.json_response({"messages": [attrs.asdict(message) for message in feed.news(seen)]})


@routes.get("/stats")
async def stats(request: web.Request) -> web.Response:
    """How the purgatory stands."""
    snapshot = request.app[PURGATORY].snapshot()
    return web.json_response({**attrs.asdict(snapshot.totals), "waiting": snapshot.parked, "keys": snapshot.keys})


def _asked_for(request: web.Request) -> tuple[Mapping[str, int], int]:
    """The last number seen of each topic, and how long to wait."""
    try:
        seen = {}
        for asked in request.query.getall("topic", ()):
            topic, _, number = asked.rpartition(":")
            if not topic:
                raise ValueError(f"topic={asked!r}")  # noqa: TRY301  # answered below
            seen[topic] = int(number)
        timeout_ms = int(request.query.get("timeout_ms", DEFAULT_TIMEOUT_MS))
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}: ask by ?topic=NAME:LAST_SEEN&timeout_ms=MILLISECONDS\n") from None
    if not 1 <= len(seen) <= MOST_TOPICS:
        raise web.HTTPBadRequest(text=f"ask for 1 to {MOST_TOPICS} topics: ?topic=NAME:LAST_SEEN\n")
    if not 0 <= timeout_ms <= LONGEST_TIMEOUT_MS:
        raise web.HTTPBadRequest(text=f"timeout_ms must be 0 to {LONGEST_TIMEOUT_MS}\n")
    return seen, timeout_ms


def _unavailable(why: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=f"{why}\n", headers={"Retry-After": "1"})
