"""Connections without a network: framing, order, limits and their accounts."""

import asyncio
import math
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broker.coordination.store import Lease
from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages.controller import NodeHandshakeRequest, NodeHandshakeResponse
from examples.broker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
)
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.wire import encode
from examples.broker.service.config import Config
from examples.broker.service.connection import Connection
from examples.broker.service.server import Server
from purgatory import ActionQueue

JOIN, HEARTBEAT, API_VERSIONS, NODE_HANDSHAKE = 11, 12, 18, ApiKey.NODE_HANDSHAKE


class FakeTransport(asyncio.Transport):
    """Keeps what is written, and whether it may be read from."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.writes = 0
        self.reading = True
        self.closed = self.aborted = False

    def write(self, data):
        self.written += data
        self.writes += 1

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 5)


class FakeLoop:
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
    """A connection, with a handler that keeps the replies to be called later."""

    def __init__(self, server=None, turn_ms=60_000, **limits):
        config = Config(data="unused", max_request_bytes=1_000, turn_ms=turn_ms, **limits)
        if server is None:
            server = Server(config, ActionQueue())
            server.holder = SimpleNamespace(lease=Lease(math.inf))
        self.server = server
        self.server.loop = FakeLoop()
        self.server.handlers[HEARTBEAT] = self.handle
        self.replies = []
        self.transport = FakeTransport()
        self.connection = Connection(self.server)
        self.connection.connection_made(self.transport)

    def handle(self, request, version, reply):
        self.replies.append(reply)

    def send(self, data):
        if self.transport.reading and not self.transport.closed:
            self.connection.data_received(data)

    @property
    def answered(self):
        """The correlation ids of the responses, in order."""
        ids, data = [], self.transport.written
        while data:
            size, correlation_id = struct.unpack_from(">ii", data)
            ids.append(correlation_id)
            data = data[4 + size :]
        return ids


@pytest.fixture
def make():
    return Client


def heartbeat(number):
    body = b"".join([*encode(RequestHeader(HEARTBEAT, 0, number, "c"), 0), *encode(HeartbeatRequest("g", 1, "m"), 0)])
    return struct.pack(">i", len(body)) + body


def handshake(number):
    body = b"".join([*encode(RequestHeader(NODE_HANDSHAKE, 0, number, "n"), 0), *encode(NodeHandshakeRequest(2), 0)])
    return struct.pack(">i", len(body)) + body


def test_responses_go_out_in_the_order_of_their_requests(make):
    """Replies may come in any order. They are written in that of the requests."""
    client = make()
    client.send(heartbeat(1) + heartbeat(2) + heartbeat(3))
    for index, answered in ((2, []), (0, [1]), (1, [1, 2, 3])):
        client.replies[index](HeartbeatResponse())
        assert answered == client.answered


def test_responses_to_one_input_are_one_write(make):
    """The requests of one chunk of input are answered together."""
    client = make()
    client.server.handlers[HEARTBEAT] = lambda _request, _version, reply: reply(HeartbeatResponse())
    client.send(b"".join(heartbeat(number) for number in range(10)))
    assert (list(range(10)), 1) == (client.answered, client.transport.writes)


def test_a_large_response_goes_out_whole_and_in_its_turn(make):
    """A response too large to be copied into one write comes between those before and behind it."""
    client = make()
    client.server.handlers[JOIN] = client.handle
    join = b"".join(
        [*encode(RequestHeader(JOIN, 0, 2, "c"), 0), *encode(JoinGroupRequest("g", 1, protocol_type="consumer"), 0)]
    )
    client.send(heartbeat(1) + struct.pack(">i", len(join)) + join + heartbeat(3))
    client.replies[2](HeartbeatResponse())
    client.replies[1](JoinGroupResponse(members=[JoinGroupMember("m", metadata=b"x" * 100_000)]))
    client.replies[0](HeartbeatResponse())
    assert [1, 2, 3] == client.answered


def test_a_request_ends_where_its_frame_does(make):
    """One whose fields reach into the frame behind it closes the connection, and the one behind is not handled."""
    client = make()
    short = heartbeat(1)
    client.send(struct.pack(">i", len(short) - 4 - 2) + short[4:-2] + heartbeat(2))
    assert ([], True) == (client.replies, client.transport.closed)


def test_a_request_may_go_unanswered(make):
    """A request without a response gives up its place, and those behind it are answered."""
    client = make()
    client.send(heartbeat(1) + heartbeat(2))
    client.replies[1](HeartbeatResponse())
    client.replies[0].nothing()
    assert [2] == client.answered


def test_only_the_first_answer_counts(make):
    """A second call of a reply changes nothing."""
    client = make()
    client.send(heartbeat(1))
    client.replies[0](HeartbeatResponse())
    client.replies[0](HeartbeatResponse())
    assert [1] == client.answered


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(1, 40), max_size=30))
def test_requests_arrive_in_any_pieces(count, cuts):
    """However the bytes are cut, the same requests are handled, and nothing stays behind."""
    client = Client()
    data = b"".join(heartbeat(number) for number in range(count))
    for cut in cuts:
        if data:
            client.send(data[:cut])
            data = data[cut:]
    client.send(data)
    for reply in client.replies:
        reply(HeartbeatResponse())
    assert list(range(count)) == client.answered
    assert 0 == client.server.buffered


def test_checks_come_after_the_answer(make):
    """A handler's queued calls run when its own answer has been written."""
    client = make()
    seen = []

    def handle(request, version, reply):
        client.server.actions.add(lambda: seen.append(client.answered))
        reply(HeartbeatResponse())

    client.server.handlers[HEARTBEAT] = handle
    client.send(heartbeat(1))
    assert [[1]] == seen


