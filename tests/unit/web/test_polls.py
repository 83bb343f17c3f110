"""Waiting for an HTTP client, on requests whose every message is the test's."""

import asyncio
import pickle

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.websockets import WebSocket

from purgatory import InvalidSetting, NoKeys, Outcome, PurgatoryClosed, WaitCancelled
from purgatory.aio import AsyncPurgatory
from purgatory.web import HungUp, LongPolls, Unavailable, unless_hung_up
from tests.support import Waiting
from tests.support.loops import until


class Client:
    """The other end of a request: sends a body, and hangs up on request."""

    def __init__(self, *messages):
        self.messages = asyncio.Queue()
        for message in messages or ({"type": "http.request", "body": b"", "more_body": False},):
            self.messages.put_nowait(message)
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self.messages.get)

    def hang_up(self):
        self.messages.put_nowait({"type": "http.disconnect"})


def poll(polls, client=None, holds=lambda: False, timeout_ms=60_000, **options):
    """A task that waits under "k" until it holds, for the client."""
    request = (client or Client()).request
    return asyncio.ensure_future(polls.wait_for(request, holds, keys=["k"], timeout_ms=timeout_ms, **options))


def take(polls, client=None, find=lambda: None, timeout_ms=60_000, **options):
    """A task that waits under "k" for what is found, for a client or a request."""
    request = client if isinstance(client, Request) else (client or Client()).request
    return asyncio.ensure_future(polls.wait_for_result(request, find, keys=["k"], timeout_ms=timeout_ms, **options))


def body(text, more=False):
    return {"type": "http.request", "body": text, "more_body": more}


def after(call):
    """A coroutine function that calls."""

    async def called(*args):
        call(*args)

    return called


GONE = {"type": "http.disconnect"}


async def nothing_left(purgatory):
    """Neither an operation nor a task is left of a wait."""
    assert (0, 0) == (purgatory.parked, purgatory.waiting)
    await asyncio.sleep(0)  # the listener was cancelled
    assert 1 == len(asyncio.all_tasks())


@pytest.fixture
def purgatory(request):
    """A purgatory that is open, on a clock that is moved by hand if the test has one."""
    by_hand = {"timer": request.getfixturevalue("mock_timer")} if "mock_timer" in request.fixturenames else {}
    return AsyncPurgatory("test", **by_hand)


@pytest.fixture
def polls(purgatory):
    return LongPolls(purgatory)


async def test_condition_that_holds_ends_the_wait(purgatory, polls):
    """An event that makes the condition hold ends the wait. Nothing of it is left."""
    inbox = []
    waiting = poll(polls, holds=lambda: inbox)
    await until(lambda: purgatory.parked)
    inbox.append(1)
    assert 1 == purgatory.check_and_complete("k")
    assert Outcome.SATISFIED is await waiting
    await nothing_left(purgatory)


@pytest.mark.parametrize("end", ["hang-up", "cancellation"])
async def test_client_that_hangs_up_ends_the_wait(end, purgatory, polls):
    """When the client goes, or the endpoint is cancelled, the operation is out by the time that the error is raised."""
    client, operation = Client(), Waiting()
    waiting = asyncio.ensure_future(polls.park(client.request, operation, ["k"]))
    await until(lambda: operation.keys)
    client.hang_up() if end == "hang-up" else waiting.cancel()
    with pytest.raises(HungUp if end == "hang-up" else asyncio.CancelledError):
        await waiting
    assert Outcome.CANCELLED is operation.outcome
    await nothing_left(purgatory)


async def test_result_is_brought(purgatory, polls, mock_timer):
    """A wait for a result returns it to one of the waiters, and raises when the time is up."""
    items = []
    one, other = (
        take(polls, find=lambda: items.pop() if items else None, timeout_ms=timeout_ms) for timeout_ms in (60_000, 100)
    )
    await until(lambda: 2 == purgatory.parked)
    items.append("item")
    purgatory.check_and_complete("k")
    assert "item" == await one
    mock_timer.advance_clock(100)
    with pytest.raises(TimeoutError):
        await other


async def test_result_for_a_cancelled_endpoint_is_given_back(purgatory, polls):
    """A result for an endpoint that is cancelled before it gets it is given back."""
    items, back = [], []
    waiting = take(polls, find=lambda: items or None, give_back=back.append)
    await until(lambda: purgatory.parked)
    items.append("item")
    purgatory.check_and_complete("k")
    for _ in range(3):  # wherever the result is on its way
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [["item"]] == back


