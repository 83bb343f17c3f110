"""Connections without a network: framing, order, limits and their accounts."""

import math
import struct
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broker.coordination.store import Lease
from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import groups as m
from examples.broker.protocol.messages.controller import NodeHandshakeRequest, NodeHandshakeResponse
from examples.broker.protocol.messages.topics import CreateTopicsRequest
from examples.broker.protocol.wire import decode
from examples.broker.service.config import Config
from examples.broker.service.connection import Connection
from examples.broker.service.server import Server
from examples.broker.tests.unit.service.conftest import Transport, frame
from purgatory import ActionQueue

JOIN, HEARTBEAT, API_VERSIONS, NODE_HANDSHAKE = 11, 12, 18, ApiKey.NODE_HANDSHAKE


class Loop:
    """Runs the calls that are due soon, on request."""

    def __init__(self):
        self.soon = []

    def call_soon(self, call):
        self.soon.append(call)

    def run(self):
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Client:
    """A connection, with a handler of heartbeats that keeps the replies to be called later."""

    def __init__(self, server=None, turn_ms=60_000, **limits):
        config = Config(data="unused", max_request_bytes=1_000, turn_ms=turn_ms, **limits)
        if server is None:
            server = Server(config, ActionQueue())
            server.holder = SimpleNamespace(lease=Lease(math.inf))
        self.server = server
        self.server.loop = self.loop = Loop()
        self.replies = []
        self.transport = Transport()
        self.connection = Connection(self.server)
        self.connection.connection_made(self.transport)
        self.handle_with(self.keep)

    def handle_with(self, handler, api=HEARTBEAT):
        self.server.handlers[api] = handler

    def beside(self):
        """Another client of the same server."""
        return Client(self.server)

    def keep(self, request, version, reply):
        self.replies.append(reply)

    def send(self, data):
        if self.transport.reading and not self.transport.closed:
            self.connection.data_received(data)

    def beat(self, *numbers):
        """Send heartbeats with these correlation ids, in one piece."""
        self.send(b"".join(map(heartbeat, numbers)))

    def answer(self, *places):
        """Answer the requests at these places of the replies."""
        for place in places:
            answer(None, 0, self.replies[place])

    @property
    def answered(self):
        """The correlation ids of the responses, in order."""
        ids, data = [], self.transport.written
        while data:
            size, correlation_id = struct.unpack_from(">ii", data)
            ids.append(correlation_id)
            data = data[4 + size :]
        return ids


