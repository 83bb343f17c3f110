"""A feed in the memory of one process: for tests, and for programs of one worker.

It keeps its last events in a list, as a server would. Its methods cause the faults of a server, so that a test of a
service can see what a lost connection or a gap does::

    feed.disconnect()      every connection is lost, and can be made again
    feed.disconnect(away=True), feed.restore()     the server is away meanwhile
    feed.trim(0)           the history is forgotten, as by a short retention
    feed.lose_last(2)      the last events are lost, as by a failover to a server that lags behind
    feed.restart()         everything is lost, and the stream gets another epoch

Any thread and any loop may use one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from purgatory._core.errors import checked_int
from purgatory.feeds._feed import Feed
from purgatory.feeds.engine import (
    Disconnected,
    Event,
    Gap,
    LogPosition,
    NewEvent,
    Position,
    Publisher,
    Reader,
    is_same,
    mark_of,
)
from timer._fork import new_lock

if TYPE_CHECKING:
    from purgatory.feeds.engine import Answer


class MemoryFeed(Feed):
    """A feed within one process.

    Args:
        name: the name in logs and metrics.
        keep: how many events it keeps for workers that lag behind, at least 1.
        settings: ``max_bytes``, ``max_pending`` and ``publish_timeout_ms``, as :class:`~purgatory.feeds.Feed` takes
            them.

    >>> import asyncio
    >>> from purgatory.aio import AsyncPurgatory
    >>> async def main() -> None:
    ...     feed, inbox = MemoryFeed(), []
    ...     def apply(event):
    ...         inbox.append(event.value)
    ...         return [event.key]
    ...     async with AsyncPurgatory("polls") as purgatory, feed.follow(purgatory, apply) as following:
    ...         await following.applied(await feed.publish("ann", b"hello"))
    ...         print(inbox)
    >>> asyncio.run(main())
    [b'hello']
    """

    system = "memory"

    def __init__(self, name: str = "memory", *, keep: int = 10_000, **settings: int) -> None:
        super().__init__(name, where="the memory of this process", **settings)
        self._lock = new_lock()
        self._events: deque[Event] = deque(maxlen=checked_int("keep", keep, 1))
        self._ids: dict[str, LogPosition] = {}
        self._end = LogPosition(time.time_ns() // 1_000_000, 0)
        self._connections: set[_Connection] = set()
        self._is_away = False

    async def open_publisher(self) -> MemoryPublisher:
        """A connection for publishing."""
        return MemoryPublisher(self)

    async def open_reader(self) -> MemoryReader:
        """A connection for reading."""
        return MemoryReader(self)

    # -- faults, for tests

    def disconnect(self, *, away: bool = False) -> None:
        """Lose every connection. With ``away``, no other can be made until :meth:`restore`."""
        with self._lock:
            self._is_away = away
            lost, self._connections = self._connections, set()
        for connection in lost:
            connection.lose()

    def restore(self) -> None:
        """Accept connections again."""
        self._is_away = False

    def trim(self, keep: int = 0) -> None:
        """Forget all but the last ``keep`` events."""
        with self._lock:
            while len(self._events) > keep:
                self._events.popleft()

    def lose_last(self, count: int) -> None:
        """Lose the last ``count`` events and every connection. The next events get their offsets."""
        with self._lock:
            for _ in range(count):
                lost = self._events.pop()
                if lost.id is not None:
                    self._ids.pop(lost.id, None)
            last = self._events[-1].position if self._events else LogPosition(self._end.epoch, self._end.offset - count)
            assert isinstance(last, LogPosition)
            self._end = last
        self.disconnect()

    def restart(self) -> None:
        """Lose every event and every id, and begin another epoch."""
        with self._lock:
            self._events.clear()
            self._ids.clear()
            self._end = LogPosition(self._end.epoch + 1, 0)
        self.disconnect()

    # -- what its connections do

    def _connect(self, connection: _Connection) -> None:
        with self._lock:
            if self._is_away:
                raise Disconnected("it is away")
            self._connections.add(connection)

    def _append(self, event: NewEvent) -> LogPosition:
        with self._lock:
            known = None if event.id is None else self._ids.get(event.id)
            if known is not None:
                return known
            here = LogPosition(self._end.epoch, self._end.offset + 1, mark_of(event.published_ns))
            if event.id is not None:
                self._ids[event.id] = here
                if len(self._ids) > (self._events.maxlen or 0):
                    del self._ids[next(iter(self._ids))]
            self._events.append(Event(event.key, event.value, here, event.id, event.published_ns, event.context))
            self._end = here
            connections = list(self._connections)
        for connection in connections:
            connection.notify()
        return here

    def _verify(self, position: LogPosition) -> None:
        """See that the event at a position is there, or that nothing is missing without it.

        Raises:
            Gap: it is not so.
        """
        self._after(position, 1)  # the next event is there, or none has been published
        with self._lock:
            is_there = self._end.offset - position.offset < len(self._events)
            place = len(self._events) - 1 - (self._end.offset - position.offset)
            mark = self._events[place].position.places()[0].mark if is_there else 0
        if not is_same(mark, position.mark) or (position.mark and not mark):
            raise Gap(f"it has another event at offset {position.offset}, or none")

    def _before_last(self, count: int) -> LogPosition:
        """The position before the last events."""
        with self._lock:
            end, kept = self._end, len(self._events)
            if count < kept:
                position = self._events[kept - 1 - count].position
                assert isinstance(position, LogPosition)
                return position
            return LogPosition(end.epoch, end.offset - kept)

    def _after(self, position: LogPosition, most: int) -> list[Event]:
        """The next events.

        Raises:
            Gap: there is no way to read on after that position.
        """
        with self._lock:
            end, kept = self._end, len(self._events)
            if position.epoch != end.epoch:
                raise Gap(f"the epoch is {end.epoch} now")
            if position.offset > end.offset:
                raise Gap(f"the feed ends at offset {end.offset}")
            missing = end.offset - position.offset
            if missing > kept:
                raise Gap(f"the feed begins at offset {end.offset - kept + 1}")
            return list(islice(self._events, kept - missing, kept - missing + most))


class _Connection:
    """A connection, which other threads may notify of a change."""

    def __init__(self, feed: MemoryFeed) -> None:
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._lost = False
        feed._connect(self)

    @property
    def is_lost(self) -> bool:
        """Whether it is lost."""
        return self._lost

    def notify(self) -> None:
        """Something has changed. From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    def lose(self) -> None:
        """The connection is lost. From any thread."""
        self._lost = True
        self.notify()

    def check(self) -> None:
        """Raise ``Disconnected`` if it is lost."""
        if self._lost:
            raise Disconnected("the connection was lost")

    async def close(self) -> None:
        """Close it."""
        self._lost = True
        with self._feed._lock:
            self._feed._connections.discard(self)


class MemoryPublisher(_Connection, Publisher):
    """A connection for publishing."""

    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events."""
        self.check()
        return [self._feed._append(event) for event in events]


class MemoryReader(_Connection, Reader):
    """A connection for reading."""

    _position: LogPosition

    async def end(self) -> Position:
        """The position of the last event."""
        self.check()
        return self._feed._end

    async def before_last(self, count: int) -> Position:
        """The position before the last events."""
        self.check()
        return self._feed._before_last(count)

    async def resume(self, after: Position) -> None:
        """Read on after a position."""
        self.check()
        assert isinstance(after, LogPosition)
        self._feed._verify(after)
        self._position = after

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events."""
        self._changed.clear()
        events = self._feed._after(self._position, most)
        if not events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            self.check()
            events = self._feed._after(self._position, most)
        self.check()
        if events:
            last = events[-1].position
            assert isinstance(last, LogPosition)
            self._position = last
        return events
