"""Streams: what a client that stays connected gets, and how they end."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.websockets import WebSocket

from purgatory import InvalidSetting, WaitCancelled
from purgatory.aio import AsyncPurgatory
from purgatory.web import KEEP_ALIVE, LongPolls
from tests.support.loops import until

GONE = {"type": "http.disconnect"}


class Topic:
    """Items, and a client that reads them by a cursor."""

    def __init__(self, polls, *, as_receive=False, **options):
        self.items, self.next, self.got = [], 0, []
        self.messages = asyncio.Queue()
        request = self.messages.get if as_receive else Request({"type": "http", "headers": []}, self.messages.get)
        self.polls = polls
        self.stream = polls.stream(request, self.find, keys=["topic"], **options)
        self.task = asyncio.ensure_future(self.read())

    def find(self):
        if self.next == len(self.items):
            return None
        self.next += 1
        return self.items[self.next - 1]

    async def read(self):
        async for item in self.stream:
            self.got.append(item)

    def add(self, *items):
        self.items += items
        self.polls.purgatory.check_and_complete("topic")

    async def ended(self):
        await asyncio.wait_for(self.task, 10)
        await asyncio.sleep(0)  # the listener was cancelled
        assert (0, 1) == (self.polls.purgatory.parked, len(asyncio.all_tasks()))


@pytest.fixture
def polls(request):
    by_hand = {"timer": request.getfixturevalue("mock_timer")} if "mock_timer" in request.fixturenames else {}
    return LongPolls(AsyncPurgatory("streams", **by_hand))


@pytest.mark.parametrize("as_receive", [False, True])
async def test_items_come_in_order_and_once(polls, as_receive):
    """Those that are there and those that come later, one after the other, until the client hangs up."""
    topic = Topic(polls, as_receive=as_receive)
    topic.items.append(1)
    await until(lambda: topic.got == [1] and polls.purgatory.parked)
    topic.add(2, 3)
    topic.add(4)
    await until(lambda: topic.got == [1, 2, 3, 4])
    topic.messages.put_nowait(GONE)

    await topic.ended()
    await polls.purgatory.shutdown()


async def test_sign_of_life_comes_when_nothing_else_does(polls, mock_timer):
    """``KEEP_ALIVE`` is yielded after ``keep_alive_ms`` without an item, and again."""
    topic = Topic(polls, keep_alive_ms=1_000)
    for number in (1, 2):
        await until(lambda: polls.purgatory.parked)
        mock_timer.advance_clock(1_001)
        await until(lambda number=number: number * [KEEP_ALIVE] == topic.got)
    await until(lambda: polls.purgatory.parked)
    topic.add("item")
    await until(lambda: topic.got[2:] == ["item"])
    assert 0 == polls.purgatory.totals().expired - polls.purgatory.totals().expired_normally
    await polls.purgatory.shutdown()
    await topic.ended()


@pytest.mark.parametrize("drain", ["expire", "cancel"])
async def test_shutdown_ends_streams(polls, drain):
    """A stream ends without an exception when the purgatory is shut down, and one that begins later at once."""
    topic = Topic(polls)
    await until(lambda: polls.purgatory.parked)
    await polls.purgatory.shutdown(drain)
    await topic.ended()
    late = Topic(polls)
    await late.ended()

    assert [] == topic.got + late.got


async def test_full_purgatory_ends_the_stream():
    """There is no place to wait: the client connects again, perhaps elsewhere."""
    polls = LongPolls(AsyncPurgatory("small", max_parked=1))
    first = Topic(polls)
    await until(lambda: polls.purgatory.parked)
    second = Topic(polls)
    await asyncio.wait_for(second.task, 10)
    await polls.purgatory.shutdown()
    await first.ended()


async def test_client_that_goes_while_it_is_slow_is_noticed(polls):
    """A hang-up that comes while the generator rests at an item ends it before it asks again."""
    messages = asyncio.Queue()
    stream = polls.stream(messages.get, iter([1, 2]).__next__, keys=["topic"])
    assert 1 == await anext(stream)
    messages.put_nowait(GONE)
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await polls.purgatory.shutdown()


async def test_response_that_is_cancelled_leaves_nothing(polls):
    """A server that cancels the response removes the operation and ends the listener."""
    topic = Topic(polls)
    await until(lambda: polls.purgatory.parked)
    topic.task.cancel()
    await asyncio.wait({topic.task})
    await topic.stream.aclose()
    await asyncio.sleep(0)
    assert (0, 1) == (polls.purgatory.parked, len(asyncio.all_tasks()))
    await polls.purgatory.shutdown()


async def test_errors_are_raised(polls):
    """What ``find`` raises ends the stream, and so does a wait that another task removed."""
    topic = Topic(polls)
    await until(lambda: polls.purgatory.parked)
    polls.purgatory.cancel_for_key("topic")
    with pytest.raises(WaitCancelled):
        await topic.task
    with pytest.raises(ZeroDivisionError):
        await anext(polls.stream(asyncio.Queue().get, lambda: 1 / 0, keys=["topic"]))
    await polls.purgatory.shutdown()


@pytest.mark.parametrize("request_", [5, HTTPConnection({"type": "http"})])
async def test_request_is_checked(polls, request_):
    """What is no request, no WebSocket and no ``receive`` is not taken."""
    with pytest.raises(InvalidSetting, match="request must be a Request"):
        await anext(polls.stream(request_, lambda: None, keys=["topic"]))


async def test_stream_takes_a_websocket(polls):
    """It drops what the client sends, however much that is, and ends when the client goes."""
    messages, items = asyncio.Queue(), [1]
    websocket = WebSocket({"type": "websocket"}, messages.get, None)
    stream = polls.stream(websocket, lambda: items.pop() if items else None, keys=["topic"])
    assert 1 == await anext(stream)
    following = asyncio.ensure_future(anext(stream, "the end"))
    for _ in range(3_000):
        messages.put_nowait({"type": "websocket.receive", "text": "x" * 1_000})
    await until(messages.empty)
    items.append(2)
    polls.purgatory.check_and_complete("topic")
    assert 2 == await following
    messages.put_nowait({"type": "websocket.disconnect", "code": 1001})
    assert "the end" == await anext(stream, "the end")
    await polls.purgatory.shutdown()


@pytest.mark.parametrize("end", ["hang-up", "shutdown"])
@pytest.mark.parametrize("middlewares", range(3))
async def test_stream_ends_behind_middlewares(middlewares, end, polls):
    """A streaming response gets its items behind middlewares, and ends when the client or the server goes."""
    items, messages, sent = [1], asyncio.Queue(), []

    async def lines(request):
        async for item in polls.stream(request, lambda: items.pop() if items else None, keys=["topic"]):
            yield f"{item}\n"

    async def endpoint(request):
        return StreamingResponse(lines(request))

    async def send(message):
        sent.append(message)

    app = Starlette(routes=[Route("/", endpoint)])
    for _ in range(middlewares):
        app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    serving = asyncio.ensure_future(app(scope, messages.get, send))
    await until(lambda: polls.purgatory.parked)
    items.append(2)
    polls.purgatory.check_and_complete("topic")
    await until(lambda: b"2\n" in [message.get("body") for message in sent])
    if end == "hang-up":
        messages.put_nowait(GONE)
    else:
        await polls.purgatory.shutdown()
    await asyncio.wait_for(serving, 10)
    assert 0 == polls.purgatory.parked
    if end == "shutdown":  # the response is whole
        assert {"type": "http.response.body", "body": b"", "more_body": False} == sent[-1]
    await polls.purgatory.shutdown()