def test_too_many_unanswered_requests_stop_the_reading(make):
    """At max_in_flight the client is not read from, until there is room again. Nothing is lost."""
    client = make(max_in_flight=3)
    client.send(b"".join(heartbeat(number) for number in range(5)))
    assert (3, False) == (len(client.replies), client.transport.reading)
    client.replies[0](HeartbeatResponse())
    assert client.transport.reading
    client.server.loop.run()
    assert (4, False) == (len(client.replies), client.transport.reading)


def test_a_client_that_does_not_read_is_not_read_from(make):
    """When the socket is full the connection is paused, and goes on when it has drained."""
    client = make()
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
def test_nonsense_leaves_no_account_behind(make, data, piece):
    """A connection closed for nonsense gives back every byte that was counted for it."""
    client = make()
    for start in range(0, len(data), piece):
        client.send(data[start : start + piece])
    assert client.transport.closed
    client.connection.connection_lost(None)
    assert (0, set()) == (client.server.buffered, client.server.connections)


def test_unfinished_requests_have_one_budget(make):
    """When all connections together hold too much, the one that asks for more is closed. The others stay."""
    first = make(max_buffered_bytes=1_000)
    second = make(first.server)
    part = struct.pack(">i", 900) + b"x" * 600
    first.send(part)
    second.send(part)
    assert (False, True) == (first.transport.closed, second.transport.closed)
    assert len(part) == first.server.buffered


def test_a_handler_that_fails_closes_its_connection(make):
    """An error in a handler is contained: its client is disconnected, the next is served."""
    client = make()

    def fail(request, version, reply):
        raise RuntimeError("oops")

    client.server.handlers[HEARTBEAT] = fail
    client.send(heartbeat(1))
    assert client.transport.closed
    other = make(client.server)
    other.send(heartbeat(1))
    assert 1 == len(other.replies)


def test_too_many_clients_are_turned_away(make):
    """Above max_connections a client is closed with its first request, and far above it when others come."""
    first = make(max_connections=1)
    surplus = [make(first.server) for _ in range(101)]
    assert [True, *100 * [False]] == [client.transport.closed for client in surplus]
    surplus[1].send(heartbeat(1))
    assert (True, False) == (surplus[1].transport.closed, first.transport.closed)


def test_nodes_connect_also_if_there_are_too_many_clients(make):
    """A connection above the limit may prove that it is a node's. Those of nodes do not count."""
    client = make(max_connections=1)
    node = make(client.server)
    node.connection.proved(2)
    node.send(heartbeat(1))
    assert (1, False) == (len(node.replies), node.transport.closed)
    node.connection.connection_lost(None)
    client.connection.connection_lost(None)
    for _ in range(2):
        make(client.server).connection.proved(3)
    make(client.server)
    assert {} == client.server.surplus


