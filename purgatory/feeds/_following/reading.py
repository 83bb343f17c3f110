"""Reading a feed for one worker: from its position, through lost connections, and over gaps.

    open a reader ---- no state yet:  note where to begin, reload, resume, check every parked operation
         |        `--- otherwise:     resume at the position
         v
    read a batch, apply it, read the next, ...
         |        `--- connection lost:  wait, then open another reader
         `------------ gap:              the state is lost, then open another reader

**The start is exact.** The end is noted before ``reload`` reads the state, so every event is in that state, or comes
after the noted position, or both. Rejected: reload and then ask for the end. Events between the two would be missed.

**A gap is never silent.** Each reader looks first whether the server still has the event that was applied last
(:meth:`~purgatory.feeds.engine.Reader.resume`), and the offsets of all that it reads must be contiguous.

Everything here runs in one task, except that other threads may read the attributes.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory._core.log import log, throttle
from purgatory.feeds._connections import OPEN_S, Backoff, ReadLimit, close_in_time, is_cancelled
from purgatory.feeds._errors import Disconnected, FeedGap, FeedUnavailable, Gap, InvalidPosition
from purgatory.feeds._following.applying import Applying
from purgatory.feeds._marks import Marks

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory.aio import AsyncPurgatory
    from purgatory.feeds._feed import Feed
    from purgatory.feeds._following.settings import Settings
    from purgatory.feeds._values import Event, Position
    from purgatory.feeds.engine import Reader

AnswerT = TypeVar("AnswerT")

#: The size of the first batch in events, and the limit of the later ones in bytes.
_FIRST_BATCH, _MOST_BYTES = 16, 4 * 1024 * 1024
#: How long a read waits for an event, and how long an answer may take.
_WAIT_S, _ANSWER_S = 1.0, 5.0
#: The least time for an answer, however little is left for the start.
_LEAST_S: Final = 0.05
#: How often the end is asked for while there is a backlog.
_LOOK_S: Final = 1.0
#: Over how long the workers spread their reloads after a gap, which all of them see at once.
_SPREAD_S: Final = 1.0
#: After so many gaps without an event between them, another reload does not help.
_MOST_GAPS: Final = 5


class Reading:
    """One worker's way through a feed.

    Args:
        feed: the feed.
        purgatory: where keys are checked.
        settings: what the caller of ``follow`` decided.
        keys_checked: is called after each step forward, when keys have been checked.

    Attributes:
        position: up to which event this worker has applied the feed. None before it has a state.
        is_current: whether it is connected and has its state.
        lag_events: how many events are still to be applied. None if it is not known.
        behind_since_s: when it was last up to date, or None if it is. On ``time.monotonic``.
    """

    def __init__(
        self,
        feed: Feed,
        purgatory: AsyncPurgatory[Any] | DelayedOperationPurgatory[Any],
        settings: Settings,
        keys_checked: Callable[[], None],
    ) -> None:
        self._feed = feed
        self._settings = settings
        self._on_keys_checked = keys_checked
        self._applying = Applying(
            feed.name,
            purgatory,
            settings,
            feed._counters,
            applied=self._applied,
            keys_checked=self._keys_checked,
        )
        self._marks = Marks(feed.name)  # of the events whose keys were checked
        self._reader: Reader | None = None
        self._backoff = Backoff()
        self._limit = ReadLimit(_WAIT_S + _ANSWER_S)
        self._batch = _FIRST_BATCH
        self._left_on_server = 0  # how many events the server has after the batch that is being applied
        self._asked_end_s = self._read_s = time.monotonic()  # when the end was asked for, and when a read returned
        self._gaps = 0  # since the last event
        self._has_state = False
        self._left = False  # whether the block was left
        self.position: Position | None = None
        self.is_current: bool = False
        self.lag_events: int | None = None
        self.behind_since_s: float | None = self._read_s

    # -- the flow

    async def start(self) -> None:
        """Connect and get the state.

        Raises:
            FeedUnavailable: the server could not be reached in time.
            FeedGap: the server has lost what ``reload`` led to.
            Exception: what ``reload`` raised, or what makes it impossible to follow.
        """
        limit_s = self._settings.start_timeout_ms / 1000
        give_up_s = time.monotonic() + limit_s
        while not self.is_current:
            try:
                await self._connect(give_up_s if limit_s else math.inf)
            except (Disconnected, FeedUnavailable) as error:
                delay_s = await self._drop_connection(error)
                if time.monotonic() + delay_s > give_up_s:
                    if isinstance(error, FeedUnavailable):
                        raise
                    raise FeedUnavailable(self._feed.name, self._feed.where, str(error)) from error
                await asyncio.sleep(delay_s)
            except Gap as gap:
                await asyncio.sleep(await self._drop_state(gap))

    async def run(self) -> None:
        """Read and apply until the block is left, which cancels the task.

        Raises:
            CancelledError: the block was left.
            FeedGap: there is no ``reload``, or it does not help.
            Stopped: ``apply`` raised, and the following is to stop.
            Exception: what makes it impossible to follow.
        """
        try:
            while not self._left:
                await self._go_on()
        finally:
            self._limit.stop()
            if self._left:
                await self.close()  # a connection that was made meanwhile

    async def _go_on(self) -> None:
        """Read and apply once, or connect again."""
        try:
            if self._reader is None:
                await self._connect()
                self._feed._counters.add("reconnections")
            else:
                await self._read_some(self._reader)
        except (Disconnected, FeedUnavailable) as error:
            await asyncio.sleep(await self._drop_connection(error))
        except Gap as gap:
            await asyncio.sleep(await self._drop_state(gap))

    def leave(self) -> None:
        """Apply nothing any more, also if ``reload`` or an engine swallows the cancellation of the task."""
        self._left = True

    def _check_left(self) -> None:
        """End the task if the block was left while it awaited.

        Raises:
            CancelledError: the block was left.
        """
        if self._left:
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Close the connection."""
        self.is_current = False
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_in_time(reader)

    async def _connect(self, give_up_s: float = math.inf) -> None:
        """Open a reader, and have it read on after the last event of the state.

        Args:
            give_up_s: when the server must have answered, before ``reload`` is called.
        """
        feed = self._feed
        self._reader = reader = await feed._open(feed.open_reader, _within_s(OPEN_S, give_up_s))
        self._check_left()
        if self._has_state and self.position is not None:
            await _in_time(reader.resume(self.position), reader.resume_s)
        else:
            await self._get_state(reader, give_up_s)
        self._check_left()
        self.is_current = True
        log.info("feed_connected", feed=feed.name, where=feed.where, position=str(self.position))

    async def _get_state(self, reader: Reader, give_up_s: float) -> None:
        """Get the state and its position, and check every operation against it."""
        noted, history = await _in_time(reader.end(), _within_s(_ANSWER_S, give_up_s)), self._settings.history
        begin = await _in_time(reader.before_last(history), _within_s(_ANSWER_S, give_up_s)) if history else noted
        included = None if self._settings.reload is None else await self._reload(self._settings.reload, begin)
        position = begin if included is None else included
        self._check_left()
        whole = await _in_time(reader.resume(position), reader.resume_s)
        self._check_left()
        position = position if whole is None else whole
        self._left_on_server = position.events_until(noted) or 0
        self.position, self.lag_events = position, self._left_on_server
        if position >= noted:
            self.behind_since_s = None
        await self._applying.check_everything()
        self._marks.begin(position)
        self._has_state = True
        self._on_keys_checked()

    async def _reload(self, reload: Callable[..., Any], begin: Position) -> Position | None:
        """Call ``reload``. After the start, an error of it is like a lost connection: wait and try again."""
        feed = self._feed
        try:
            included = reload(begin) if self._settings.history else reload()
            if inspect.isawaitable(included):
                included = await included
        except (Exception, asyncio.CancelledError) as error:
            if self.position is None or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            feed._counters.add("reload_errors")
            log.error("feed_reload_failed", feed=feed.name, error=repr(error), exc_info=error)
            raise Disconnected(f"reload raised {error!r}") from error
        if included is not None and not isinstance(included, feed.position_type):
            raise InvalidPosition(feed.name, included, "what reload returns")
        feed._counters.add("reloads")
        log.info("feed_reloaded", feed=feed.name, position=None if included is None else str(included))
        return included

    async def _read_some(self, reader: Reader) -> None:
        """Read one batch and apply it."""
        try:
            with self._limit:
                events = await reader.read(self._batch, _WAIT_S)
        except Disconnected:
            self._batch = max(1, self._batch // 2)  # it may have been too much for the time
            raise
        self._check_left()
        now_s = self._read_s = time.monotonic()
        self._backoff.reset()
        if not events:
            self.behind_since_s, self.lag_events = None, 0
            return
        self._gaps = 0
        is_full = len(events) >= self._batch
        if self.behind_since_s is None:
            self.behind_since_s = now_s
        if not is_full:
            self._left_on_server = 0
        elif now_s - self._asked_end_s > _LOOK_S:
            self._asked_end_s = now_s
            self._left_on_server = events[-1].position.events_until(await _in_time(reader.end())) or 0
        else:
            self._left_on_server = max(0, self._left_on_server - len(events))
        self._size_next_batch(events, reader.most_events, is_full=is_full)
        await self._applying.apply(events)
        if is_full:
            await asyncio.sleep(0)  # the next batch may be here already
        else:
            self.behind_since_s = None

    def has_applied(self, position: Position) -> bool:
        """Whether everything up to a position is in the state, and its keys were checked. Never during a gap.

        Raises:
            Gone: it is not, and will not be, or this worker cannot know that.
        """
        return self._has_state and self._marks.includes(position)

    # -- its parts

    def _applied(self, events: Sequence[Event], left: int) -> None:
        """The worker has applied these events. ``left`` events of the batch are still to be applied."""
        assert self.position is not None
        self.position = self.position.after(events)
        self.lag_events = self._left_on_server + left

    def _keys_checked(self, events: Sequence[Event]) -> None:
        """The keys of these events were checked."""
        for event in events:
            self._marks.add(event.position)
        self._on_keys_checked()

    def _size_next_batch(self, events: Sequence[Event], most: int, *, is_full: bool) -> None:
        size = sum(len(event.value) for event in events)
        if size > _MOST_BYTES:
            self._batch = max(1, len(events) * _MOST_BYTES // size)
        elif is_full:
            self._batch = min(2 * self._batch, most)

    async def _drop_connection(self, error: Exception) -> float:
        """The connection is lost: close it. Returns how long to wait."""
        await self._drop_reader()
        suppressed = throttle.admit("feed_lost", self._feed.name)
        if suppressed is not None:
            log.warning("feed_lost", feed=self._feed.name, error=str(error), suppressed=suppressed)
        return self._backoff.next_delay_s()

    async def _drop_state(self, gap: Gap) -> float:
        """The server has lost events that this worker needs, so the state is lost. Returns how long to wait.

        Raises:
            FeedGap: there is no ``reload``, or it does not help.
        """
        await self._drop_reader()
        feed, position = self._feed, self.position
        feed._counters.add("gaps")
        log.warning("feed_gap", feed=feed.name, position=str(position), reason=str(gap))
        self._gaps += 1
        if self._settings.reload is None and position is not None:
            raise FeedGap(
                feed.name, position, str(gap), "pass reload= to follow(), which reads the state again"
            ) from gap
        if self._gaps >= _MOST_GAPS:
            hint = "have reload return a position that the feed still has, or None"
            raise FeedGap(feed.name, position, str(gap), hint) from gap
        self._has_state = False
        spread_s = random.uniform(0, _SPREAD_S) if position is not None else 0.0  # noqa: S311  # no secret
        return spread_s + (self._backoff.next_delay_s() if self._gaps > 1 else 0.0)

    async def _drop_reader(self) -> None:
        self.lag_events = None
        if self.behind_since_s is None:
            self.behind_since_s = self._read_s
        await self.close()


class Progress:
    """How far a worker has applied a feed. Any thread may read it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def position(self) -> Position | None:
        """Up to which event this worker has applied the feed. None before it has its state."""
        return self._reading.position

    @property
    def is_following(self) -> bool:
        """Whether it is connected and has its state. False after a lost connection, until it has been made again."""
        return self._reading.is_current

    @property
    def lag_events(self) -> int | None:
        """How many events this worker still has to apply. None if it is not known, without a connection for example."""
        return self._reading.lag_events

    @property
    def lag_s(self) -> float:
        """For how many seconds this worker has not been up to date. 0.0 while it is."""
        since_s = self._reading.behind_since_s
        return 0.0 if since_s is None else max(0.0, time.monotonic() - since_s)


def _within_s(most_s: float, give_up_s: float) -> float:
    """How long to wait for an answer: at most so long, and not after a time."""
    return min(most_s, max(_LEAST_S, give_up_s - time.monotonic()))


async def _in_time(answer: Awaitable[AnswerT], within_s: float = _ANSWER_S) -> AnswerT:
    """The answer of an engine.

    Raises:
        Disconnected: it took too long.
    """
    try:
        async with asyncio.timeout(within_s):
            return await answer
    except TimeoutError as error:
        raise Disconnected(f"no answer within {within_s:.2g} seconds") from error
