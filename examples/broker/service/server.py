"""The listener, and the state that all connections share: handlers, limits, the action queue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from examples.broker.protocol.apis import APIS, BETWEEN_NODES, ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages.header import ApiVersion, ApiVersionsResponse
from examples.broker.service.connection import Connection

if TYPE_CHECKING:
    from examples.broker.controller.controller import Controller
    from examples.broker.service.config import Config
    from examples.broker.service.reply import Handler, Reply
    from purgatory import ActionQueue

_log = structlog.get_logger(__name__)
_MOST_SURPLUS = 100
_INPUT_BYTES = 256 * 1024


class Server:
    def __init__(self, config: Config, actions: ActionQueue) -> None:
        self.config = config
        self.actions = actions
        self.handlers: dict[int, Handler] = {ApiKey.API_VERSIONS: self._answer_api_versions}
        self.connections: set[Connection] = set()
        self.from_nodes: set[Connection] = set()
        """The connections of other nodes, which have proved it."""
        self.surplus: dict[Connection, None] = {}
        """The connections above the limit, the oldest first. Their next request must be a node's proof."""
        self.input = memoryview(bytearray(_INPUT_BYTES))
        self.buffered = 0
        """The bytes of unfinished frames of all connections."""
        self.holder: Controller
        """Has the lease of the session in which this node is registered. Clients are answered until it ends.

        Set before ``listen``.
        """
        self._is_serving = False
        self.loop: asyncio.AbstractEventLoop
        self._listener: asyncio.Server | None = None

    async def bind(self) -> None:
        """Take the port, without accepting connections. Raises OSError if the address is not usable."""
        self.loop = asyncio.get_running_loop()
        here = self.config.cluster
        self._listener = await self.loop.create_server(
            lambda: Connection(self), here.host, here.port, backlog=1024, start_serving=False
        )

    async def listen(self) -> None:
        assert self._listener is not None
        await self._listener.start_serving()

    def run_actions(self) -> None:
        """Run the queued checks, and those that they queue."""
        while len(self.actions):
            self.actions.try_complete_actions()

    def is_serving(self, now: float) -> bool:
        """Whether clients may be answered at this monotonic time. Closes their connections if not.

        A connection with a challenge stays, because it may become a node's. It has no requests of a client.
        """
        serves = now < self.holder.lease.ends_at
        if serves != self._is_serving:
            self._is_serving = serves
            if serves:
                _log.info("clients are served")
            else:
                _log.warning("clients are not served: this node is not registered", connections=len(self.connections))
        if not serves:
            for connection in self.connections - self.from_nodes:
                if not connection.challenge:
                    connection.drop()
        return serves

    def opened(self, connection: Connection) -> None:
        """Note a new connection. Far above the limit, it takes the place of the oldest one that is above it."""
        self.connections.add(connection)
        if len(self.connections) - len(self.from_nodes) > self.config.max_connections:
            self.surplus[connection] = None
            if len(self.surplus) > _MOST_SURPLUS:
                next(iter(self.surplus)).close("too many connections")

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.from_nodes.discard(connection)
        self.surplus.pop(connection, None)

    def close_slow_and_idle(self) -> None:
        """Close connections with an incomplete frame that is too old, and idle clients. Called periodically."""
        now = time.monotonic()
        self.is_serving(now)
        slow, idle = now - self.config.frame_timeout_ms / 1_000, now - self.config.max_idle_ms / 1_000
        for connection in list(self.connections):
            if connection.frame_began is not None and connection.frame_began < slow:
                connection.close("a request took too long to arrive", at_once=True)
            elif connection.is_idle_since(slow if connection in self.surplus else idle):
                connection.close("no request for too long", at_once=True)

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        self.stop_listening()
        for connection in list(self.connections):
            connection.close("the broker stops")

    def api_versions(self, code: ErrorCode) -> ApiVersionsResponse:
        """Return the versions of the APIs for clients."""
        keys = sorted(self.handlers.keys() - BETWEEN_NODES)
        return ApiVersionsResponse(code, [ApiVersion(key, 0, APIS[key].max_version) for key in keys])

    def _answer_api_versions(self, _request: object, _version: int, reply: Reply) -> None:
        reply(self.api_versions(ErrorCode.NONE))
