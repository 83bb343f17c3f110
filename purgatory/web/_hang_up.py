"""Waiting for something, unless the client goes away first.

An ASGI server reports a hang-up in the stream of the request itself: after the last piece of the body comes the message
``http.disconnect``. An endpoint that waits does not read the stream. So a second task, the listener, reads on while the
endpoint waits.

:func:`listen` serves the operations of :class:`~purgatory.web.LongPolls`: when the client goes, it takes the
operation out of the purgatory, which wakes the endpoint. A wait costs that one task. The endpoint cancels it and does
not wait for its end.

:func:`unless_hung_up` serves any other awaitable, and runs that in a task of its own:

    the wait ends first         the listener is cancelled, and the endpoint goes on with the result
    the client goes first       the wait is cancelled, and :class:`HungUp` is raised, because there is no client
    the endpoint is cancelled   both are cancelled, and the cancellation is raised

The listener also takes the messages of the body. The request returns them first when the endpoint reads its body,
during the wait or after it. So a wait that ends while the body is still arriving loses nothing. A listener ends when it
has taken a mebibyte, and leaves the rest to the flow control of the server. So no client can fill the memory.

**Rejected**: polling ``request.is_disconnected()``, which notices it late and costs CPU time while nothing happens.
Cancelling the endpoint's own task from outside, because that looks like any other cancellation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from purgatory import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Receive

    from purgatory import DelayedOperation

ResultT = TypeVar("ResultT")

_DISCONNECT = frozenset({"http.disconnect", "websocket.disconnect"})
_CLIENT_CLOSED_REQUEST = 499  # no standard defines it, but proxies log it

#: How much of a body a listener takes, and what a piece counts as at least.
_MOST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 10

#: How many turns of the loop it takes at most from a closed socket to a listener that wakes, and between two wakes. The
#: transport reads the end of the stream, it reports the lost connection, and the listener wakes.
_TURNS_TO_WAKE = 4
#: How many turns all of that may take. One middleware of ``@app.middleware("http")`` takes two.
_MOST_TURNS = 256


class HungUp(HTTPException):
    """The client closed the connection before there was an answer.

    As an ``HTTPException`` it needs no handler: it ends the endpoint, and its response is dropped.
    """

    def __init__(self) -> None:
        super().__init__(_CLIENT_CLOSED_REQUEST, "the client hung up")


def checked_request(request: object) -> Request:
    """``request`` if it is one. A WebSocket, for example, has messages that a listener must not take."""
    if not isinstance(request, Request):
        hint = "for a WebSocket, await AsyncPurgatory.park, and cancel the operation when the client goes"
        raise InvalidSetting("request", request, "a Request of Starlette or FastAPI", hint)
    return request


def listen(request: Request, operation: DelayedOperation) -> asyncio.Task[bool]:
    """Listen for the client of a request while an operation waits for it. Cancel the task to stop.

    The task removes the operation when the client goes. See :func:`is_gone` for its result.
    """
    return asyncio.ensure_future(listen_for_hang_up(buffered_receive(request), operation.cancel))


def is_gone(listener: asyncio.Task[bool]) -> bool:
    """Whether the client is known to have gone."""
    return listener.done() and not listener.cancelled() and listener.result()


async def is_gone_by_now(listener: asyncio.Task[bool]) -> bool:
    """Whether the client has gone as far as this process can know: the loop reads its sockets first.

    The report of a hang-up passes each middleware between the server and the endpoint, and wakes the listener there.
    So this waits until the listener has waited for the same future for some turns.
    """
    turns = 0  # since the listener was woken
    for _ in range(_MOST_TURNS):
        if listener.done() or turns == _TURNS_TO_WAKE:
            break
        waits_for = _waits_for(listener)
        await asyncio.sleep(0)
        turns = turns + 1 if waits_for is not None and waits_for is _waits_for(listener) else 0
    return is_gone(listener)


def _waits_for(task: asyncio.Task[bool]) -> object:
    """The future that a task waits for. None if it is about to run."""
    future: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)  # asyncio has no public way to read it
    return None if future is None or future.done() else future


async def unless_hung_up(request: Request, waiting: Awaitable[ResultT]) -> ResultT:
    """Await ``waiting``, and cancel it if the client hangs up first. If both happen at once, the result counts.

    Raises:
        HungUp: the client has gone.
        InvalidSetting: ``request`` is not an HTTP request.
        Exception: whatever ``waiting`` raises.
    """
    checked_request(request)
    waiter = asyncio.ensure_future(waiting)
    listener = asyncio.ensure_future(listen_for_hang_up(buffered_receive(request), waiter.cancel))
    try:
        await asyncio.wait({waiter})
    finally:
        for task in (waiter, listener):
            task.cancel()
        await asyncio.wait({waiter, listener})  # both have ended before the endpoint goes on
    if waiter.cancelled() and is_gone(listener):
        raise HungUp
    return waiter.result()


class _BufferedReceive:
    """The ``receive`` of a request with a listener. It returns first the messages that a listener has taken."""

    __slots__ = ("messages", "receive")

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.messages: list[Message] = []

    async def __call__(self) -> Message:
        return self.messages.pop(0) if self.messages else await self.receive()


def buffered_receive(request: Request | WebSocket | Receive) -> _BufferedReceive:
    """The request's messages, for a listener. A request has one such object, however many waits it makes.

    Raises:
        InvalidSetting: it is neither a request nor the ``receive`` of one.
    """
    if not isinstance(request, (Request, WebSocket)):
        if isinstance(request, HTTPConnection) or not callable(request):
            checked_request(request)  # raises
        return request if isinstance(request, _BufferedReceive) else _BufferedReceive(request)
    buffered = request._receive  # noqa: SLF001  # a WebSocket has no public one
    if not isinstance(buffered, _BufferedReceive):
        buffered = request._receive = _BufferedReceive(buffered)  # noqa: SLF001  # Starlette has no public way to set it
    return buffered


async def listen_for_hang_up(buffered: _BufferedReceive, cancel: Callable[[], object]) -> bool:
    """Take messages until the client goes, and then cancel what waits for it. Returns whether the client has gone.

    The messages of a WebSocket are dropped, so a client may send any number of them.
    """
    messages = buffered.messages
    room = _MOST_BYTES - sum(map(_size, messages))
    try:
        while not messages or messages[-1]["type"] not in _DISCONNECT:
            if room <= 0:
                return False
            message = await buffered.receive()
            if message["type"] != "websocket.receive":
                messages.append(message)
                room -= _size(message)
    except Exception:  # noqa: BLE001  # a server that fails to report a hang-up is not asked again
        return False
    cancel()
    return True


def _size(message: Message) -> int:
    return max(_LEAST_BYTES, len(message.get("body", b"")))
