"""The answer to ``XREAD``, parsed from the bytes that the server sends.

A reader knows what it expects: its stream, and the ids that come next. So an answer is compared with these bytes, which
is much faster than the client's parser. Entries are kept as they arrive, so a large answer is parsed once.

    *1 *2 $5 inbox *2                                                         a stream with two entries
        *2 $3 7-5 *4 $5 event $30 (an event) $5 after $4 (a mark)             what this version writes
        *2 $3 7-6 *2 $5 event $30 (an event)                                  what an earlier version wrote
"""

from __future__ import annotations

from typing import Final

from purgatory.feeds.engine import Disconnected, Event, ForeignStream, Gap, LogPosition
from purgatory.feeds.engines.redis._entries import is_event, unpack

_NONE: Final = b"*-1\r\n"
_LINE: Final = b"\r\n"
_AFTER: Final = b"\r\n$5\r\nafter\r\n$4\r\n"
#: How the fields of an entry begin, up to the size of the event, and how many bytes come after the event.
_SHAPES: Final = ((b"*4\r\n$5\r\nevent\r\n$", len(_AFTER) + 4), (b"*2\r\n$5\r\nevent\r\n$", 0))
_SHAPE_SIZE: Final = len(_SHAPES[0][0])


class Answer:
    """An answer that arrives in pieces: the events after a position.

    Args:
        stream: the name of the stream.

    Attributes:
        events: those that have arrived.
        after: the mark of the event before the first one, as the server knows it, or 0.
    """

    events: list[Event]
    after: int
    _epoch: int
    _offset: int  # of the last event that has arrived
    _left: int | None  # how many entries are still to come
    _buffer: bytes

    def __init__(self, stream: bytes) -> None:
        self._stream = stream.decode(errors="replace")
        self._head = b"*1\r\n*2\r\n$%d\r\n%b\r\n*" % (len(stream), stream)

    def begin(self, position: LogPosition) -> None:
        """Expect the next answer, to the question for what comes after a position."""
        self._epoch, self._offset = position.epoch, position.offset
        self._left = None
        self._buffer = b""
        self.events = []
        self.after = 0

    def add(self, data: bytes) -> bool:
        """Add what has arrived. Returns whether the answer is complete.

        Raises:
            Disconnected: it is an error, or not an answer to ``XREAD``.
            ForeignStream: there are entries of another program.
            Gap: there are other entries than those that come next.
        """
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if self._left is None:
            at = self._begin(buffer)
        while self._left:
            end = self._entry(buffer, at)
            if end is None:
                break
            at, self._left = end, self._left - 1
        self._buffer = buffer[at:] if at else buffer
        return self._left == 0

    def _begin(self, buffer: bytes) -> int:
        """Read the beginning of an answer. Returns where its first entry begins, 0 if it is not there."""
        head = self._head
        if buffer.startswith(head):
            end = buffer.find(_LINE, len(head))
            if end >= 0:
                self._left = int(buffer[len(head) : end])
                return end + 2
        elif buffer == _NONE:
            self._left = 0
            return len(_NONE)
        else:
            self._check_beginning(buffer)
        return 0

    def _check_beginning(self, buffer: bytes) -> None:
        """See that what has arrived can be the beginning of an answer, or of an error.

        Raises:
            Disconnected: it is an error, or neither.
            ForeignStream: the stream is of another type.
        """
        if buffer[:1] == b"-":
            if buffer.startswith(b"-WRONGTYPE") and buffer.endswith(_LINE):
                raise ForeignStream(self._stream, "of another type")
            if buffer.endswith(_LINE):
                raise Disconnected(buffer[1:-2].decode(errors="replace"))
        elif not self._head.startswith(buffer[: len(self._head)]) and not _NONE.startswith(buffer):
            raise Disconnected("the server sent something else than an answer to XREAD")

    def _entry(self, buffer: bytes, at: int) -> int | None:
        """Read the entry at a place. Returns where the next one begins, or None if it has not arrived."""
        place = b"%d-%d" % (self._epoch, self._offset + 1)
        head = b"*2\r\n$%d\r\n%b\r\n" % (len(place), place)
        for shape, more in _SHAPES:  # noqa: B007  # it is used below
            if buffer.startswith(head + shape, at):
                break
        else:
            self._check_next(buffer, at, head)
            return None
        size = at + len(head) + _SHAPE_SIZE
        end = buffer.find(_LINE, size)
        if end < 0:
            return None
        start = end + 2
        stop = start + int(buffer[size:end])
        end = stop + more + 2
        if len(buffer) < end:
            return None
        data = buffer[start:stop]
        if not is_event(data) or (more and not buffer.startswith(_AFTER, stop)):
            raise ForeignStream(self._stream, "a stream with entries of another program")
        if more and not self.events:
            self.after = int.from_bytes(buffer[stop + more - 4 : stop + more], "big")
        self._offset += 1
        self.events.append(unpack(data, self._epoch, self._offset))
        return end

    def _check_next(self, buffer: bytes, at: int, head: bytes) -> None:
        """See that the entry at a place, of which only a part has arrived, can be the next one.

        Raises:
            ForeignStream: it is of another program.
            Gap: it is another one.
        """
        fields = at + len(head)
        if not head.startswith(buffer[at:fields]):
            raise Gap(f"other entries come after {self._epoch}-{self._offset}")
        if len(buffer) >= fields + _SHAPE_SIZE:
            raise ForeignStream(self._stream, "a stream with entries of another program")
