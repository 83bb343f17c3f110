"""Publishing to PostgreSQL: one message per batch, and the removal of old events between them.

What an error means for the events of a batch:

    the server answers with an error         none of them was written
    the same, for a batch of several         each is tried alone, as one of them may be the cause
    another worker has just used an id       the batch is tried again, and finds that event
    the connection is lost                   uncertain: the server may have committed

Everything here belongs to one loop, and one call is in progress at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import AsyncCursor, errors
from psycopg.pq import Escaping
from psycopg.rows import TupleRow, tuple_row

from purgatory._core.log import log, throttle
from purgatory.feeds.engine import (
    Disconnected,
    ForeignStream,
    LogPosition,
    NewEvent,
    Publisher,
    PublishRejected,
    UnsupportedServer,
    mark_of,
)
from purgatory.feeds.engines.postgres._link import Link, is_uncertain, text_of

if TYPE_CHECKING:
    from typing import Any

    from purgatory.feeds.engine import Answer
    from purgatory.feeds.engines.postgres._tables import Tables

#: How often a batch is tried again because other workers use the same ids, or because the server asks for it.
_ATTEMPTS: Final = 10
_AGAIN: Final = (errors.UniqueViolation, errors.SerializationFailure, errors.DeadlockDetected)
#: Errors that one event may be the cause of: its text, or an id that is too long for an index.
_OF_ONE_EVENT: Final = (psycopg.DataError, errors.ProgramLimitExceeded, errors.IntegrityError)

#: How many events one statement removes. That many are published before the next attempt, or so much time passes.
_STEP: Final = 1_000
_TRIM_EVERY_S: Final = 60.0
_REST_S: Final = 0.05


async def append(
    connection: psycopg.AsyncConnection[Any], tables: Tables, events: Sequence[NewEvent]
) -> list[TupleRow]:
    """Append events with different ids, in the transaction of the connection. A row per event, none without a head."""
    cursor = AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(tables.lock_head)
    return await (await cursor.execute(tables.publish, _columns_of(events), binary=True)).fetchall()


async def _append_at_once(link: Link, tables: Tables, events: Sequence[NewEvent]) -> list[TupleRow]:
    """The same, committed, in one message. The statement must be prepared on the connection."""
    cursor = await link.execute(tables.publish_message(events, Escaping(link.pgconn).escape_literal))
    cursor.nextset()
    return await cursor.fetchall()


def _columns_of(events: Sequence[NewEvent]) -> list[list[Any]]:
    return [
        [event.key for event in events],
        [event.value for event in events],
        [event.id for event in events],
        [event.context for event in events],
        [event.published_ns for event in events],
    ]


def position_of(row: TupleRow) -> LogPosition:
    """The position in a row of :func:`append`."""
    epoch, offset, published_ns, *_ = row
    return LogPosition(epoch, offset, mark_of(published_ns))


class Trimmer:
    """Removes old events, up to :data:`_STEP` at a time.

    Args:
        tables: where to remove them.
        keep: how many events to keep, or None.
        keep_s: for how many seconds to keep events, or None.
    """

    def __init__(self, tables: Tables, keep: int | None, keep_s: int | None) -> None:
        self._tables = tables
        self._keep = keep
        self._keep_s = keep_s
        self._epoch = self._above = 0  # up to which position this has removed them

    @property
    def is_needed(self) -> bool:
        """Whether events are ever too old."""
        return self._keep is not None or self._keep_s is not None

    async def trim(self, connection: psycopg.AsyncConnection[Any], epoch: int) -> bool:
        """Remove some. Whether there may be more."""
        above = self._above if epoch == self._epoch else 0
        limits = {"step": _STEP, "keep": self._keep, "keep_s": self._keep_s, "above": above}
        cursor = AsyncCursor(connection, row_factory=tuple_row)
        rows = await (await cursor.execute(self._tables.trim, limits)).fetchall()
        self._epoch, self._above = epoch, max([above, *(position for (position,) in rows)])
        return len(rows) >= _STEP


class PostgresPublisher(Publisher):
    """A connection for publishing.

    Args:
        link: the connection.
        name: the feed's name.
        tables: where to append.
        trimmer: removes old events.
    """

    def __init__(self, link: Link, name: str, tables: Tables, trimmer: Trimmer) -> None:
        self._link = link
        self._name = name
        self._tables = tables
        self._trimmer = trimmer
        self._is_prepared = False
        self._epoch = 0  # of the last event
        self._appended = 0  # since the last trim
        self._trimmed_s: float | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._cannot_write = False

    @property
    def is_lost(self) -> bool:
        """Whether the server has closed the connection, as at a restart, or has become read-only."""
        if self._cannot_write:
            return True
        if not self._link.closed and self._trimming is None:  # otherwise the trim is using the socket, and will see it
            try:
                for _ in range(2):  # the first may find the server's last words, the second the end
                    self._link.pgconn.consume_input()
            except psycopg.OperationalError:
                return True
        return self._link.closed

    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events."""
        first = {event.id: event for event in reversed(events) if event.id is not None}
        distinct = [event for event in events if event.id is None or first[event.id] is event]
        answers = dict(zip(map(id, distinct), await self._append(distinct), strict=True))
        self._trim_if_due(len(distinct))
        return [answers[id(event if event.id is None else first[event.id])] for event in events]

    async def close(self) -> None:
        """Close the connection."""
        trimming = self._trimming
        if trimming is not None:  # it waits for the socket, so it closes the connection itself when it is cancelled
            trimming.cancel()
            await asyncio.wait([trimming])
        await self._link.close()  # the task may have been cancelled before it began

    async def _append(self, events: Sequence[NewEvent]) -> list[Answer]:
        """Append events with different ids."""
        has_head, why = True, "its tables disappear"
        for _ in range(_ATTEMPTS):
            try:
                if not has_head:
                    await self._link.make(self._name, self._tables)
                if not self._is_prepared:
                    await self._link.execute(self._tables.prepare_publish)
                    self._is_prepared = True
                rows = await _append_at_once(self._link, self._tables, events)
                has_head = bool(rows)  # it has none if the table was emptied
                if has_head:
                    self._epoch = rows[0][0]
                    return [position_of(row) for row in rows]
            except errors.UndefinedTable:
                has_head = False
            except _AGAIN as error:
                why = text_of(error)
            except (psycopg.Error, ForeignStream, UnsupportedServer) as error:
                return await self._failed(events, error)
        return [PublishRejected(self._name, why) for _ in events]

    async def _failed(self, events: Sequence[NewEvent], error: Exception) -> list[Answer]:
        """What becomes of events after an error that another attempt does not avoid.

        Raises:
            Disconnected: that is not known.
        """
        if isinstance(error, psycopg.Error) and is_uncertain(error, self._link):
            raise Disconnected(text_of(error)) from error
        if isinstance(error, errors.ReadOnlySqlTransaction):  # it is not the primary any more
            self._cannot_write = True
        if isinstance(error, _OF_ONE_EVENT) and len(events) > 1:
            return [answer for event in events for answer in await self._append([event])]
        answers: list[Answer] = []
        for _ in events:
            rejected = PublishRejected(self._name, text_of(error) if isinstance(error, psycopg.Error) else str(error))
            rejected.__cause__ = error
            answers.append(rejected)
        return answers

    def _trim_if_due(self, appended: int) -> None:
        """Begin to remove old events, if it is time."""
        self._appended += appended
        now_s = time.monotonic()
        is_due = self._trimmed_s is None or self._appended >= _STEP // 2 or now_s > self._trimmed_s + _TRIM_EVERY_S
        if not is_due or self._trimming is not None or not self._trimmer.is_needed:
            return
        self._appended, self._trimmed_s = 0, now_s
        self._trimming = asyncio.get_running_loop().create_task(self._trim(), name=f"trim {self._name}")

    async def _trim(self) -> None:
        """Remove old events in small steps. A publish waits for one of them at most."""
        try:
            while True:
                has_more = await self._trimmer.trim(self._link, self._epoch)
                if not has_more:
                    return
                await asyncio.sleep(_REST_S)
        except psycopg.Error as error:
            suppressed = throttle.admit("feed_trim_failed", self._name)
            if suppressed is not None and not self._link.closed:
                log.warning("feed_trim_failed", feed=self._name, error=text_of(error), suppressed=suppressed)
        except asyncio.CancelledError:
            await self._link.close()  # if it rested
        finally:
            self._trimming = None
