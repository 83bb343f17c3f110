"""One response, and its place in the order of its connection."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from examples.broker.protocol.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.protocol.steps import Steps
    from examples.broker.service.connection import Connection

    Handler = Callable[[Any, int, "Reply"], Steps[None] | None]

_FRAME = struct.Struct(">ii")


class Reply:
    """The place of one response in its connection's order. Call it once, with the response."""

    __slots__ = ("_correlation_id", "_version", "connection", "frame", "on_lost")

    def __init__(self, connection: Connection, version: int, correlation_id: int) -> None:
        self.connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self.frame: list[bytes] | None = None
        """The response in pieces, or None until it is known."""
        self.on_lost: Callable[[], object] | None = None
        """Called if the client disconnects before the answer."""

    def __call__(self, response: object) -> None:
        """Answer. The response is written after those before it."""
        pieces = encode(response, self._version)
        size = sum(map(len, pieces))
        self._fill([_FRAME.pack(size + 4, self._correlation_id), *pieces])

    def nothing(self) -> None:
        """This request has no response."""
        self._fill([])

    def _fill(self, frame: list[bytes]) -> None:
        if self.frame is None:
            self.frame = frame
            self.on_lost = None
            self.connection.flush()