def test_idle_clients_are_disconnected(make, monkeypatch):
    """A client without requests is closed after a while. One that waits for a response, or a node, is not."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    idle, waits, node, busy = (first := make(max_idle_ms=1_000)), *(make(first.server) for _ in range(3))
    node.connection.proved(2)
    replies = busy.replies  # the last connection's handler gets all requests
    waits.send(heartbeat(1))
    now[0] += 0.9
    busy.send(heartbeat(2))
    replies[1](HeartbeatResponse())
    now[0] += 0.9
    first.server.close_slow_and_idle()
    assert [True, False, False, False] == [each.transport.closed for each in (idle, waits, node, busy)]
    replies[0](HeartbeatResponse())
    first.server.close_slow_and_idle()
    assert not waits.transport.closed


def test_a_client_that_does_not_read_leaves_nothing(make, monkeypatch):
    """An idle client that is disconnected, or one whose socket is full, does not keep its socket and its responses."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    idle, full, other = (first := make(max_idle_ms=1_000)), *(make(first.server) for _ in range(2))
    full.connection.pause_writing()
    for client in (full, other):
        client.connection.close("a test")
    now[0] += 1.1
    first.server.close_slow_and_idle()
    assert [True, True, False] == [each.transport.aborted for each in (idle, full, other)]


