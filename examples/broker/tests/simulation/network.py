"""The connections between simulated nodes. Each request and each response arrives when the simulation lets it.

``Network.link`` replaces the broker's ``Link``. Requests and responses are encoded and decoded as on a socket, and the
handlers of the target get the broker's own ``Reply``. A connection breaks when one of its two nodes is killed. A paused
node neither receives nor answers.
"""

from __future__ import annotations

import asyncio
from unittest import mock

import attrs

from examples.broker.protocol.apis import APIS
from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.steps import run_at_once
from examples.broker.protocol.wire import decode, encode
from examples.broker.replication.peers import follower
from examples.broker.service.cluster import channels
from examples.broker.service.reply import Reply

_HEADER_BYTES = 8


@attrs.define(eq=False)
class Exchange:
    """A request on its way, then its response."""

    sender: int
    link: SimulatedLink
    api: int
    version: int
    request: object
    response: asyncio.Future
    """The bytes of the response, or None if the connection is broken."""
    reply: Reply | None = None
    """None until the target has received the request."""

    @property
    def _is_given_up(self):
        """Whether the sender no longer waits, or was killed."""
        return self.response.done() or self.response.get_loop().is_closed()

    def can_arrive(self):
        """Whether the next of the two messages can arrive now."""
        if self._is_given_up or not self.link.is_open:
            return True
        return not self.link.target.paused if self.reply is None else self.reply.frame is not None

    def arrive(self):
        """Let the next message arrive. Returns whether the exchange is over."""
        if self._is_given_up:
            return True
        if self.reply is not None and self.reply.frame is not None:
            self.response.set_result(b"".join(self.reply.frame)[_HEADER_BYTES:])
            return True
        if not self.link.is_open:
            self.response.set_result(None)
            return True
        self._receive()
        return False

    def _receive(self):
        target, kind = self.link.target, type(self.request)
        request = decode(kind, self.version, b"".join(encode(self.request, self.version)))
        self.reply = Reply(self.link, self.version, 0)
        with target.loop.running():
            try:
                target.handlers[self.api](request, self.version, self.reply)
            except BrokerError as error:
                self.reply(APIS[self.api].response(error_code=error.code))
        target.run_actions()


class SimulatedLink:
    """Both ends of a connection: a ``Link`` of the sender, and the connection of the target's handlers."""

    peer = "a simulated node"

    def __init__(self, network, target):
        self.network = network
        self.target = target
        self.life = target.life
        self.node = None
        """The node that sends."""
        self._closed = False

    @property
    def is_open(self):
        return not self._closed and self.target.alive and self.target.life == self.life

    # -- as the sender sees it

    async def __aenter__(self):
        if not self.is_open:
            raise ConnectionRefusedError
        return self

    async def __aexit__(self, *_):
        self.close()

    async def prove(self, key, _target):
        self.node = key.node_id

    async def ask(self, api, version, request, answer, timeout_s):
        loop = asyncio.get_running_loop()
        exchange = Exchange(loop.node_id, self, api, version, request, loop.create_future())
        self.network.exchanges.append(exchange)
        async with asyncio.timeout(timeout_s):
            response = await exchange.response
        if response is None:
            raise ConnectionResetError
        return decode(answer, version, response)

    # -- as the target's handlers see it

    def flush(self):
        """Called when a response is complete. ``Exchange.arrive`` finds it."""

    def run_steps(self, steps):
        run_at_once(steps)

    def close(self, *_):
        self._closed = True


class Network:
    """All requests and responses that are on their way."""

    def __init__(self, nodes):
        self.exchanges = []
        self._nodes = nodes

    def link(self, _host, port, *_):
        return SimulatedLink(self, self._nodes[port])

    def patches(self):
        return [mock.patch.object(module, "Link", self.link) for module in (follower, channels)]

    def arrivals(self):
        """Return the exchanges whose next message can arrive at a node that runs."""
        return [each for each in self.exchanges if not self._nodes[each.sender].paused and each.can_arrive()]

    def arrive(self, exchange):
        if exchange.arrive():
            self.exchanges.remove(exchange)
