"""Reading from PostgreSQL: notifications that have events, and a statement that reads the table on from a position.

    a payload that comes directly after the position   its event is next
    any other payload, or a bell                       statement, unless it is of an event up to the position
    wait_s have passed                                 statement. Without events meanwhile, return what it finds

A payload begins with its number and the mark of the event before it (``_payload``). If these are the next number and
the mark of the last event, it continues the same history, so no statement is needed. Everything else is left to the
statement: events that are too large for a payload, those of an earlier version, and whatever anyone else has sent.

The statement is prepared once and sent again and again (``_direct``). While more is to be read, the next one is on its
way during ``apply``. A notification that is lost costs ``wait_s``, and no event. A pooler in transaction mode loses
them all: PgBouncer does, and then the log says so.

Each statement reads the head and the events in one snapshot, and the event at the position itself as well. So it sees
another epoch, an end that went back, a missing event, and another event in the place of the last one.

Everything here belongs to one loop, and one call is in progress at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from purgatory._core.log import log
from purgatory.feeds.engine import (
    Disconnected,
    Event,
    Gap,
    LogPosition,
    Position,
    Reader,
    UnsupportedServer,
    check_contiguous,
    is_same,
    mark_of,
)
from purgatory.feeds.engines.postgres._direct import DirectStatement
from purgatory.feeds.engines.postgres._link import Link, is_uncertain, text_of
from purgatory.feeds.engines.postgres._payload import head_after, is_old, unpack

if TYPE_CHECKING:
    from psycopg.pq import PGnotify
    from psycopg.pq.abc import PGresult
    from psycopg.rows import TupleRow

    from purgatory.feeds.engines.postgres._tables import Tables

ValueT = TypeVar("ValueT")

#: What a server that cannot serve a feed answers. The second comes from behind a pooler in transaction mode.
_UNSUPPORTED: Final = (
    *(errors.InsufficientPrivilege, errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement),
    psycopg.NotSupportedError,
)
#: About how many bytes one statement reads. It reads one event in any case.
_MOST_BYTES: Final = 8 * 1024 * 1024
#: After so many reads in a row that found an event without a notification, none seem to arrive.
_MOST_MISSED: Final = 5


class PostgresReader(Reader):
    """A connection for reading.

    Args:
        link: the connection.
        name: the feed's name.
        tables: where to read.
    """

    def __init__(self, link: Link, name: str, tables: Tables) -> None:
        self._link = link
        self._name = name
        self._tables = tables
        self._channel = b""  # of payloads
        self._position = LogPosition(0, 0)  # of the last event that was read or taken
        self._next = b""  # how the payload of the next event begins
        self._taken: list[Event] = []  # from payloads
        self._direct: DirectStatement | None = None  # while it reads on
        self._is_prepared = False
        self._most = 0
        self._is_expected = False  # whether the next answer has events without a notification
        self._missed = 0
        link.pgconn.notify_handler = None  # psycopg would keep what comes during other statements

    async def end(self) -> Position:
        """The position of the last event."""
        await self._stop_direct()
        row = await self._answer(self._link.row(self._tables.end))
        if row is None:
            await self._answer(self._link.make(self._name, self._tables))
            row = await self._answer(self._link.row(self._tables.end))
        if row is None:
            raise Disconnected("the head of the feed disappeared")
        epoch, last, published_ns, *_ = row
        return LogPosition(epoch, last, 0 if published_ns is None else mark_of(published_ns))

    async def before_last(self, count: int) -> Position:
        """The position before the last events."""
        await self.end()  # which makes the head if there is none
        row = await self._answer(self._link.row(self._tables.before_last, {"count": count}))
        if row is None:
            raise Disconnected("the head of the feed disappeared")
        epoch, offset, published_ns = row
        return LogPosition(epoch, offset, 0 if published_ns is None else mark_of(published_ns))

    async def resume(self, after: Position) -> None:
        """Read on after a position."""
        assert isinstance(after, LogPosition)
        await self._stop_direct()
        row = await self._answer(self._link.row(self._tables.end))
        if row is None:
            raise Gap("the feed was emptied")
        bell, channel = row[3:]
        await self._answer(self._link.execute(_listen(bell) if channel is None else _listen(bell, channel)))
        _, last, rows = await self._read_after(after, 0)
        # Without an event at the position nothing may be missing: it is the end, or the first event comes next.
        first = rows[0][0] if rows else last + 1
        if first != after.offset and (after.mark or first != after.offset + 1):
            raise Gap(f"the event at offset {after.offset} is gone")
        self._channel = (channel or "").encode()
        self._taken = []
        self._advance(after)

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events."""
        self._most = most
        direct = self._direct or await self._start_direct()
        if not self._taken and direct.answer is None:
            direct.go_on()
            if not self._taken and direct.answer is None and direct.error is None:
                await direct.wait(wait_s)
        if not self._taken:
            return await self._read_answer(direct, most)
        events, self._taken = self._taken[:most], self._taken[most:]
        self._missed, direct.was_notified = 0, False
        return events

    async def _read_answer(self, direct: DirectStatement, most: int) -> Sequence[Event]:
        """The next events by the answer of the statement."""
        answer, direct.answer = direct.answer, None
        if answer is None or answer.status != ExecStatus.TUPLES_OK:
            await self._stop_direct()  # which raises the error, if the connection is lost
            await self._read_after(self._position, most)  # or this one does
            raise Disconnected("a statement failed, and then did not")
        rows = [_row(answer, number) for number in range(answer.ntuples)]
        events, has_all = self._events(rows, most)
        self._notice_missed(was_notified=direct.was_notified or self._is_expected, has_found=bool(events))
        direct.was_notified, self._is_expected = False, not has_all
        if not has_all:
            direct.is_due = True
        direct.go_on()
        return events

    def _take(self, notices: Iterable[PGnotify]) -> bool:
        """Take the events of payloads that come next. Have the statement sent if others may be there."""
        for notice in notices:
            text = notice.extra
            if notice.relname == self._channel and text.startswith(self._next) and len(self._taken) < self.most_events:
                try:
                    event = unpack(text, self._position)
                except ValueError:  # a notification of another program
                    pass
                else:
                    self._taken.append(event)
                    self._advance(event.position)
                    continue
            if not is_old(text, self._position):
                assert self._direct is not None
                self._direct.is_due = True
        return bool(self._taken)

    def _advance(self, position: Position) -> None:
        """Read on after a position."""
        assert isinstance(position, LogPosition)
        self._position, self._next = position, head_after(position)

    async def close(self) -> None:
        """Close the connection."""
        if self._direct is not None:
            self._direct.close()
        await self._link.close()

    async def _start_direct(self) -> DirectStatement:
        """Begin to read on."""
        if not self._is_prepared:
            await self._answer(self._link.execute(self._tables.prepare_read))
            self._is_prepared = True
        self._direct = DirectStatement(self._link, b"purgatory_read", self._parameters, self._has_news, self._take)
        self._is_expected = True
        return self._direct

    async def _stop_direct(self) -> None:
        """Use the connection for other statements."""
        direct, self._direct = self._direct, None
        if direct is not None:
            await self._answer(direct.stop())

    def _parameters(self) -> list[bytes]:
        return [b"%d" % self._position.offset, b"%d" % (self._most + 1), b"%d" % _MOST_BYTES]

    def _has_news(self, answer: PGresult) -> bool:
        """Whether an answer says more than that the position is the end."""
        if answer.status != ExecStatus.TUPLES_OK or answer.ntuples != 1:
            return True
        here, (epoch, last, at, *_, published_ns) = self._position, _row(answer, 0)
        mark = 0 if published_ns is None else mark_of(published_ns)
        return (epoch, last) != (here.epoch, here.offset) or at not in (None, last) or not is_same(here.mark, mark)

    def _events(self, rows: list[TupleRow], most: int) -> tuple[list[Event], bool]:
        """What comes after the position, and whether that is all that was there.

        Raises:
            Gap: it does not come directly after it.
        """
        here = self._position
        epoch, last, rows = _check_place(here, rows)
        new = [row for row in rows if row[0] > here.offset][:most]
        positions = [LogPosition(epoch, row[0], mark_of(row[5])) for row in new]
        check_contiguous(here, positions)
        if not new and last > here.offset:
            raise Gap(f"the feed ends at offset {last}, and nothing comes after offset {here.offset}")
        if new:
            self._advance(positions[-1])
        return [
            Event(key, value, position, name, published_ns, context)
            for position, (_, key, value, name, context, published_ns) in zip(positions, new, strict=True)
        ], self._position.offset == last

    async def _read_after(self, after: LogPosition, most: int) -> tuple[int, int, list[TupleRow]]:
        """Epoch, end, and rows from the position itself on, if that is a position in this history.

        Raises:
            Gap: it is not.
        """
        params = {"after": after.offset, "most": most + 1, "most_bytes": _MOST_BYTES}
        cursor = await self._answer(self._link.execute(self._tables.read, params, binary=True))
        return _check_place(after, await cursor.fetchall())

    async def _answer(self, answer: Awaitable[ValueT]) -> ValueT:
        """An answer of the server, or this package's error."""
        try:
            return await answer
        except errors.UndefinedTable as error:
            raise Gap("the table is gone") from error
        except _UNSUPPORTED as error:
            raise UnsupportedServer(self._name, text_of(error)) from error
        except psycopg.Error as error:
            if is_uncertain(error, self._link) or isinstance(error, psycopg.OperationalError):
                raise Disconnected(text_of(error)) from error
            raise

    def _notice_missed(self, *, was_notified: bool, has_found: bool) -> None:
        """Warn once if events come without notifications."""
        if was_notified:
            self._missed = 0
        elif has_found:
            self._missed += 1
            if self._missed == _MOST_MISSED:
                hint = "a pooler in transaction mode loses them; connect to the server, or use session mode"
                log.warning("feed_without_notifications", feed=self._name, hint=hint)