def answer(_request, _version, reply):
    reply(m.HeartbeatResponse())


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def now(monkeypatch):
    """The time in a list, which a test moves."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def heartbeat(number):
    return frame(HEARTBEAT, 0, number, m.HeartbeatRequest("g", 1, "m"))


def test_responses_go_out_in_the_order_of_their_requests(client):
    client.beat(1, 2, 3)
    for index, answered in ((2, []), (0, [1]), (1, [1, 2, 3])):
        client.answer(index)
        assert answered == client.answered


def test_responses_to_one_input_are_one_write(client):
    client.handle_with(answer)
    client.beat(*range(10))
    assert (list(range(10)), 1) == (client.answered, client.transport.writes)


def test_a_large_response_goes_out_whole_and_in_its_turn(client):
    """A response too large to be copied into one write comes between those before and behind it."""
    client.handle_with(client.keep, JOIN)
    client.send(heartbeat(1) + frame(JOIN, 0, 2, m.JoinGroupRequest("g", 1, protocol_type="consumer")) + heartbeat(3))
    client.answer(2)
    client.replies[1](m.JoinGroupResponse(members=[m.JoinGroupMember("m", metadata=b"x" * 100_000)]))
    client.answer(0)
    assert [1, 2, 3] == client.answered


def test_a_request_ends_where_its_frame_does(client):
    """One whose fields reach into the frame behind it closes the connection, and the one behind is not handled."""
    short = heartbeat(1)
    client.send(struct.pack(">i", len(short) - 4 - 2) + short[4:-2] + heartbeat(2))
    assert ([], True) == (client.replies, client.transport.closed)


def test_a_request_may_go_unanswered(client):
    client.beat(1, 2)
    client.answer(1)
    client.replies[0].nothing()
    assert [2] == client.answered


def test_only_the_first_answer_counts(client):
    client.beat(1)
    client.answer(0, 0)
    assert [1] == client.answered


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(1, 40), max_size=30))
def test_requests_arrive_in_any_pieces(count, cuts):
    """However the bytes are cut, the same requests are handled, and nothing stays behind."""
    client = Client()
    data = b"".join(map(heartbeat, range(count)))
    for cut in cuts:
        if data:
            client.send(data[:cut])
            data = data[cut:]
    client.send(data)
    client.answer(*range(count))
    assert list(range(count)) == client.answered
    assert 0 == client.server.buffered


def test_checks_come_after_the_answer(client):
    seen = []

    def handle(*request):
        client.server.actions.add(lambda: seen.append(client.answered))
        answer(*request)

    client.handle_with(handle)
    client.beat(1)
    assert [[1]] == seen


def test_too_many_unanswered_requests_stop_the_reading():
    """At max_in_flight the client is not read from, until there is room again. Nothing is lost."""
    client = Client(max_in_flight=3)
    client.beat(*range(5))
    assert (3, False) == (len(client.replies), client.transport.reading)
    client.answer(0)
    assert client.transport.reading
    client.loop.run()
    assert (4, False) == (len(client.replies), client.transport.reading)


def test_a_client_that_does_not_read_is_not_read_from(client):
    client.connection.pause_writing()
    assert not client.transport.reading
    client.connection.resume_writing()
    assert client.transport.reading


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 1_001) + b"x" * 500,
        struct.pack(">i", -1) + b"x" * 500,
        struct.pack(">i", 3) + b"x" * 500,
        struct.pack(">i", 100) + b"\xff" * 300,
        heartbeat(1)[:-1] + b"\0" + struct.pack(">i", 2**31 - 1) * 20,
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1_000])
def test_nonsense_leaves_no_account_behind(client, data, piece):
    """A connection closed for nonsense gives back every byte that was counted for it."""
    for start in range(0, len(data), piece):
        client.send(data[start : start + piece])
    assert client.transport.closed
    client.connection.connection_lost(None)
    assert (0, set()) == (client.server.buffered, client.server.connections)


def test_unfinished_requests_have_one_budget():
    """When all connections together hold too much, the one that asks for more is closed. The others stay."""
    second = (first := Client(max_buffered_bytes=1_000)).beside()
    part = struct.pack(">i", 900) + b"x" * 600
    first.send(part)
    second.send(part)
    assert (False, True) == (first.transport.closed, second.transport.closed)
    assert len(part) == first.server.buffered


def fails(request, version, reply):
    raise RuntimeError("oops")


def fails_later(request, version, reply):
    yield
    raise RuntimeError("in the second step")


@pytest.mark.parametrize("handler", [fails, fails_later])
def test_a_handler_that_fails_closes_its_connection(handler):
    """An error in a handler, or in a later step of it, is contained: its client is disconnected, the next is served."""
    client = Client(turn_ms=0)
    client.handle_with(handler)
    client.beat(1)
    assert (handler is fails) == client.transport.closed
    client.loop.run()
    assert client.transport.closed
    other = client.beside()
    other.beat(1)
    assert 1 == len(other.replies)


def test_an_error_of_the_whole_request_is_its_answer(client):
    """A response without a code for the whole request has no place for it. That is a handler that fails."""
    client.handle_with(Mock(side_effect=BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)))
    client.beat(1)
    assert ErrorCode.UNKNOWN_MEMBER_ID == decode(m.HeartbeatResponse, 0, client.transport.written[8:]).error_code
    client.handle_with(Mock(side_effect=BrokerError(ErrorCode.INVALID_TOPIC)), ApiKey.CREATE_TOPICS)
    client.send(frame(ApiKey.CREATE_TOPICS, 0, 2, CreateTopicsRequest()))
    assert ([1], True) == (client.answered, client.transport.closed)


def test_too_many_clients_are_turned_away():
    """Above max_connections a client is closed with its first request, and far above it when others come."""
    first = Client(max_connections=1)
    surplus = [first.beside() for _ in range(101)]
    assert [True, *100 * [False]] == [client.transport.closed for client in surplus]
    surplus[1].beat(1)
    assert (True, False) == (surplus[1].transport.closed, first.transport.closed)


def test_nodes_connect_also_if_there_are_too_many_clients():
    """A connection above the limit may prove that it is a node's. Those of nodes do not count."""
    node = (client := Client(max_connections=1)).beside()
    node.connection.proved(2)
    node.beat(1)
    assert (1, False) == (len(node.replies), node.transport.closed)
    for gone in (node, client):
        gone.connection.connection_lost(None)
    for _ in range(2):
        client.beside().connection.proved(3)
    client.beside()
    assert {} == client.server.surplus


def test_idle_clients_are_disconnected(now):
    """A client without requests is closed after a while. One that waits for a response, or a node, is not."""
    idle, waits, node, busy = (first := Client(max_idle_ms=1_000)), *(first.beside() for _ in range(3))
    node.connection.proved(2)
    waits.beat(1)  # the last connection's handler gets all requests
    now[0] += 0.9
    busy.beat(2)
    busy.answer(1)
    now[0] += 0.9
    first.server.close_slow_and_idle()
    assert [True, False, False, False] == [each.transport.closed for each in (idle, waits, node, busy)]
    busy.answer(0)
    first.server.close_slow_and_idle()
    assert not waits.transport.closed


def test_a_client_that_does_not_read_leaves_nothing(now):
    """An idle client that is disconnected, or one whose socket is full, does not keep its socket and its responses."""
    idle, full, other = (first := Client(max_idle_ms=1_000)), *(first.beside() for _ in range(2))
    full.connection.pause_writing()
    for client in (full, other):
        client.connection.close("a test")
    now[0] += 1.1
    first.server.close_slow_and_idle()
    assert [True, True, False] == [each.transport.aborted for each in (idle, full, other)]


