"""A connection to PostgreSQL, the check of the tables, and the meaning of errors. The publisher and the reader use it.

psycopg's own reaction to a cancelled task is to ask the server to cancel the statement, and to wait for up to ten
seconds. If the server hangs, nothing answers. A connection of a feed is closed after an error anyway, so :class:`Link`
closes at once.

Everything here belongs to one loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.rows import TupleRow

from purgatory.feeds.engine import Disconnected, ForeignStream, UnsupportedServer
from purgatory.feeds.engines.postgres._tables import EVENTS, HEAD, Tables

if TYPE_CHECKING:
    from typing import Self

    from psycopg.abc import PQGen

ValueT = TypeVar("ValueT")

_OLDEST_SERVER: Final = 12
#: How often a wait looks for an interrupt, in seconds. It is psycopg's own default.
_LOOK_S: Final = 0.1

# A role or a database may have another default of the isolation level, in which concurrent publishes would fail. The
# statements are short, so compiling them takes longer than running them, and so does planning them each time. The plan
# is made while the table may be empty, so it must use the indexes. With synchronous_commit=off, a crash would lose
# events that were accepted.
_SET_UP: Final = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
    set_config('jit', 'off', false), set_config('statement_timeout', %s, false), pg_is_in_recovery(),
    set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
    set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false)"""


class Link(psycopg.AsyncConnection[TupleRow]):
    """A connection that is closed when a task that uses it is cancelled."""

    async def wait(self, gen: PQGen[ValueT], interval: float = _LOOK_S, *args: Any, **settings: Any) -> ValueT:
        """Run psycopg's own steps of a statement."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, *args, **settings)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise

    @classmethod
    async def open(cls, dsn: str, name: str, tables: Tables, timeout_ms: int) -> Self:
        """A connection to a server that has the tables. They are made if there are none.

        Args:
            dsn: where the server is.
            name: the feed's, for errors.
            tables: what must be there.
            timeout_ms: after how long the server gives up a statement.

        Raises:
            Disconnected: the server cannot be reached, or is a standby.
            ForeignStream: other tables have these names.
            UnsupportedServer: the server is too old, or the tables may not be made.
        """
        try:
            link = await cls.connect(
                dsn,
                autocommit=True,
                prepare_threshold=None,
                client_encoding="utf8",
                fallback_application_name=f"purgatory feed {name}",
            )
        except psycopg.OperationalError as error:
            raise Disconnected(text_of(error)) from error
        try:
            await link._check(name, tables, timeout_ms)
        except BaseException as error:
            await link.close()
            if isinstance(error, psycopg.OperationalError):
                raise Disconnected(text_of(error)) from error
            if isinstance(error, psycopg.Error):
                raise UnsupportedServer(name, text_of(error)) from error
            raise
        return link

    async def _check(self, name: str, tables: Tables, timeout_ms: int) -> None:
        version = self.info.server_version // 10_000
        if version < _OLDEST_SERVER:
            raise UnsupportedServer(name, f"it is PostgreSQL {version}, and at least {_OLDEST_SERVER} is needed")
        row = await self.row(_SET_UP, [str(timeout_ms)])
        if row is not None and row[3]:
            hint = "name the primary, or add target_session_attrs=read-write to the DSN"
            raise Disconnected(f"the server is a read-only standby; {hint}")
        if await self._lacks(tables):
            await self.make(name, tables)

    async def row(self, query: Any, params: Any = None) -> TupleRow | None:
        """The first row of a statement."""
        return await (await self.execute(query, params, binary=True)).fetchone()

    async def make(self, name: str, tables: Tables) -> None:
        """Make what is not there: the tables, and the head row. Other workers may do so at this moment.

        Raises:
            UnsupportedServer: this is not allowed.
        """
        try:
            async with self.transaction():
                await self.execute(tables.lock)
                lacks = await self._lacks(tables)
                for statement in [
                    *(tables.create_events if "events" in lacks else ()),
                    *(tables.create_head if "head" in lacks else ()),
                    *tables.begin,
                ]:
                    await self.execute(statement)
        except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            hint = "have its owner create the tables: print(feed.create_sql)"
            raise UnsupportedServer(name, f"{text_of(error)}; {hint}") from error

    async def _lacks(self, tables: Tables) -> set[str]:
        """Which of the tables are not there.

        Raises:
            ForeignStream: one of them has another shape.
        """
        row = await self.row(tables.look)
        assert row is not None
        of_events, of_head, unique = row
        for columns, wanted in ((of_events, EVENTS), (of_head, HEAD)):
            if columns is not None and not wanted <= set(columns):
                raise ForeignStream(tables.name, f"a table with the columns {', '.join(columns)}")
        if of_events is not None and not {"position", "id"} <= set(unique):
            raise ForeignStream(tables.name, "a table without the unique indexes on position and id")
        return {name for name, columns in (("events", of_events), ("head", of_head)) if columns is None}


def text_of(error: psycopg.Error) -> str:
    """The text of an error, in one line."""
    text = error.diag.message_primary or " ".join(str(error).split())
    if isinstance(error, (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)):
        return f"{text}; a pooler in transaction mode cannot be used, so connect to the server or use session mode"
    return text


def is_uncertain(error: psycopg.Error, link: Link) -> bool:
    """Whether the connection is lost, so that the server may have carried out the statement or not.

    An error with an SQLSTATE is the server's answer: it has rolled back. Some codes are sent by a pooler in the
    server's name when it has lost the server, so they say nothing.
    """
    state = error.sqlstate
    if state is None:
        return link.closed or isinstance(error, psycopg.OperationalError)
    return state.startswith(("08", "57P")) or state == "40003"