@pytest.mark.parametrize("item_first", [True, False])
async def test_client_that_has_gone_gets_no_item(item_first, purgatory, polls):
    """If an item and a hang-up come together, in either order, the item is given back and the next client gets it."""
    items, back, client = [], [], Client()
    waiting = take(polls, client, lambda: items.pop() if items else None, give_back=back.append)
    await until(lambda: purgatory.parked)
    items.append("item")
    come = [lambda: purgatory.check_and_complete("k"), client.hang_up]
    for event in come if item_first else reversed(come):
        event()
    with pytest.raises(HungUp):
        await waiting
    assert ["item"] == [*back, *items]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize("middlewares", range(5))
async def test_hang_up_is_noticed_behind_middlewares(middlewares, at_once, purgatory, polls):
    """Each middleware of Starlette delays the report of a hang-up, and the item is given back all the same."""
    items, back = ["item"] * at_once, []

    async def endpoint(request):
        taken = take(polls, request, lambda: items.pop() if items else None, give_back=back.append)
        return PlainTextResponse(await taken)

    app = Starlette(routes=[Route("/", endpoint)])
    for _ in range(middlewares):
        app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    client, sent = Client(), []
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    serving = asyncio.ensure_future(app(scope, client.messages.get, after(sent.append)))
    if at_once:
        client.hang_up()
    else:
        await until(lambda: purgatory.parked)
        items.append("item")
        purgatory.check_and_complete("k")
        for _ in range(2):  # the transport reads the end of the stream, and reports it
            await asyncio.sleep(0)
        client.hang_up()
    await serving
    assert ([499], ["item"]) == ([message["status"] for message in sent if "status" in message], back)


async def test_client_that_sends_a_body_for_ever_gets_its_item(purgatory, polls):
    """A body that arrives meanwhile wakes the listener again and again. The item is handed out after some turns."""
    client = Client(body(b"begins", more=True))

    async def send_on():
        while True:
            client.messages.put_nowait(body(b"", more=True))
            await asyncio.sleep(0)

    sending = asyncio.ensure_future(send_on())
    assert "item" == await take(polls, client, lambda: "item", give_back=[].append)
    sending.cancel()


async def test_item_that_is_there_at_once_is_not_given_to_a_client_that_has_gone(purgatory, polls):
    """A hang-up that is known wins over an item that need not be waited for. A client that is there gets it."""
    items, back = ["item"], []
    with pytest.raises(HungUp):
        await take(polls, Client(GONE), items.pop, give_back=back.append)
    assert ["item"] == back
    items.append("another")
    assert "another" == await take(polls, Client(), items.pop, give_back=back.append)
    items.append("unacknowledged")
    assert "unacknowledged" == await take(polls, Client(GONE), items.pop)
    await nothing_left(purgatory)