def test_a_surplus_connection_proves_soon_that_it_is_a_node(now):
    """A connection above the limit that sends nothing is closed after the time that a request may take."""
    surplus = (first := Client(max_connections=1, frame_timeout_ms=1_000)).beside()
    now[0] += 1.1
    first.server.close_slow_and_idle()
    assert [False, True] == [first.transport.closed, surplus.transport.closed]


@pytest.fixture
def lease(client, now):
    """The node's lease, which ends two seconds from now."""
    lease = Lease(1_002.0)
    client.server.holder = SimpleNamespace(lease=lease)
    return lease


@pytest.mark.usefixtures("lease")
def test_a_request_after_the_lease_is_not_handled(client, now):
    """It was in the socket's buffer of a process that was stopped. Every client is disconnected, without an answer."""
    other = client.beside()
    client.beat(1)
    now[0] = 1_002.0
    client.beat(2, 3)
    assert (0, [True, True]) == (len(client.replies), [each.transport.aborted for each in (client, other)])


@pytest.mark.usefixtures("lease")
@pytest.mark.parametrize("is_answered", [True, False])
def test_clients_are_disconnected_at_the_end_of_the_lease(client, now, is_answered):
    """No answer is written after it, and operations that wait are cancelled. The process may have been stopped."""
    client.beat(1)
    lost = []
    client.replies[0].on_lost = lambda: lost.append(1)
    now[0] = 1_002.0
    if is_answered:
        client.answer(0)
    else:
        client.server.close_slow_and_idle()
        assert [1] == lost
    assert ([], True) == (client.answered, client.transport.aborted)


def test_other_nodes_are_answered_without_a_lease(client, lease, now):
    """A node must be reachable for the controller before it is registered. A client is disconnected until then."""
    node = client.beside()
    node.connection.proved(2)
    client.beat(1)
    now[0] = 1_002.0
    node.beat(2)
    node.answer(-1)
    late = client.beside()

    def challenge(_request, _version, reply):
        reply.connection.challenge = b"random"
        reply(NodeHandshakeResponse())

    late.handle_with(challenge, NODE_HANDSHAKE)
    late.send(frame(NODE_HANDSHAKE, 0, 3, NodeHandshakeRequest(2)))
    assert ([2], [3], False) == (node.answered, late.answered, late.transport.closed)
    assert client.transport.aborted
    late.beat(4)
    assert ([3], True) == (late.answered, late.transport.aborted)

    lease.ends_at = 1_004.0
    again = client.beside()
    again.beat(5)
    again.answer(0)
    assert [5] == again.answered


def test_what_waits_for_a_lost_client_is_told(client):
    """Replies that a lost client still waited for call on_lost. Answering them is harmless."""
    client.beat(1, 2)
    lost = []
    for number, reply in enumerate(client.replies, 1):
        reply.on_lost = partial(lost.append, number)
    client.answer(1)
    client.connection.connection_lost(None)
    assert [1] == lost
    client.answer(0)
    assert [] == client.answered


def test_a_handler_in_steps_lets_others_have_their_turn():
    """A handler that yields ends its turn there. Nothing more is handled on its connection until it has ended."""
    other = (client := Client(turn_ms=0)).beside()
    done = []

    def handle(*request):
        for number in range(3):
            done.append(number)
            yield
        answer(*request)

    client.handle_with(handle)
    client.beat(1, 2)
    assert ([0], [], False) == (done, client.answered, client.transport.reading)
    other.handle_with(other.keep)
    other.beat(9)
    other.answer(0)
    assert ([0], [9]) == (done, other.answered)

    client.handle_with(client.keep)
    for _ in range(4):
        client.server.loop.run()
    client.answer(0)
    assert ([0, 1, 2], [1, 2], True) == (done, client.answered, client.transport.reading)


def test_many_requests_in_one_input_are_handled_in_turns():
    client = Client(turn_ms=0)
    client.beat(*range(4))
    assert 1 == len(client.replies)
    while client.loop.soon:
        client.loop.run()
    client.answer(*range(4))
    assert [0, 1, 2, 3] == client.answered


def test_what_was_begun_is_finished_without_the_client():
    """The steps of a handler go on when its client goes away: a topic that is half created would be worse."""
    client = Client(turn_ms=0)
    done = []

    def handle(*request):
        yield
        answer(*request)
        done.append(True)

    client.handle_with(handle)
    client.beat(1)
    client.connection.connection_lost(None)
    client.loop.run()
    assert [True] == done


def test_a_request_with_too_many_elements_is_refused():
    """All arrays of a request together have a limit, small as the request may be in bytes."""
    client = Client(max_elements=3)
    client.handle_with(client.keep, JOIN)
    for names, closed in (("abc", False), ("abcd", True)):
        request = m.JoinGroupRequest("g", 1, 1, "", None, "consumer", [m.JoinGroupProtocol(name) for name in names])
        client.send(frame(JOIN, 5, 1, request))
        assert (1, closed) == (len(client.replies), client.transport.closed)