def _check_place(after: LogPosition, rows: list[TupleRow]) -> tuple[int, int, list[TupleRow]]:
    """Epoch, end, and rows from the position itself on, if that is a position in this history.

    Raises:
        Gap: it is not.
    """
    if not rows:
        raise Gap("the feed was emptied")
    epoch, last, *_ = rows[0]
    if epoch != after.epoch:
        raise Gap(f"the feed was made again: its epoch is {epoch}")
    if last < after.offset:
        raise Gap(f"the feed ends at offset {last}")
    events = [row[2:] for row in rows if row[2] is not None]
    if events and events[0][0] == after.offset and not is_same(after.mark, mark_of(events[0][5])):
        raise Gap(f"another event is at offset {after.offset}")
    return epoch, last, events


def _row(answer: PGresult, number: int) -> TupleRow:
    """A row of the statement that reads: numbers, texts and bytes in PostgreSQL's binary format."""
    get = answer.get_value
    published_ns, position = get(number, 7), get(number, 2)
    return (
        _int(get(number, 0)),
        _int(get(number, 1)),
        None if position is None else _int(position),
        _text(get(number, 3)),
        get(number, 4),
        _text(get(number, 5)),
        _text(get(number, 6)),
        None if published_ns is None else _int(published_ns),
    )


def _int(data: bytes | None) -> int:
    assert data is not None
    return int.from_bytes(data, "big", signed=True)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _listen(*channels: str) -> psycopg.sql.Composed:
    return sql.SQL("; ").join(sql.SQL("LISTEN {}").format(sql.Identifier(channel)) for channel in channels)