async def test_endpoint_cancelled_while_it_looks_for_its_client_gives_back(polls):
    """An endpoint that is cancelled between its item and its return gives the item back, once."""
    back = []
    waiting = take(polls, find=lambda: "item", give_back=back.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ["item"] == back


async def test_wait_can_have_a_name(purgatory, polls):
    """``name`` names the type of the operation that waits."""
    waiting, taking = poll(polls, name="inbox poll"), take(polls, name="order")
    await until(lambda: 2 == purgatory.parked)
    assert {"inbox poll", "order"} == {type(operation).__qualname__ for operation in purgatory.operations()}
    purgatory.cancel_for_key("k")
    assert Outcome.CANCELLED is await waiting
    with pytest.raises(WaitCancelled):
        await taking


async def test_client_that_went_before_is_not_waited_for(polls):
    """A client that has hung up before does not wait, also if the server reports it once for several waits.

    A result that is there at once is returned all the same.
    """
    client = Client(GONE)
    for _ in range(2):
        with pytest.raises(HungUp):
            await poll(polls, client)
    assert await client.request.is_disconnected()
    assert Outcome.IMMEDIATE is await poll(polls, Client(GONE), lambda: True)


async def test_body_can_be_read_after_the_wait(polls, mock_timer):
    """Listening for the client reads the body, and keeps it."""
    client = Client(body(b"one, ", more=True), body(b"two"))
    waiting = poll(polls, client, timeout_ms=20)
    await until(client.messages.empty)
    mock_timer.advance_clock(20)
    assert Outcome.EXPIRED is await waiting
    assert b"one, two" == await client.request.body()


async def test_wait_that_ends_before_the_body_loses_nothing_of_it(purgatory, polls):
    """Waits that end while the body arrives lose nothing of it, however many there are."""
    client = Client(body(b"one, ", more=True))
    for text in (b"two, ", b"three"):
        waiting = poll(polls, client)
        await until(lambda client=client: client.messages.empty())
        purgatory.cancel_for_key("k")
        assert Outcome.CANCELLED is await waiting
        client.messages.put_nowait(body(text, more=text != b"three"))
    assert b"one, two, three" == await client.request.body()


@pytest.mark.parametrize(("piece", "taken"), [(bytes(600_000), 2), (b"x", 1024)], ids=["large", "small"])
async def test_long_body_stays_with_the_server(piece, taken, purgatory, polls, mock_timer):
    """A wait takes a mebibyte of a body, in at most 1,024 pieces. The rest is read after it."""
    pieces = [piece] * (taken + 5)
    client = Client(*[body(piece, more=True) for piece in pieces], body(b""))
    waiting = poll(polls, client, timeout_ms=20)
    await until(lambda: client.messages.qsize() <= 6)
    mock_timer.advance_clock(20)
    assert Outcome.EXPIRED is await waiting
    assert 6 == client.messages.qsize()
    assert b"".join(pieces) == await client.request.body()


async def test_body_that_was_read_as_a_stream_is_no_hindrance(purgatory, polls):
    """An endpoint that has read its body piece by piece hears of a client that goes."""
    client = Client(body(b"all"))
    assert [b"all", b""] == [piece async for piece in client.request.stream()]
    waiting = poll(polls, client)
    await until(lambda: purgatory.parked)
    client.hang_up()
    with pytest.raises(HungUp):
        await waiting


async def test_wait_that_was_cancelled_elsewhere_is_no_hang_up():
    """If what is awaited is itself cancelled while the client is there, that is a cancellation."""
    client = Client()
    forever = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(unless_hung_up(client.request, forever))
    await asyncio.sleep(0)
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_server_that_fails_to_report_is_no_hang_up():
    """If the server raises instead of a message, the wait goes on."""

    async def receive():
        raise OSError("the server's own")

    request = Request({"type": "http", "method": "GET", "headers": []}, receive)
    assert "answer" == await unless_hung_up(request, asyncio.sleep(0.01, "answer"))


async def test_deadline_during_a_shutdown_is_an_ordinary_deadline(purgatory, polls, mock_timer):
    """A poll whose own time is up while the shutdown waits is answered as at any other time."""
    waiting = poll(polls, timeout_ms=50)
    await until(lambda: purgatory.waiting)
    ending = asyncio.ensure_future(purgatory.shutdown("wait", timeout_ms=10_000))
    await until(lambda: purgatory.is_closed)
    mock_timer.advance_clock(50)
    await ending
    assert Outcome.EXPIRED is await waiting


@pytest.mark.parametrize("drain", ["expire", "cancel"])
@pytest.mark.parametrize("wait", [poll, take])
async def test_shutdown_answers_who_waits_and_who_comes(wait, drain, purgatory):
    """Endpoints that wait at a shutdown, and later ones, get ``Unavailable``: 503 with Retry-After."""
    polls = LongPolls(purgatory, retry_after_s=3)
    waiting = wait(polls)
    await until(lambda: purgatory.waiting)
    await purgatory.shutdown(drain)
    for refused in (waiting, wait(polls)):
        with pytest.raises(Unavailable, match="stopping") as raised:
            await refused
        error = raised.value
        assert isinstance(error, HTTPException)
        assert (503, {"Retry-After": "3"}, 3) == (error.status_code, error.headers, error.retry_after_s)


async def test_full_purgatory_refuses():
    """Beyond ``max_parked`` an endpoint that would have to wait gets ``Unavailable``."""
    async with AsyncPurgatory("test", max_parked=1) as purgatory:
        polls = LongPolls(purgatory)
        first = poll(polls)
        await until(lambda: purgatory.parked)
        with pytest.raises(Unavailable, match="too many"):
            await poll(polls)
        assert not first.done()
        first.cancel()


async def test_mistakes_are_raised_as_they_are(polls):
    """The purgatory's errors for wrong arguments, and the predicate's own error, are raised."""
    with pytest.raises(NoKeys):
        await polls.wait_for(Client().request, lambda: False, keys=[], timeout_ms=1)
    with pytest.raises(ZeroDivisionError):
        await poll(polls, holds=lambda: 1 / 0)


async def test_wait_ends_before_the_client_gives_up(purgatory, mock_timer):
    """With a margin, a wait ends that much before its time."""
    waiting = poll(LongPolls(purgatory, margin_ms=500), timeout_ms=30_000)
    await until(lambda: purgatory.parked)
    mock_timer.advance_clock(29_499)
    assert 1 == purgatory.parked
    mock_timer.advance_clock(1)
    assert Outcome.EXPIRED is await waiting


def test_jitter_spreads_deadlines():
    """With a jitter, delays are spread over the last ``jitter_ms`` before the margin, and never beyond them."""
    polls = LongPolls(AsyncPurgatory("test"), margin_ms=500, jitter_ms=10)
    delays = {polls.delay_ms(30_000) for _ in range(2_000)}
    assert set(range(29_490, 29_501)) == delays
    assert 0 == polls.delay_ms(100)


@pytest.mark.parametrize(
    "settings", [{"margin_ms": -1}, {"jitter_ms": 0.5}, {"retry_after_s": True}, {"purgatory": "inbox"}]
)
def test_setting_that_cannot_work_is_refused(settings):
    """Settings are whole numbers of at least 0. The purgatory is an ``AsyncPurgatory``."""
    with pytest.raises(InvalidSetting, match=f"{next(iter(settings))} must be"):
        LongPolls(**{"purgatory": AsyncPurgatory("test"), **settings})


async def test_lifespan_shuts_down(purgatory, polls):
    """As an application's lifespan it shuts the purgatory down at the end."""
    async with polls.lifespan(Starlette()):
        assert not purgatory.is_closed
    assert purgatory.is_closed


async def test_second_lifespan_of_one_application_is_told_to_make_another():
    """A second lifespan, as of a second test client, raises at its start and says what to do. No request gets a 503."""
    polls = LongPolls(AsyncPurgatory("inbox"))
    async with polls.lifespan(Starlette()):
        pass

    with pytest.raises(PurgatoryClosed, match="'inbox' is shut down .* earlier lifespan .* in a function") as raised:
        await polls.lifespan(Starlette()).__aenter__()
    assert "inbox" == raised.value.name == pickle.loads(pickle.dumps(raised.value)).name


async def test_poll_that_expires_ends_normally(purgatory, polls, mock_timer):
    """The time of a poll is up without anything being wrong. A wait that must be answered passes ``()``."""
    waiting = [poll(polls, timeout_ms=1), poll(polls, timeout_ms=1, normal_ends=()), take(polls, timeout_ms=1)]
    await until(lambda: 3 == purgatory.parked)
    mock_timer.advance_clock(1)
    assert [Outcome.EXPIRED] * 2 == [await each for each in waiting[:2]]
    with pytest.raises(TimeoutError):
        await waiting[2]
    assert (3, 2) == (purgatory.totals().expired, purgatory.totals().expired_normally)


async def test_websocket_is_rejected(purgatory, polls):
    """A WebSocket is not a request. The error says what to await instead, and nothing is parked or received."""
    received = asyncio.Queue()
    received.put_nowait({"type": "websocket.connect"})
    websocket = WebSocket({"type": "websocket", "headers": []}, received.get, received.put)
    options = {"keys": ["k"], "timeout_ms": 60_000}
    for wait in (
        polls.wait_for(websocket, lambda: False, **options),
        polls.wait_for_result(websocket, lambda: None, **options),
        polls.park(websocket, Waiting(), ["k"]),
        unless_hung_up(websocket, asyncio.get_running_loop().create_future()),
    ):
        with pytest.raises(InvalidSetting, match=r"^request must be a Request .* for a WebSocket, await"):
            await wait
    assert (0, 1) == (purgatory.watched, received.qsize())
