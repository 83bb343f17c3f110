"""Positions and events.

**A position names one event of a feed**: its epoch, its offset and its mark. It stands for that event and all before
it. Within an epoch offsets are contiguous (1, 2, 3, ...), so a missing event is noticed. A stream that is created again
has a greater epoch. The mark tells the event from another one that stands at the same offset, which happens if a server
lost its last events and accepted others:

    before the failover    7-1-aa  7-2-bb  7-3-cc        a worker has applied 7-3-cc
    after it               7-1-aa  7-2-bb  7-3-dd  ...   the worker asks for 7-3-cc, finds 7-3-dd, and reports a gap

Two positions are equal if their marks are, too. Positions are ordered by epoch and offset, and two events with one
offset have no order. An order says nothing about an event that a server has lost. So a worker compares a client's
position with the marks of what it has applied (``_marks``). Everything here is immutable, and any thread may use it.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import attrs

if TYPE_CHECKING:
    from typing import Self

_TEXT: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9a-f]{1,8})")


class Position(abc.ABC):
    """A position names one event. It stands for that event and all before it.

    ``str(position)`` is its text, and ``feed.position(text)`` reads it.

    ``one >= other`` means that a worker that has applied everything up to ``one`` has applied ``other`` too, if the
    server has lost neither. The order is partial: of two events with one offset neither is greater, and of two
    positions of a Kafka topic with several partitions neither may be.
    """

    __slots__ = ()

    #: Whether the offsets of a log have no holes.
    is_contiguous: ClassVar[bool] = True

    @abc.abstractmethod
    def __ge__(self, other: object) -> bool: ...

    @abc.abstractmethod
    def __str__(self) -> str: ...

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The position with this text, or None if it is not the text of one."""
        raise NotImplementedError

    @abc.abstractmethod
    def events_until(self, end: Position) -> int | None:
        """How many events come after this position, up to ``end``. None if that is not known."""

    @property
    @abc.abstractmethod
    def event_count(self) -> int:
        """How many events this position includes, within its epoch. For graphs: it grows with each event."""

    @abc.abstractmethod
    def places(self) -> Sequence[Place]:
        """Up to where this position includes each ordered log of the feed: a place per log that it names."""

    def after(self, events: Sequence[Event]) -> Position:
        """The position of a worker that was here and has applied these events."""
        return events[-1].position

    def __le__(self, other: object) -> bool:
        return other.__ge__(self) if isinstance(other, Position) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self >= other and not other >= self if isinstance(other, Position) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self <= other and not other <= self if isinstance(other, Position) else NotImplemented


class Place(NamedTuple):
    """A place in one ordered log: an event, and all before it.

    Attributes:
        log: the number of the log. A feed with one order has log 0. A Kafka topic has one per partition.
        epoch: which incarnation of the log. A later one is greater.
        offset: the number of the event, from 1. 0 is before the first.
        mark: tells the event from another at this offset. 0 if it is not known.
    """

    log: int
    epoch: int
    offset: int
    mark: int


@attrs.frozen(order=False)
class LogPosition(Position):
    """A position in one ordered log. Its text is ``epoch-offset-mark``, the mark in hexadecimal digits.

    Attributes:
        epoch: which incarnation of the stream. A later one is greater.
        offset: the number of the event in it, from 1. 0 is before the first.
        mark: an ``int`` of 32 bits that tells this event from another at this offset. 0 if it is not known.

    >>> LogPosition(1700000000000, 7, 0xbeef)
    LogPosition(epoch=1700000000000, offset=7, mark=48879)
    >>> str(_)
    '1700000000000-7-beef'
    """

    epoch: int
    offset: int
    mark: int = 0

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, LogPosition):
            return NotImplemented
        if self.epoch != other.epoch or self.offset != other.offset:
            return (self.epoch, self.offset) > (other.epoch, other.offset)
        return is_same(self.mark, other.mark)

    def __str__(self) -> str:
        return f"{self.epoch}-{self.offset}-{self.mark:x}"

    def events_until(self, end: Position) -> int | None:
        """How many events come after this position, up to ``end``. None if that is in another epoch."""
        if not isinstance(end, LogPosition) or end.epoch != self.epoch:
            return None
        return max(0, end.offset - self.offset)

    @property
    def event_count(self) -> int:
        """How many events this position includes, within its epoch."""
        return self.offset

    def places(self) -> Sequence[Place]:
        """Its place in the one log."""
        return (Place(0, self.epoch, self.offset, self.mark),)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The position with this text, or None if it is not the text of one."""
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]), int(match[3], 16))


def mark_of(published_ns: int) -> int:
    """The mark of an event that was published at this time. Never 0."""
    return published_ns & 0xFFFF_FFFF or 1


def is_same(mark: int, other: int) -> bool:
    """Whether two marks can be of one event: they are equal, or one is not known."""
    return mark == other or not mark or not other


@attrs.frozen
class NewEvent:
    """An event on its way into a feed.

    Attributes:
        key: what the event is about.
        value: its content.
        id: names the event. A feed accepts an id once. Kafka stores the event again with a new position. Workers do
            not apply it.
        published_ns: the publisher's time in nanoseconds since 1970.
        context: what a tracer wants carried to the readers, or None.
        size: the number of bytes of key, value and id.
    """

    key: str
    value: bytes
    id: str | None
    published_ns: int
    context: str | None
    size: int


@attrs.frozen
class Event:
    """An event of a feed.

    Attributes:
        key: what the event is about.
        value: its content.
        position: where in the feed it is, as its ``publish`` returned it. It names one ordered log.
        id: the id that it was published with, or None.
        published_ns: the publisher's time in nanoseconds since 1970.
        context: what a tracer of the publisher wanted carried here, or None.
        is_repeated: whether the feed has accepted the id before, so that this event is not applied. Only of engines
            whose server does not know ids.
    """

    key: str
    value: bytes
    position: Position
    id: str | None = None
    published_ns: int = 0
    context: str | None = None
    is_repeated: bool = False
