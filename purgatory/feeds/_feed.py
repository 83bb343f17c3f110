"""The class that all feeds share: publishing, following, and statistics.

A feed object itself is settings and counters. It opens connections on the loop that uses it: one for publishing, which
is closed with the last ``follow`` block of that loop or by :meth:`Feed.aclose`, and one per ``follow`` block. So a feed
may be made at the import of a module, before a loop runs and before a fork, and used on several loops.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import attrs

from purgatory import DelayedOperationPurgatory, InvalidSetting
from purgatory._core.errors import checked_int
from purgatory._feed_records import FeedStatistics, register
from purgatory._feed_tracing import Destination, tracing
from purgatory.aio import AsyncPurgatory
from purgatory.feeds._connections import OPEN_S, open_in_time
from purgatory.feeds._counters import Counters
from purgatory.feeds._errors import EventTooLarge, InvalidPosition
from purgatory.feeds._following.block import Following
from purgatory.feeds._following.settings import Settings
from purgatory.feeds._outbox import Outbox
from purgatory.feeds._values import LogPosition, NewEvent, Position

if TYPE_CHECKING:
    from typing import Self

    from purgatory.feeds._following.settings import Apply, Reload
    from purgatory.feeds.engine import Connection, Publisher, Reader

ConnectionT = TypeVar("ConnectionT", bound="Connection")


class Feed(abc.ABC):
    """Events that reach every worker, in one order, with nothing missed.

    Use one of the subclasses. To connect another system, see :mod:`purgatory.feeds.engine`.

    Args:
        name: the name in logs, metrics and errors.
        where: names the server and the stream in errors. Without a password.
        max_bytes: the greatest size of an event: key, value and id.
        max_pending: reject further publishes while this many have no answer.
        publish_timeout_ms: how long an answer to a publish may take.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    #: The class of this feed's positions.
    position_type: ClassVar[type[Position]] = LogPosition
    #: What carries the events, as OpenTelemetry names it (``messaging.system``).
    system: ClassVar[str] = "purgatory"

    def __init__(
        self,
        name: str,
        *,
        where: str,
        max_bytes: int = 1024 * 1024,
        max_pending: int = 10_000,
        publish_timeout_ms: int = 5_000,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidSetting("name", name, "a non-empty str")
        self.name = name
        self.where = where
        #: The topic, stream or table of the events (``messaging.destination.name``).
        self.destination = name
        self.max_bytes: int = checked_int("max_bytes", max_bytes, 1)
        self.max_pending: int = checked_int("max_pending", max_pending, 1)
        self.publish_timeout_ms: int = checked_int("publish_timeout_ms", publish_timeout_ms, 1)
        self._counters = Counters()
        self._outboxes: dict[asyncio.AbstractEventLoop, Outbox] = {}
        self._followings: dict[Following, asyncio.AbstractEventLoop] = {}
        self._has_failed = False  # whether a following has ended with an error since one got its state
        register(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.where}>"

    # -- for users

    def position(self, text: str) -> Position:
        """The position with this text, as a client may have sent it.

        Raises:
            InvalidPosition: it is not the text of a position of this kind of feed.
        """
        position = self.position_type.parse(text) if isinstance(text, str) else None
        if position is None:
            raise InvalidPosition(self.name, text)
        return position

    async def publish(self, key: str, value: bytes, *, id: str | None = None) -> Position:  # noqa: A002  # the contract's name
        """Publish an event to every worker. Returns its position when the feed has accepted it.

        If the task is cancelled meanwhile, the event may or may not be accepted.

        Args:
            key: what the event is about.
            value: the content.
            id: names the event. The feed accepts an id once: for a second publish it returns the first position, as
                long as it remembers the id. Kafka stores the event again with a new position. Workers do not apply it.

        Raises:
            PublishRejected: the event was certainly not accepted.
            PublishUncertain: it may have been accepted. With an id, publish it again.
            EventTooLarge: it is larger than ``max_bytes``.
            InvalidSetting: an argument of another type.
        """
        event = self._new_event(key, value, id)
        tracer = tracing.tracer
        if tracer is None:
            return await self._publish(event)
        destination = Destination(self.name, self.system, self.destination)
        return await tracer.publish(
            destination, key, len(value), lambda context: self._publish(attrs.evolve(event, context=context))
        )

    async def _publish(self, event: NewEvent) -> Position:
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get(loop)
        if outbox is None:
            for other in list(self._outboxes):
                if other.is_closed():
                    self._outboxes.pop(other, None)
            outbox = self._outboxes[loop] = Outbox(self)
        return await outbox.publish(event)

    def follow(
        self,
        purgatory: AsyncPurgatory[Any] | DelayedOperationPurgatory[Any],
        apply: Apply,
        *,
        reload: Reload | None = None,
        history: int = 0,
        on_error: Literal["skip", "stop"] = "skip",
        start_timeout_ms: int = 10_000,
        slice_size: int = 512,
    ) -> Following:
        """Apply every event to this worker's state, and check the keys that it concerns.

        Use the result in ``async with`` on a loop, or in ``with`` in a program on threads: see
        :class:`~purgatory.feeds.Following`.

        Args:
            purgatory: where the operations wait.
            apply: ``apply(event)`` changes local state and returns the keys to check, ``[]`` for none. It is a plain
                function that must not block, and is called once per event, in order.
            reload: ``reload()`` reads the whole state again, from a database for example. It is called at the start
                and after each gap. A plain function runs on the loop and blocks it. Use a coroutine function to ask a
                database, except under ``with``. It may return the position that its state includes. If it returns None,
                events that were published just before and during it are applied after it, so ``apply`` must then bear
                an event that the state already includes. Without ``reload``, a worker begins with the next event, also
                after a restart: it does not apply what was published before. A gap then ends the following with
                :class:`~purgatory.feeds.FeedGap`.
            history: begin with the last so many events, or with all if the feed has fewer. In a Kafka topic, this is
                the number per partition. ``reload`` is then called with the position before these events, at the start
                and after each gap. So it has to reset what ``apply`` has changed. It may return a later position.
            on_error: what happens if ``apply`` raises. ``"skip"`` logs and counts it and goes on with the next event.
                ``"stop"`` ends the following with that exception.
            start_timeout_ms: how long to wait for the server at the start. After this time no further attempt begins.
                ``reload`` has no limit. 0 makes one attempt.
            slice_size: how many events are applied before the loop runs other callbacks, at most.

        Raises:
            InvalidSetting: an argument that cannot work.
        """
        settings = Settings(apply, reload, on_error, start_timeout_ms, slice_size, history)
        if not isinstance(purgatory, (AsyncPurgatory, DelayedOperationPurgatory)):
            raise InvalidSetting("purgatory", purgatory, "an AsyncPurgatory or a DelayedOperationPurgatory")
        return Following(self, purgatory, settings)

    def statistics(self) -> FeedStatistics:
        """The feed as it is now. Any thread may call this."""
        followings = list(self._followings)
        slowest = max(followings, key=lambda following: following.lag_s, default=None)
        position = None if slowest is None else slowest.position
        return FeedStatistics(
            name=self.name,
            followings=len(followings),
            is_following=self._is_following(followings),
            position=None if position is None else str(position),
            position_events=None if position is None else position.event_count,
            lag_events=None if slowest is None else slowest.lag_events,
            lag_s=0.0 if slowest is None else slowest.lag_s,
            **self._counters.figures(),
        )

    async def aclose(self) -> None:
        """Close this loop's connection for publishing. The next publish opens another one."""
        outbox = self._outboxes.pop(asyncio.get_running_loop(), None)
        if outbox is not None:
            await outbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

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

    def _add_following(self, following: Following) -> None:
        """A following begins on the running loop."""
        self._followings[following] = asyncio.get_running_loop()

    def _note_start(self) -> None:
        """A following has its state."""
        self._has_failed = False

    async def _remove_following(self, following: Following) -> None:
        """A following has ended. With the last one of its loop, the connection for publishing is closed.

        One that has not even started leaves the publishes of other tasks alone.
        """
        loop = self._followings.pop(following, None)
        if following.error is not None:
            self._has_failed = True
        if loop is None or loop in list(self._followings.values()):
            return
        outbox = self._outboxes.get(loop)
        if following._task is not None or outbox is None or outbox.is_idle:
            await self.aclose()

    def _is_following(self, followings: list[Following]) -> bool | None:
        if self._has_failed or followings:
            return not self._has_failed and all(following.is_following for following in followings)
        return None

    def _new_event(self, key: object, value: object, id: object) -> NewEvent:  # noqa: A002
        if not isinstance(key, str):
            raise InvalidSetting("key", key, "a str")
        if not isinstance(value, bytes):
            raise InvalidSetting("value", value, "bytes", "encode it, for example with json.dumps(...).encode()")
        if id is not None and (not isinstance(id, str) or not id):
            raise InvalidSetting("id", id, "a non-empty str, or None")
        try:
            size = len(value) + len(key.encode()) + len((id or "").encode())
        except UnicodeEncodeError as error:
            raise InvalidSetting("key and id", error.object, "text without lone surrogates") from None
        if size > self.max_bytes:
            raise EventTooLarge(self.name, size, self.max_bytes)
        return NewEvent(key, value, id, time.time_ns(), None, size)
