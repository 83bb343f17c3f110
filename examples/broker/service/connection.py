"""Connections: frames in, responses out, in order and within limits.

Each request takes a *reply* at the end of its connection's queue. Replies may be filled in any order (a parked fetch
long after a later heartbeat), but are written from the front only, as the protocol demands.

    [fetch: waits] [heartbeat: ready] [produce: ready]      nothing can be written yet
    [fetch: ready] [heartbeat: ready] [produce: ready]      all three are written, in one write

The action queue runs after the requests of one chunk of input are answered. So the purgatory checks that these requests
caused come after their own answers.

**Why asyncio on one thread.** Handlers never block, because a request that cannot be answered is parked. Threads would
only add locks. A protocol class needs no task, future or wake-up per request, as streams would. For asyncio's own loop
it is a ``BufferedProtocol`` with one input buffer for all connections. A plain protocol makes that loop allocate 256 KB
per read, which took about 50 us, as much as all the rest.

A small request is decoded in place, and small responses are joined into one write. Large ones are passed on in pieces.
Without these copies a produce of 900 KB takes half the processor time.

**Limits for clients.** Above ``max_connections``, only other nodes of the cluster can connect. A client without
requests for ``max_idle_ms`` is disconnected. A frame that is too large, invalid, or incomplete after
``frame_timeout_ms`` closes the connection, with a log line. Unfinished frames of all connections together hold at most
``max_buffered_bytes``. A client that does not read its responses is not read from after ``max_in_flight`` requests, or
when its socket is full. A request has at most ``max_elements`` elements in all its arrays.

**The lease.** In a cluster, a client is answered only while this node knows that its session lasts. The time is
compared before each request and before each write, because the process may have been stopped in between. Afterwards
its connections are closed without an answer. Only other nodes are answered until this node has registered again.

**Turns.** A connection's requests are handled for at most ``turn_ms``. Then the other connections have their turn. A
handler that may take longer is a generator, and its turn can end wherever it yields. Until it has ended, nothing more
is read from its connection. Other requests are handled between two steps, so a step must not keep state that they
change.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import structlog

from examples.broker.protocol.apis import APIS, NODES_ONLY, ApiKey
from examples.broker.protocol.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.wire import decode, decode_prefix
from examples.broker.service.reply import Reply

if TYPE_CHECKING:
    from examples.broker.protocol.steps import Steps
    from examples.broker.service.server import Server

_log = structlog.get_logger(__name__)
_SIZE = struct.Struct(">i")
_SMALLEST_REQUEST = 8
_NO_LIMIT = 1 << 62
_WORTH_JOINING = 16 * 1024


class Connection(asyncio.Protocol, asyncio.BufferedProtocol):
    """One client.

    Both kinds of protocol: asyncio's loop uses the buffer. uvloop has its own and calls ``data_received``.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._config = server.config
        self._buffer = bytearray()
        self._accounted = 0
        self._replies: deque[Reply] = deque()
        self._handling = False
        self._blocked = False
        self._paused = False
        self._steps: deque[Steps[None]] = deque()
        """Handlers that work in steps and have not ended."""
        self._turn_ends = 0.0
        self._is_between_turns = False
        self._transport: asyncio.Transport | None = None
        self.frame_began: float | None = None
        """When the first byte of an incomplete frame arrived."""
        self.peer = "?"
        self.client_id = ""
        self.challenge = b""
        """The challenge that a node must answer with its proof."""
        self.node: int | None = None
        """The node that this connection has proved to be from."""
        self._active_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def is_idle_since(self, time: float) -> bool:
        """Whether this is a client, without a request or a response since then."""
        return self.node is None and not self._replies and self._active_at < time

    def proved(self, node: int) -> None:
        """Note that the connection is from a node of the cluster."""
        self.node = node
        self._server.from_nodes.add(self)
        self._server.surplus.pop(self, None)

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not derive from it
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._active_at = time.monotonic()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the client, and cancel its operations that wait."""
        self._transport = None
        self._server.lost(self)
        self._buffer.clear()
        self._account()
        self.frame_began = None
        replies, self._replies = self._replies, deque()
        for reply in replies:
            if reply.on_lost is not None:
                reply.on_lost()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer that all connections share. Its content is copied before the next read."""
        return self._server.input

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._server.input[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self._buffer or self._paused:
            self._buffer += data
            self._handle_buffer()
            return
        taken = self._handle_frames(data)
        if taken < len(data):
            self._buffer += data[taken:]
            self._after_input()
        else:  # the usual case: no rest, and no copy
            self.flush()
            self._server.run_actions()

    def pause_writing(self) -> None:
        """Do not read from a client that does not read its responses."""
        self._blocked = True
        self._pace()

    def resume_writing(self) -> None:
        self._blocked = False
        self._pace()

    # -- frames

    def _handle_buffer(self) -> None:
        if len(self._buffer) >= 4:  # noqa: PLR2004 - the size field
            size = int.from_bytes(self._buffer[:4], "big", signed=True)
            # Do not copy a large frame again with every piece that arrives.
            if len(self._buffer) >= size + 4 or not _SMALLEST_REQUEST <= size <= self._config.max_request_bytes:
                taken = self._handle_frames(bytes(self._buffer))
                del self._buffer[:taken]
        self._after_input()

    def _handle_frames(self, data: bytes) -> int:
        """Handle the complete frames at the start of ``data``. Returns their size in bytes."""
        position, end = 0, len(data)
        self._handling = True
        self._active_at = time.monotonic()
        self._turn_ends = self._active_at + self._config.turn_ms / 1_000
        try:
            while end - position >= 4 and not self._paused and self._transport is not None:  # noqa: PLR2004
                (size,) = _SIZE.unpack_from(data, position)
                if not _SMALLEST_REQUEST <= size <= self._config.max_request_bytes:
                    raise MalformedRequest(
                        f"a request must have {_SMALLEST_REQUEST} to {self._config.max_request_bytes} bytes, got {size}"
                    )
                start, following = position + 4, position + 4 + size
                if following > end:
                    break
                self._handle(data, start, following)
                position = following
                if end > position and time.monotonic() >= self._turn_ends:
                    self._end_turn()
                if len(self._replies) >= self._config.max_in_flight:
                    self._pace()
        except MalformedRequest as error:
            self.close(str(error))
        finally:
            self._handling = False
        return position

    def _handle(self, data: bytes, start: int, end: int) -> None:
        header, position = decode_prefix(RequestHeader, 0, data, start, end)
        if header.api_key != ApiKey.NODE_HANDSHAKE and not self._may_ask():
            return
        api = APIS.get(header.api_key)
        handler = self._server.handlers.get(header.api_key)
        version = header.api_version
        reply = Reply(self, version, header.correlation_id)
        if header.client_id:
            self.client_id = header.client_id
        if api is None or handler is None or not 0 <= version <= api.max_version:
            if header.api_key != ApiKey.API_VERSIONS:
                raise MalformedRequest(f"version {version} of API {header.api_key} is unknown")
            # The format of the body is unknown. The answer, in version 0, lists the known versions.
            self._replies.append(Reply(self, 0, header.correlation_id))
            self._replies[-1](self._server.api_versions(ErrorCode.UNSUPPORTED_VERSION))
            return
        if header.api_key in NODES_ONLY and self.node is None:
            raise MalformedRequest(f"API {header.api_key} is for nodes of the cluster only")
        most = self._config.max_elements if self.node is None else _NO_LIMIT
        request: Any = decode(api.request, version, data, position, end, most=most)
        self._replies.append(reply)
        try:
            steps = handler(request, version, reply)
            if steps is not None:
                self.run_steps(steps)
        except MalformedRequest:
            raise
        except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
            if isinstance(error, BrokerError) and hasattr(api.response, "error_code"):
                reply(api.response(error_code=error.code))
                return
            _log.exception("handler failed", api=api.key.name, version=version, peer=self.peer)
            self.close(f"the handler of {api.key.name} failed")

    def _may_ask(self) -> bool:
        """Whether this node answers requests of this connection. If not, it is closed."""
        if self.node is not None:
            return True
        if self in self._server.surplus:
            raise MalformedRequest("too many connections")
        if self._active_at < self._server.holder.lease.ends_at or self._server.is_serving(self._active_at):
            return True
        self.drop()
        return False

    # -- turns

    def run_steps(self, steps: Steps[None]) -> None:
        """Run a handler in steps, after the earlier ones of this connection, and in turn with other connections."""
        self._steps.append(steps)
        if not self._is_between_turns:
            self._advance()

    def _advance(self) -> None:
        while self._steps:  # also when the client is gone, because a change must be completed
            if next(self._steps[0], True):
                self._steps.popleft()
            elif time.monotonic() >= self._turn_ends:
                self._end_turn()
                return

    def _end_turn(self) -> None:
        self._is_between_turns = True
        self._pace()
        self._server.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_between_turns = False
        self._turn_ends = time.monotonic() + self._config.turn_ms / 1_000
        try:
            self._advance()
        except MalformedRequest as error:
            self.close(str(error))
        except Exception:  # noqa: BLE001 - contained, as in ``_handle``
            _log.exception("handler failed", peer=self.peer)
            self.close("a handler failed")
        self._pace()
        self._after_input()

    def _after_input(self) -> None:
        self.flush()
        if self._transport is None:
            self._buffer.clear()
        elif not self._buffer or self._paused:
            self.frame_began = None
        elif self.frame_began is None:
            self.frame_began = time.monotonic()
        self._account()
        if self._server.buffered > self._config.max_buffered_bytes and self._buffer and not self._paused:
            self.close("the unfinished requests of all connections are too large")
        self._server.run_actions()

    def _account(self) -> None:
        self._server.buffered += len(self._buffer) - self._accounted
        self._accounted = len(self._buffer)

    # -- responses

    def flush(self) -> None:
        """Write the responses whose turn it is, together."""
        if self._handling or self._transport is None:
            return
        replies = self._replies
        if not replies or replies[0].frame is None:
            return
        self._active_at = time.monotonic()
        if self._active_at >= self._server.holder.lease.ends_at:
            self._server.is_serving(self._active_at)
            if self._transport is None:
                return
        ready: list[bytes] = []
        while replies and (frame := replies[0].frame) is not None:
            ready += frame
            replies.popleft()
        if sum(map(len, ready)) < _WORTH_JOINING:
            self._transport.write(b"".join(ready))
        else:
            self._transport.writelines(ready)
        if self._paused:
            self._pace()

    def _pace(self) -> None:
        """Pause or resume reading from the client."""
        if self._transport is None:
            return
        wanted = self._blocked or self._is_between_turns or len(self._replies) >= self._config.max_in_flight
        if wanted and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif self._paused and not wanted:
            self._paused = False
            self._transport.resume_reading()
            if self._buffer:
                self._server.loop.call_soon(self._handle_buffer)

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection after the pending writes. A client that does not read gets no more of them."""
        if self._transport is not None:
            _log.warning("connection closed", peer=self.peer, client_id=self.client_id, reason=reason)
            self.drop(at_once=at_once or self._blocked)

    def drop(self, *, at_once: bool = True) -> None:
        """Close the connection without a line in the log, and (``at_once``) without the pending writes."""
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()
            self.connection_lost(None)
