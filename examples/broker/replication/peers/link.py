"""A connection from one node to another, with one request at a time."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Self, TypeVar

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import MalformedRequest
from examples.broker.protocol.messages.controller import NodeHandshakeRequest, NodeHandshakeResponse
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.wire import decode, encode

if TYPE_CHECKING:
    from examples.broker.replication.peers.node_key import NodeKey

_CONNECT_S = 2
_PROOF_S = 5

R = TypeVar("R")


class Link:
    """Connects when it is entered. Raises OSError or TimeoutError if that is not possible."""

    def __init__(self, host: str, port: int, name: str, limit: int) -> None:
        self._host = host
        self._port = port
        self._name = name
        self._limit = limit
        self._correlation_id = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(_CONNECT_S):  # a machine that is down does not answer at all
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=self._limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def prove(self, key: NodeKey, target: int) -> None:
        """Prove to the node ``target`` that this node belongs to the cluster. Raises as ``ask`` if rejected."""
        ask, answer = NodeHandshakeRequest(key.node_id), NodeHandshakeResponse
        challenge = (await self.ask(ApiKey.NODE_HANDSHAKE, 0, ask, answer, _PROOF_S)).challenge
        proof = NodeHandshakeRequest(key.node_id, key.proof(challenge, target))
        await self.ask(ApiKey.NODE_HANDSHAKE, 0, proof, answer, _PROOF_S)

    async def ask(self, api: ApiKey, version: int, request: object, answer: type[R], timeout_s: float) -> R:
        """Send a request and read its response. Raises OSError, EOFError, TimeoutError or MalformedRequest."""
        assert self._writer is not None
        self._correlation_id += 1
        header = RequestHeader(api, version, self._correlation_id, self._name)
        body = b"".join([*encode(header, 0), *encode(request, version)])
        self._writer.write(struct.pack(">i", len(body)) + body)
        async with asyncio.timeout(timeout_s):
            size, correlation_id = struct.unpack(">ii", await self._reader.readexactly(8))
            if correlation_id != self._correlation_id:
                raise MalformedRequest(f"the correlation id must be {self._correlation_id}, got {correlation_id}")
            return decode(answer, version, await self._reader.readexactly(size - 4))
