"""The console as an ASGI app: the page, its events, and the same facts as JSON.

    /                   the page
    /events             server-sent events: once ``history``, then ``state`` twice per second
    /api/state          the state, as in the event
    /api/history        as in the event
    /api/operations     ?purgatory=ID&key=TEXT: the operations under a key

Mount it with ``Mount("/purgatory", app())`` in Starlette, ``app.mount("/purgatory", console_app())`` in FastAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from purgatory._serving import check_token
from purgatory.console._guard import Guard
from purgatory.console._hub import Hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The number of pages that may be open at once. Each holds a connection.
_MOST_WATCHERS: Final = 64
#: Seconds until a stream of events ends. The page then connects again. A stopping server waits for open responses, and
#: a mounted app does not learn that the server stops.
_STREAM_S: Final = 5.0
_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/wheel.js": ("wheel.js", "text/javascript"),
}


def app(*, token: str | None = None) -> ASGIApp:
    """The console, to be mounted in a service. Every client that can reach the path can look, unless a token is set.

    Args:
        token: what a visitor must know, in the page's address as ``?token=...`` or as a bearer token.

    Raises:
        InvalidSetting: the token is not a text, or it is empty.
    """
    return make_app(Hub(), token=token, hosts=None)


def make_app(hub: Hub, *, token: str | None, hosts: Collection[str] | None) -> ASGIApp:
    """The console on a hub of the caller's. For the arguments see :class:`~purgatory.console._guard.Guard`."""
    check_token("localhost", token, "keys")  # which machines can reach the app is for the service to decide
    console = _Console(hub)
    routes = [
        *(_static(path, name, kind) for path, (name, kind) in _PAGE.items()),
        Route("/events", console.events),
        Route("/api/state", console.state),
        Route("/api/history", console.history),
        Route("/api/operations", console.operations),
    ]
    return Guard(Starlette(routes=routes, lifespan=console.lifespan), token, hosts)


def _static(path: str, name: str, kind: str) -> Route:
    content = (files("purgatory.console") / "page" / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(path, answer)


class _Console:
    """The answers that are not files."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._watchers = 0

    async def state(self, _: Request) -> Response:
        return _json(await run_in_threadpool(self._hub.latest))

    async def history(self, _: Request) -> Response:
        self._hub.note_viewer()
        return _json(await run_in_threadpool(self._hub.history))

    async def operations(self, request: Request) -> Response:
        identity, key = request.query_params.get("purgatory"), request.query_params.get("key")
        if identity is None or key is None:
            return JSONResponse(
                {"error": "purgatory and key must be given: ?purgatory=ID&key=TEXT, both as in /api/state"}, 400
            )
        operations = await run_in_threadpool(self._hub.operations, identity, key)
        if operations is None:
            return JSONResponse({"error": f"there is no purgatory {identity!r}; /api/state lists them"}, 404)
        return _json(operations)

    async def events(self, request: Request) -> Response:
        if self._watchers >= _MOST_WATCHERS:
            return Response(f"{_MOST_WATCHERS} pages are open already", 503, {"Retry-After": "10"})
        self._watchers += 1  # before anything is awaited, because many may come at once
        try:
            latest = await run_in_threadpool(self._hub.latest)
        except BaseException:
            self._leave()
            raise
        stream = self._stream(latest, _event_time(request.headers.get("last-event-id", "")))
        return _Events(stream, self._leave)

    def _leave(self) -> None:
        """A stream has ended."""
        self._watchers -= 1

    async def _stream(self, latest: bytes, since: float) -> AsyncIterator[bytes]:
        """The events for a page. ``since`` is the time of the last event that it has."""
        hub = self._hub
        end = time.monotonic() + _STREAM_S
        yield b"retry: 250\n"
        yield await run_in_threadpool(_history_event, hub, since)
        yield _event("state", latest)
        seen = hub.version
        while not hub.is_closed and time.monotonic() < end:
            await asyncio.sleep(0.1)
            hub.note_viewer()
            if hub.version != seen:
                seen = hub.version
                yield _event("state", await run_in_threadpool(hub.latest))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._hub.start()
        try:
            yield
        finally:
            await run_in_threadpool(self._hub.close)


class _Events(StreamingResponse):
    """A stream of events. It calls ``at_end`` once, however it ends, also if it never begins."""

    def __init__(self, stream: AsyncIterator[bytes], at_end: Callable[[], None]) -> None:
        super().__init__(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _event(kind: str, data: bytes) -> bytes:
    """A server-sent event. A browser that connects again sends the last ``id``."""
    return b"id: %r\nevent: %s\ndata: %s\n\n" % (time.time(), kind.encode(), data)


def _history_event(hub: Hub, since: float) -> bytes:
    return _event("history", hub.history(since))


def _event_time(text: str) -> float:
    """The time in the ``id`` of an event, or the beginning of time for another text."""
    try:
        return float(text)
    except ValueError:
        return float("-inf")
