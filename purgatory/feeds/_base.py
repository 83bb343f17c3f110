"""The base of ``Feed``: what publishing and reading need of a feed.

These are its settings, its counters, its positions, and the two methods that an engine implements. They are apart from
``Feed``, because ``Feed`` imports the modules that publish and read.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int
from purgatory.feeds._connections import OPEN_S, open_in_time
from purgatory.feeds._counters import Counters
from purgatory.feeds._errors import InvalidPosition
from purgatory.feeds._values import LogPosition, Position

if TYPE_CHECKING:
    from purgatory.feeds.engine import Connection, Publisher, Reader

ConnectionT = TypeVar("ConnectionT", bound="Connection")


class FeedBase(abc.ABC):
    """Settings, counters and connections of a feed. :class:`~purgatory.feeds.Feed` describes the arguments."""

    #: The class of this feed's positions.
    position_type: ClassVar[type[Position]] = LogPosition
    #: What carries the events, as OpenTelemetry names it (``messaging.system``).
    system: ClassVar[str] = "purgatory"

    def __init__(self, name: str, where: str, max_bytes: int, max_pending: int, publish_timeout_ms: int) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidSetting("name", name, "a non-empty str")
        self.name = name
        self.where = where
        #: The topic, stream or table of the events (``messaging.destination.name``).
        self.destination = name
        self.max_bytes = checked_int("max_bytes", max_bytes, 1)
        self.max_pending = checked_int("max_pending", max_pending, 1)
        self.publish_timeout_ms = checked_int("publish_timeout_ms", publish_timeout_ms, 1)
        self._counters = Counters()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.where}>"

    def position(self, text: str) -> Position:
        """The position with this text, as a client may have sent it.

        Raises:
            InvalidPosition: it is not the text of a position of this kind of feed.
        """
        found = self.position_type.parse(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidPosition(self.name, text)
        return found

    # -- for engines

    @abc.abstractmethod
    async def open_publisher(self) -> Publisher:
        """A new connection for publishing. It may be cancelled.

        Raises:
            Disconnected: the server cannot be reached, or cannot serve now.
            FeedError: the server, or what it has, can never serve as this feed.
        """

    @abc.abstractmethod
    async def open_reader(self) -> Reader:
        """A new connection for reading. As :meth:`open_publisher`."""

    # -- for this package

    async def _open(self, open_it: Callable[[], Awaitable[ConnectionT]], within_s: float = OPEN_S) -> ConnectionT:
        """A new connection, in time, or ``FeedUnavailable``."""
        return await open_in_time(open_it, self.name, self.where, within_s)
