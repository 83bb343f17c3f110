"""Publishing: one batch at a time is on its way, and the events that come meanwhile form the next.

    publish:  append the event;  if no task flushes, start one;  await its future
    flush:    while there are events:  take a batch, publish it, answer its futures;  then end

So the order of the calls is the order in the feed, and many publishers share one round trip. The number of events is
bounded by ``max_pending``. Their bytes are not.

    the connection cannot be made             every event that waits is rejected: none was sent
    the connection is lost during a batch     its events are uncertain, the next batch gets a new connection
    no answer within the timeout              likewise
    a publish is cancelled before its batch   it is not sent
    a publish is cancelled during its batch   it may be accepted, as if it was uncertain

Everything here belongs to one loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from purgatory._core.log import log, throttle
from purgatory.feeds._connections import close_in_time, is_cancelled
from purgatory.feeds._errors import FeedError, PublishRejected, PublishUncertain

if TYPE_CHECKING:
    from purgatory.feeds._feed import Feed
    from purgatory.feeds._values import NewEvent, Position
    from purgatory.feeds.engine import Answer, Publisher

#: How many events, and about how many bytes, one batch takes.
_MOST_EVENTS: Final = 256
_MOST_BYTES: Final = 4 * 1024 * 1024


@attrs.frozen(eq=False)
class _Pending:
    """An event whose publisher waits."""

    event: NewEvent
    future: asyncio.Future[Position]
    began_ns: int = attrs.field(factory=time.perf_counter_ns)


class Outbox:
    """The events of one loop that are being published to one feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Pending] = deque()
        self._on_its_way: Sequence[_Pending] = ()
        self._task: asyncio.Task[None] | None = None
        self._publisher: Publisher | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no publish waits for an answer."""
        return all(pending.future.done() for pending in (*self._waiting, *self._on_its_way))

    async def publish(self, event: NewEvent) -> Position:
        """Publish an event, and return when its fate is known.

        Raises:
            PublishRejected: it was not accepted.
            PublishUncertain: it may have been.
        """
        feed = self._feed
        if len(self._waiting) + len(self._on_its_way) >= feed.max_pending:
            feed._counters.add("rejected")
            raise PublishRejected(feed.name, f"{feed.max_pending} others are pending; try later or raise max_pending")
        pending = _Pending(event, self._loop.create_future())
        self._waiting.append(pending)
        if self._task is None or self._task.done():  # with eager tasks, it may be done when it is assigned
            self._task = self._loop.create_task(self._flush(), name=f"publish to {feed.name}")
        return await pending.future

    async def close(self) -> None:
        """Reject the events that were not sent, and close the connection. A batch on its way becomes uncertain."""
        self._reject_waiting("the feed was closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._drop()

    async def _flush(self) -> None:
        try:
            while self._waiting:
                if batch := self._take():
                    await self._send(batch)
        finally:
            self._task = None
            self._reject_waiting("publishing was cancelled")  # nothing waits otherwise

    def _take(self) -> list[_Pending]:
        """The next batch, without the publishes that were cancelled."""
        batch: list[_Pending] = []
        size = 0
        while self._waiting and len(batch) < _MOST_EVENTS and size < _MOST_BYTES:
            pending = self._waiting.popleft()
            if not pending.future.done():
                batch.append(pending)
                size += pending.event.size
        return batch

    async def _send(self, batch: list[_Pending]) -> None:
        """Publish a batch, and answer its futures, whatever happens."""
        self._on_its_way = batch
        answers: Sequence[Answer] = ()
        failed: type[PublishRejected | PublishUncertain] = PublishRejected
        cause: BaseException | None = None
        why = "the feed was closed"
        try:
            publisher = await self._connect()
            failed = PublishUncertain
            async with asyncio.timeout(self._feed.publish_timeout_ms / 1000):
                answers = await publisher.publish([pending.event for pending in batch])
            if len(answers) != len(batch):
                answers, why = (), f"the engine gave {len(answers)} answers for {len(batch)} events"
        except (Exception, asyncio.CancelledError) as error:  # each publisher gets it as the cause of its own
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            cause, why = error, str(error) or repr(error)
            if isinstance(error, TimeoutError):
                why = f"no answer within {self._feed.publish_timeout_ms} ms"
            if failed is PublishRejected:
                self._reject_waiting(why)
        finally:
            self._on_its_way = ()
            self._answer(batch, answers or [_error(failed, self._feed.name, why, cause) for _ in batch])
            if not answers and failed is PublishUncertain:
                await self._drop()  # last: this task may be cancelled meanwhile

    async def _connect(self) -> Publisher:
        """The connection, which is made if there is none.

        Raises:
            FeedUnavailable: it cannot be made.
        """
        if self._publisher is not None and self._publisher.is_lost:
            await self._drop()
        if self._publisher is None:
            self._publisher = await self._feed._open(self._feed.open_publisher)
        return self._publisher

    async def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await close_in_time(publisher)

    def _answer(self, batch: Sequence[_Pending], answers: Sequence[Answer]) -> None:
        now_ns = time.perf_counter_ns()
        took_ns = []
        errors: list[FeedError] = []
        for pending, answer in zip(batch, answers, strict=True):
            if isinstance(answer, FeedError):
                errors.append(answer)
                if not pending.future.done():
                    pending.future.set_exception(answer)
            else:
                took_ns.append(now_ns - pending.began_ns)
                if not pending.future.done():
                    pending.future.set_result(answer)
        self._feed._counters.add_published(took_ns)
        self._count(errors)

    def _reject_waiting(self, why: str) -> None:
        """Reject what was not sent."""
        waiting = [pending for pending in self._waiting if not pending.future.done()]
        self._waiting.clear()
        self._answer(waiting, [PublishRejected(self._feed.name, why) for _ in waiting])

    def _count(self, errors: Sequence[FeedError]) -> None:
        if not errors:
            return
        uncertain = sum(isinstance(error, PublishUncertain) for error in errors)
        self._feed._counters.add("uncertain", uncertain)
        self._feed._counters.add("rejected", len(errors) - uncertain)
        suppressed = throttle.admit("publish_failed", self._feed.name)
        if suppressed is not None:
            log.warning(
                "publish_failed",
                feed=self._feed.name,
                error=str(errors[0]),
                events=len(errors),
                suppressed=suppressed,
            )


def _error(
    kind: type[PublishRejected | PublishUncertain], name: str, why: str, cause: BaseException | None
) -> PublishRejected | PublishUncertain:
    """An error of its own for each publisher, because a traceback is attached to it."""
    error = kind(name, why)
    error.__cause__ = cause
    return error
