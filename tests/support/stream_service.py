"""One stream of news in each framework, over ``polls.stream``. The variable FRAMEWORK chooses: see :data:`APPS`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from purgatory.aio import AsyncPurgatory
from purgatory.web import KEEP_ALIVE, LongPolls

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

news: list[bytes] = []
polls: LongPolls[Any] = LongPolls(AsyncPurgatory("streams"))


def publish(line: bytes) -> None:
    """Add a line, and have every stream look."""
    news.append(line)
    polls.purgatory.check_and_complete("news")


async def lines(receive: Any) -> AsyncIterator[bytes]:
    """What one client gets: every line from the first on."""
    sent = 0

    def find() -> bytes | None:
        nonlocal sent
        new, sent = news[sent:], len(news)
        return b"".join(b"%b\n" % line for line in new) or None

    yield b"hello\n"
    async for found in polls.stream(receive, find, keys=["news"]):
        yield b"\n" if found is KEEP_ALIVE else found


async def body_of(receive: Receive) -> bytes:
    """The body of a request."""
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def bare() -> Any:
    """No framework."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with polls.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = await body_of(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["method"] == "POST":
            publish(body)
        elif scope["path"] == "/news":
            async for line in lines(receive):
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def starlette() -> Any:
    """Starlette, behind two middlewares that pass each response on as a stream of their own."""
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.base import BaseHTTPMiddleware  # noqa: PLC0415
    from starlette.responses import Response, StreamingResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    async def post(request: Any) -> Any:
        publish(await request.body())
        return Response()

    async def get(request: Any) -> Any:
        return StreamingResponse(lines(request))

    async def root(_: Any) -> Any:
        return Response()

    async def passed_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    return Starlette(
        routes=[Route("/", root), Route("/news", post, methods=["POST"]), Route("/news", get)],
        lifespan=polls.lifespan,
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=passed_on) for _ in range(2)],
    )


def fastapi() -> Any:
    """FastAPI."""
    from fastapi import FastAPI, Request  # noqa: PLC0415
    from fastapi.responses import StreamingResponse  # noqa: PLC0415

    app = FastAPI(lifespan=polls.lifespan)
    globals()["Request"] = Request  # FastAPI reads the annotations as texts

    @app.post("/news")
    async def post(request: Request) -> None:
        publish(await request.body())

    @app.get("/news")
    async def get(request: Request) -> StreamingResponse:
        return StreamingResponse(lines(request))

    return app


def litestar() -> Any:
    """Litestar."""
    from litestar import Litestar, Request, get, post  # noqa: PLC0415
    from litestar.response import Stream  # noqa: PLC0415

    globals().update(Request=Request, Stream=Stream)  # Litestar reads the annotations as texts

    @post("/news")
    async def post_news(request: Request[Any, Any, Any]) -> None:
        publish(await request.body())

    @get("/news")
    async def get_news(request: Request[Any, Any, Any]) -> Stream:
        await request.body()
        return Stream(lines(request.receive))

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with polls.lifespan():
            yield

    return Litestar([post_news, get_news], lifespan=[lifespan])


def falcon() -> Any:
    """Falcon. It keeps ``receive`` to itself, so a wrapper puts it into the scope."""
    import falcon.asgi  # noqa: PLC0415

    class News:
        async def on_post(self, req: Any, _: Any) -> None:
            publish(await req.stream.read())

        async def on_get(self, req: Any, resp: Any) -> None:
            resp.stream = lines(req.scope["receive"])

    app = falcon.asgi.App()
    app.add_route("/news", News())

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await bare()(scope, receive, send)
        else:
            await app({**scope, "receive": receive}, receive, send)

    return wrapped


APPS = {make.__name__: make for make in (bare, starlette, fastapi, litestar, falcon)}
app = APPS[os.environ.get("FRAMEWORK", "bare")]()
