"""Reading from Redis: one command per read, which is sent before the events of the last one are applied.

The first entry that comes has the mark of its predecessor. So the answer proves by itself that it continues the history
of which this worker has applied the last event.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from purgatory.feeds.engine import Disconnected, Event, Gap, LogPosition, Position, Reader, is_same
from purgatory.feeds.engines.redis._answers import Answer
from purgatory.feeds.engines.redis._connection import RedisConnection
from purgatory.feeds.engines.redis._entries import BEFORE_LAST, mark_before, mark_in

if TYPE_CHECKING:
    from purgatory.feeds.engines.redis._connection import Stream

#: How many bytes are taken at once from what has arrived.
_CHUNK: Final = 1 << 18


class RedisReader(RedisConnection, Reader):
    """A connection for reading."""

    most_events = (
        128  # XREAD has no limit of bytes: this is 128 MiB of the largest events, and the next read asks for fewer
    )

    _position: LogPosition

    def __init__(self, feed: Stream) -> None:
        super().__init__(feed)
        self._answer = Answer(self._stream)
        self._has_asked = False  # whether an answer is to come

    async def end(self) -> Position:
        """The position of the last event. The stream is made if there is none."""
        return await self.before_last(0)

    async def before_last(self, count: int) -> Position:
        """The position before the last events. The stream is made if there is none."""
        arguments = [self._feed.seen_epoch, count]
        place, entries = self._checked(await self._run(BEFORE_LAST, [self._stream], arguments))
        epoch, offset = _numbers(place)
        self._feed.seen_epoch = max(self._feed.seen_epoch, epoch)
        if not entries:
            return LogPosition(epoch, offset)
        is_there = entries[0][0] == place
        return LogPosition(epoch, offset, mark_in(self._data(entries[0])) if is_there else mark_before(entries[0][1]))

    async def resume(self, after: Position) -> None:
        """Read on after a position."""
        assert isinstance(after, LogPosition)
        await self._verify(after)
        self._position = after

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events. Unless there were ``most``, those after them are asked for before it returns."""
        here = self._position
        if not self._has_asked:
            self._send(most, wait_s)
        answer, stream = self._answer, self._redis._reader
        try:
            while not answer.add(data := await stream.read(_CHUNK)):
                if not data:
                    raise Disconnected("the server has closed the connection")
        except OSError as error:
            raise Disconnected(str(error) or repr(error)) from error
        self._has_asked = False
        events = answer.events
        if not events:  # the time is up, or the stream was begun again, or what woke this is removed
            await self._verify(here)
            return ()
        if not is_same(here.mark, answer.after):
            raise Gap(f"another event is at offset {here.offset}")
        if here.mark and not answer.after:  # it was written by an earlier version
            place = b"%d-%d" % (here.epoch, here.offset)
            (entries,) = await self._ask((b"XRANGE", self._stream, place, place))
            self._check_mark(here, self._checked(entries))
        last = events[-1].position
        assert isinstance(last, LogPosition)
        self._position = last
        if len(events) < most:
            self._send(most, wait_s)
        return events

    def _send(self, most: int, wait_s: float) -> None:
        """Ask for the events after the position, without waiting for the answer."""
        writer = self._redis._writer
        if writer is None:
            raise Disconnected("the connection is closed")
        place = b"%d-%d" % (self._position.epoch, self._position.offset)
        writer.write(_command(most, wait_s, self._stream) + b"$%d\r\n%b\r\n" % (len(place), place))
        self._answer.begin(self._position)
        self._has_asked = True

    async def _verify(self, position: LogPosition) -> None:
        """See that the event at a position is there, or that nothing is missing without it. Likewise the last event.

        Raises:
            Gap: it is not so.
        """
        place, following = (b"%d-%d" % (position.epoch, position.offset + number) for number in (0, 1))
        info, entries = await self._ask(
            (b"XINFO", b"STREAM", self._stream), (b"XRANGE", self._stream, place, following)
        )
        if isinstance(info, ResponseError) and "no such key" in str(info):
            raise Gap("the stream was deleted")
        about = dict(zip(*[iter(self._checked(info))] * 2, strict=True))
        epoch, offset = _numbers(about[b"last-generated-id"])
        if epoch != position.epoch:
            raise Gap(f"the epoch is {epoch} now")
        if offset < position.offset:
            raise Gap(f"the stream ends at offset {offset}")
        last = about[b"last-entry"]
        if offset > position.offset and (last is None or _numbers(last[0])[1] != offset):
            raise Gap(f"the last event, at offset {offset}, was removed from the stream")
        if self._checked(entries) and entries[0][0] == place:
            self._check_mark(position, entries)
        elif (mark_before(entries[0][1]) if entries else 0) != position.mark or (
            not entries and offset != position.offset
        ):
            raise Gap("the event was removed from the stream")

    def _check_mark(self, position: LogPosition, entries: Sequence[Any]) -> None:
        """See that the entry at a position, if there is one, is the event of that position."""
        if entries and position.mark not in {0, mark_in(self._data(entries[0]))}:
            raise Gap(f"another event is at offset {position.offset}")


@functools.lru_cache(maxsize=64)
def _command(most: int, wait_s: float, stream: bytes) -> bytes:
    """``XREAD``, without the place after which to read."""
    parts = (b"XREAD", b"COUNT", b"%d" % most, b"BLOCK", b"%d" % (wait_s * 1000), b"STREAMS", stream)
    return b"*8\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _numbers(place: bytes) -> tuple[int, int]:
    """The two numbers of the id of an entry."""
    epoch, _, offset = place.partition(b"-")
    return int(epoch), int(offset)
