"""The connections of the console's own server, which close if their client is silent or does not read.

uvicorn closes a connection only after an answer. So one that sends nothing, half a request or a byte now and then, or
that does not read its answer, would stay open for ever. Such clients could take all file descriptors of the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: How long a request may take to arrive, and to be answered. A stream of events ends before.
PATIENCE_S: Final = 10.0
#: The number of connections. One more closes the oldest one that has no request.
MOST: Final = 256


class Connection(H11Protocol):
    """A connection that begins another request at least every :data:`PATIENCE_S`, or is closed."""

    _began: object = None  # the request that was the last one when this looked
    _looks: asyncio.TimerHandle | None = None
    since_s = 0.0

    def connection_made(self, transport: Any) -> None:
        """Take the place of a silent one if there are too many."""
        if len(self.connections) >= MOST:
            oldest: Any = min(self.connections, key=_worth)
            self.connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self._looks = self.loop.call_later(PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._looks is not None:
            self._looks.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close it if there was no other request since the last look."""
        if self.cycle is self._began:
            self.transport.abort()
            return
        self._began = self.cycle
        self._looks = self.loop.call_later(PATIENCE_S, self._look)


def _worth(connection: Any) -> tuple[bool, float]:
    """The order in which connections are closed: those without a request first, and the oldest first."""
    return connection.cycle is not None, connection.since_s