def test_a_surplus_connection_proves_soon_that_it_is_a_node(make, monkeypatch):
    """A connection above the limit that sends nothing is closed after the time that a request may take."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first = make(max_connections=1, frame_timeout_ms=1_000)
    surplus = make(first.server)
    now[0] += 1.1
    first.server.close_slow_and_idle()
    assert [False, True] == [first.transport.closed, surplus.transport.closed]


@pytest.fixture
def leased(make, monkeypatch):
    """A connection, a clock that a test moves, and the end of the node's lease."""
    now, lease = [1_000.0], Lease(1_002.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    client = make()
    client.server.holder = SimpleNamespace(lease=lease)
    return client, now, lease


def test_a_request_after_the_lease_is_not_handled(leased, make):
    """It was in the socket's buffer of a process that was stopped. Every client is disconnected, without an answer."""
    client, now, _ = leased
    other = make(client.server)
    client.send(heartbeat(1))
    now[0] = 1_002.0
    client.send(heartbeat(2) + heartbeat(3))
    assert (0, [True, True]) == (len(client.replies), [each.transport.aborted for each in (client, other)])


@pytest.fixture
def stopped(leased):
    """A client whose request waits while the process is stopped until the lease is over, and what was lost of it."""
    client, now, _ = leased
    client.send(heartbeat(1))
    lost = []
    client.replies[0].on_lost = lambda: lost.append(1)
    now[0] = 1_002.0
    return client, lost


def test_an_answer_after_the_lease_is_not_written(stopped):
    """The handler of a request may have ended, or its operation completed, after a stop of the process."""
    client, _ = stopped
    client.replies[0](HeartbeatResponse())
    assert ([], True) == (client.answered, client.transport.aborted)


def test_clients_are_disconnected_at_the_end_of_the_lease(stopped):
    """A client without requests finds another node, too. Its operations that wait are cancelled."""
    client, lost = stopped
    client.server.close_slow_and_idle()
    assert ([1], [], True) == (lost, client.answered, client.transport.aborted)


def test_other_nodes_are_answered_without_a_lease(leased, make):
    """A node must be reachable for the controller before it is registered. A client is disconnected until then."""
    client, now, lease = leased
    node = make(client.server)
    node.connection.proved(2)
    client.send(heartbeat(1))
    now[0] = 1_002.0
    node.send(heartbeat(2))
    node.replies[-1](HeartbeatResponse())
    late = make(client.server)

    def challenge(_request, _version, reply):
        reply.connection.challenge = b"random"
        reply(NodeHandshakeResponse())

    late.server.handlers[NODE_HANDSHAKE] = challenge
    late.send(handshake(3))
    assert ([2], [3], False) == (node.answered, late.answered, late.transport.closed)
    assert client.transport.aborted
    late.send(heartbeat(4))
    assert ([3], True) == (late.answered, late.transport.aborted)

    lease.ends_at = 1_004.0
    again = make(client.server)
    again.send(heartbeat(5))
    again.replies[0](HeartbeatResponse())
    assert [5] == again.answered


def test_what_waits_for_a_lost_client_is_told(make):
    """Replies that a lost client still waited for call on_lost. Answering them is harmless."""
    client = make()
    client.send(heartbeat(1) + heartbeat(2))
    lost = []
    client.replies[1].on_lost = lambda: lost.append(2)
    client.replies[1](HeartbeatResponse())
    client.replies[0].on_lost = lambda: lost.append(1)
    client.connection.connection_lost(None)
    assert [1] == lost
    client.replies[0](HeartbeatResponse())
    assert [] == client.answered


def test_what_nodes_say_to_each_other_is_not_advertised(tmp_path):
    """Clients see the APIs that are handled, but not those between nodes, which are private."""
    server = Server(Config(data=tmp_path), ActionQueue())
    server.handlers |= dict.fromkeys((0, 4, 5, 6), None)
    assert [0, API_VERSIONS] == [row.api_key for row in server.api_versions(ErrorCode.NONE).api_keys]


def test_a_handler_in_steps_lets_others_have_their_turn(make):
    """A handler that yields ends its turn there. Nothing more is handled on its connection until it has ended."""
    client = make(turn_ms=0)
    other = make(client.server)
    done = []

    def handle(_request, _version, reply):
        for number in range(3):
            done.append(number)
            yield
        reply(HeartbeatResponse())

    client.server.handlers[HEARTBEAT] = handle
    client.send(heartbeat(1) + heartbeat(2))
    assert ([0], [], False) == (done, client.answered, client.transport.reading)
    other.server.handlers[HEARTBEAT] = other.handle
    other.send(heartbeat(9))
    other.replies[0](HeartbeatResponse())
    assert ([0], [9]) == (done, other.answered)

    client.server.handlers[HEARTBEAT] = client.handle
    for _ in range(4):
        client.server.loop.run()
    client.replies[0](HeartbeatResponse())
    assert ([0, 1, 2], [1, 2], True) == (done, client.answered, client.transport.reading)


def test_many_requests_in_one_input_are_handled_in_turns(make):
    """Many requests of one connection are handled in several turns of the loop, in order."""
    client = make(turn_ms=0)
    client.send(b"".join(map(heartbeat, range(4))))
    assert 1 == len(client.replies)
    while client.server.loop.soon:
        client.server.loop.run()
    for reply in client.replies:
        reply(HeartbeatResponse())
    assert [0, 1, 2, 3] == client.answered


def test_a_handler_in_steps_may_fail(make):
    """An error in a later step closes that connection and no other."""
    client = make(turn_ms=0)

    def handle(_request, _version, _reply):
        yield
        raise RuntimeError("in the second step")

    client.server.handlers[HEARTBEAT] = handle
    client.send(heartbeat(1))
    assert not client.transport.closed
    client.server.loop.run()
    assert client.transport.closed


def test_what_was_begun_is_finished_without_the_client(make):
    """The steps of a handler go on when its client goes away: a topic that is half created would be worse."""
    client = make(turn_ms=0)
    done = []

    def handle(_request, _version, reply):
        yield
        reply(HeartbeatResponse())
        done.append(True)

    client.server.handlers[HEARTBEAT] = handle
    client.send(heartbeat(1))
    client.connection.connection_lost(None)
    client.server.loop.run()
    assert [True] == done


def test_a_request_with_too_many_elements_is_refused(make):
    """All arrays of a request together have a limit, small as the request may be in bytes."""
    client = make(max_elements=3)
    request = JoinGroupRequest("g", 1, 1, "", None, "consumer", [JoinGroupProtocol(name) for name in "abc"])

    def send():
        body = b"".join([*encode(RequestHeader(JOIN, 5, 1, "c"), 0), *encode(request, 5)])
        client.send(struct.pack(">i", len(body)) + body)

    client.server.handlers[JOIN] = client.handle
    send()
    assert 1 == len(client.replies)
    request.protocols.append(JoinGroupProtocol("d"))
    send()
    assert (1, True) == (len(client.replies), client.transport.closed)
