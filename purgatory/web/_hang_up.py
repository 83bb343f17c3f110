"""Waiting for something, unless the client goes away first.

An ASGI server tells of it in the stream of the request itself: behind the last piece of the body comes the message
``http.disconnect``. Nobody reads it while an endpoint waits, and so nobody hears it. Here a second task reads on while
the first one waits:

    the waiting ends first    the listener is cancelled, and the endpoint goes on with the result
    the client goes first     the waiting is cancelled, which takes its operation out of the purgatory, and
                              :class:`HungUp` is raised: there is nobody to answer
    the endpoint is cancelled both are, and the cancellation goes on its way

The body is read before anything else, and kept by the request: ``await request.body()`` gives it later, too.

**Rejected**: asking ``request.is_disconnected()`` every so often, which hears of it late and works while nothing
happens; the endpoint's own task being cancelled from outside, which can't be told from a cancellation that somebody
else meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

__all__ = ["HungUp", "unless_hung_up"]

ResultT = TypeVar("ResultT")

_CLIENT_CLOSED_REQUEST = 499  # no standard's number, but the one that proxies write into their logs for it


class HungUp(HTTPException):
    """The client closed the connection before there was an answer.

    As an ``HTTPException`` it needs no handler: it ends the endpoint, and the answer made of it goes nowhere.
    """

    def __init__(self) -> None:
        super().__init__(_CLIENT_CLOSED_REQUEST, "the client hung up")


async def unless_hung_up(request: Request, waiting: Awaitable[ResultT]) -> ResultT:
    """Await ``waiting``; cancel it if the client hangs up first. If both happen at once, what was waited for counts.

    Raises:
        HungUp: the client has gone.
        Exception: whatever ``waiting`` raises.
    """
    waiter = asyncio.ensure_future(waiting)
    listener = asyncio.ensure_future(_listen(request))
    try:
        await asyncio.wait({waiter, listener}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Both, and seen to their ends: an operation is out of its purgatory before its endpoint is left.
        for task in (waiter, listener):
            task.cancel()
        await asyncio.wait({waiter, listener})
        if not listener.cancelled():
            listener.exception()  # a server that fails to say who is there is not asked about it again
    if waiter.cancelled() and not listener.cancelled():
        raise HungUp
    return waiter.result()


async def _listen(request: Request) -> None:
    """Return when the client has gone."""
    try:
        await request.body()
    except ClientDisconnect:
        return
    except RuntimeError:
        pass  # the endpoint has read the body as a stream
    while (await request.receive())["type"] != "http.disconnect":
        pass
