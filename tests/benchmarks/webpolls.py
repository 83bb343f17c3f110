"""
Three long-poll servers: ``python -m tests.benchmarks.webpolls KIND PORT``, for ``bench_web``.

- ``purgatory``: ``LongPolls``, as ``docs/web.md`` shows it.
- ``by hand``: the same features written by hand, as tightly as we could: a table of futures per key, one timer handle
  per poll, a listener for the client that goes, 503 when full and when the server stops.
- ``condition``: one ``asyncio.Condition`` per key. A client that goes is not noticed, nothing is bounded, and a stop
  waits.

Every server answers the same three requests:

    GET  /poll?key=K&at=N        waits until the version of K is at least N
    POST /rise?key=K&to=N        sets the version of K
    GET  /usage                  seconds of processor time so far, and how many polls wait
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

if TYPE_CHECKING:
    from starlette.requests import Request

    from purgatory import DelayedOperation

__all__ = ["KINDS", "ByHand", "main"]

KINDS = ("purgatory", "by hand", "condition")
TIMEOUT_S = 300
MOST = 10_000

versions: defaultdict[str, int] = defaultdict(int)


class WithPurgatory:
    """Long polls as the documentation shows them."""

    def __init__(self) -> None:
        self._purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("polls", max_parked=MOST)
        self._polls = LongPolls(self._purgatory)
        self.lifespan = self._polls.lifespan

    @property
    def waiting(self) -> int:
        return self._purgatory.parked

    def poll(self, request: Request, key: str, at: int) -> Awaitable[object]:
        return self._polls.wait_for(request, lambda: versions[key] >= at, keys=[key], timeout_ms=TIMEOUT_S * 1000)

    async def changed(self, key: str) -> None:
        self._purgatory.check_and_complete(key)


class ByHand:
    """The same features, written by hand: a hang-up, a deadline, a bound, and a stop that answers every poll."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, dict[asyncio.Future[str], Callable[[], bool]]] = defaultdict(dict)
        self._stopping = False
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self._stopping = True
        for futures in self._waiting.values():
            for future in futures:
                _answer(future, "stopping")

    async def poll(self, request: Request, key: str, at: int) -> None:
        def holds() -> bool:
            return versions[key] >= at

        if holds():
            return
        if self._stopping or self.waiting >= MOST:
            raise HTTPException(503, headers={"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        self._waiting[key][future] = holds
        self.waiting += 1
        timer = loop.call_later(TIMEOUT_S, _answer, future, "expired")
        listener = asyncio.ensure_future(self._listen(request, future))
        try:
            answer = await future
        finally:
            self.waiting -= 1
            timer.cancel()
            listener.cancel()
            futures = self._waiting[key]
            futures.pop(future, None)
            if not futures:
                self._waiting.pop(key, None)
        if answer == "stopping":
            raise HTTPException(503, headers={"Retry-After": "1"})
        if answer == "gone":
            raise HTTPException(499)

    async def changed(self, key: str) -> None:
        for future, holds in list(self._waiting.get(key, {}).items()):
            if holds():
                _answer(future, "holds")

    async def _listen(self, request: Request, future: asyncio.Future[str]) -> None:
        await request.body()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        _answer(future, "gone")


def _answer(future: asyncio.Future[str], answer: str) -> None:
    if not future.done():
        future.set_result(answer)


class WithCondition:
    """The simplest way."""

    def __init__(self) -> None:
        self._conditions: defaultdict[str, asyncio.Condition] = defaultdict(asyncio.Condition)
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield

    async def poll(self, _: Request, key: str, at: int) -> None:
        condition = self._conditions[key]
        self.waiting += 1
        try:
            async with asyncio.timeout(TIMEOUT_S), condition:
                await condition.wait_for(lambda: versions[key] >= at)
        finally:
            self.waiting -= 1

    async def changed(self, key: str) -> None:
        condition = self._conditions[key]
        async with condition:
            condition.notify_all()


def application(kind: str) -> Starlette:
    """One of the three servers."""
    kinds: dict[str, Callable[[], WithPurgatory | ByHand | WithCondition]]
    kinds = {"purgatory": WithPurgatory, "by hand": ByHand, "condition": WithCondition}
    waits = kinds[kind]()

    async def poll(request: Request) -> Response:
        asked = request.query_params
        await waits.poll(request, asked["key"], int(asked["at"]))
        return Response("ok")

    async def rise(request: Request) -> Response:
        asked = request.query_params
        versions[asked["key"]] = int(asked["to"])
        await waits.changed(asked["key"])
        return Response("ok")

    async def usage(_: Request) -> Response:
        return JSONResponse({"cpu_s": time.process_time(), "waiting": waits.waiting})

    routes = [Route("/poll", poll), Route("/rise", rise, methods=["POST"]), Route("/usage", usage)]
    return Starlette(routes=routes, lifespan=waits.lifespan)


def main() -> None:
    """Serve on the loopback interface."""
    kind, port = sys.argv[1:]
    uvicorn.run(
        application(kind),
        host="127.0.0.1",
        port=int(port),
        log_level="error",
        access_log=False,
        timeout_keep_alive=600,  # connections stay open while the other servers have their turns
    )


if __name__ == "__main__":
    main()
