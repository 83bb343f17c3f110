"""What an engine has to implement: the interface between this package and one system.

An engine is three classes. A subclass of :class:`~purgatory.feeds.Feed` opens connections. A :class:`Publisher` is one
connection for publishing, and a :class:`Reader` is one for reading::

    class MyFeed(Feed):
        async def open_publisher(self) -> Publisher: ...
        async def open_reader(self) -> Reader: ...

A connection belongs to one loop, and one call is in progress at a time. After an error it is closed and another one is
opened, so an engine never reconnects and never retries. Timeouts, batches, retries, gaps and counters are the same for
all engines and are not its concern.

An engine raises two exceptions. :class:`Disconnected`: the connection is lost, or cannot be made. :class:`Gap`: the
server does not have what comes next. Any other exception ends the following.

``purgatory.testing.feeds.FeedContract`` is the test suite for engines.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory.feeds._errors import (
    Disconnected,
    ForeignStream,
    Gap,
    PublishRejected,
    PublishUncertain,
    UnsupportedServer,
)
from purgatory.feeds._values import Event, LogPosition, NewEvent, Place, Position, is_same, mark_of

if TYPE_CHECKING:
    from typing import TypeAlias

    Answer: TypeAlias = Position | PublishRejected | PublishUncertain

__all__ = [
    "Disconnected",
    "Event",
    "ForeignStream",
    "Gap",
    "LogPosition",
    "NewEvent",
    "Place",
    "Position",
    "PublishRejected",
    "PublishUncertain",
    "Publisher",
    "Reader",
    "UnsupportedServer",
    "check_contiguous",
    "is_same",
    "mark_of",
]


class Connection(abc.ABC):
    """One connection to the system."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close it. Called once, after errors too. It may be cancelled."""


class Publisher(Connection):
    """A connection for publishing."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost. It is asked before each batch, and must be quick."""
        return False

    @abc.abstractmethod
    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events, in this order. It may be cancelled, and is after a timeout.

        An event with an id that the feed has accepted before is not appended. Its answer is the first position.

        Returns:
            One answer for each event, in the same order: its position, or the error that its publisher gets.

        Raises:
            Disconnected: the connection was lost. Each of the events may have been accepted.
        """


class Reader(Connection):
    """A connection for reading.

    Attributes:
        resume_s: how long ``resume`` may take.
        most_events: how many events one read may be asked for.
    """

    resume_s: float = 5.0
    most_events: int = 1_000

    @abc.abstractmethod
    async def end(self) -> Position:
        """The position of the last event that the server has. The stream is made if there is none.

        Raises:
            Disconnected: the connection was lost.
        """

    @abc.abstractmethod
    async def before_last(self, count: int) -> Position:
        """The position before the last ``count`` events, or before the first of those that the server has.

        Its mark is 0 if the server does not have that event any more.

        Raises:
            Disconnected: the connection was lost.
        """

    @abc.abstractmethod
    async def resume(self, after: Position) -> Position | None:
        """Read on after a position.

        The server must have that event. Otherwise nothing may be missing: the event is directly before the first one
        that the server has, or the end of a stream without events.

        Returns:
            The whole position, if ``after`` is only a part of it. None if it is ``after``.

        Raises:
            Disconnected: the connection was lost.
            Gap: the event is gone, another one is in its place, the end comes before it, or the epoch is another one.
        """

    @abc.abstractmethod
    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events, at most ``most``. Waits for the first for about ``wait_s`` seconds, and returns ``[]`` then.

        Before it returns ``[]``, it asks the server whether the position is still the one to read on from. It may be
        cancelled. The reader is closed afterwards.

        Raises:
            Disconnected: the connection was lost.
            Gap: the server has other events next than those that come next.
        """


def check_contiguous(after: LogPosition, positions: Sequence[LogPosition]) -> None:
    """See that positions follow each other and come directly after one.

    Raises:
        Gap: they do not.
    """
    if not positions:
        return
    epoch, offset = after.epoch, after.offset
    for position in positions:
        offset += 1
        if position.offset != offset or position.epoch != epoch:
            raise Gap(f"after offset {offset - 1} of epoch {epoch} comes offset {position.offset} of {position.epoch}")
