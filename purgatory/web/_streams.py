"""A stream for one client: what a ``find`` returns again and again, for server-sent events and lines of JSON.

    find() returns something    it is yielded. While the client is slow, the generator rests there, and nothing waits
    find() returns None         an operation waits under the keys, and asks again at each check
    nothing for a while         ``KEEP_ALIVE`` is yielded, so that proxies keep the connection
    the client hangs up         the generator ends
    the server stops            the generator ends, so that the response is complete and the client connects elsewhere

One listener serves all waits of a stream. It removes the operation that waits when the client goes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from purgatory import DelayedOperation


class KeepAlive(enum.Enum):
    """The type of :data:`KEEP_ALIVE`."""

    KEEP_ALIVE = "keep-alive"


#: A stream yields it when it is time for a sign of life, such as a comment of server-sent events (``b":\n\n"``).
KEEP_ALIVE: Final = KeepAlive.KEEP_ALIVE


class Current:
    """The operation that waits for a stream now."""

    __slots__ = ("operation",)

    def __init__(self) -> None:
        self.operation: DelayedOperation | None = None

    def cancel(self) -> None:
        """Remove it: the client has gone."""
        if self.operation is not None:
            self.operation.cancel()
