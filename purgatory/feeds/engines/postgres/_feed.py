"""A feed in a PostgreSQL table: what a user holds."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int
from purgatory.feeds._feed import Feed
from purgatory.feeds.engine import NewEvent, Position, PublishRejected
from purgatory.feeds.engines.postgres._link import Link
from purgatory.feeds.engines.postgres._publisher import PostgresPublisher, Trimmer, append, position_of
from purgatory.feeds.engines.postgres._reader import PostgresReader
from purgatory.feeds.engines.postgres._tables import Tables

#: What an entry of an index can hold, about.
_LONGEST_ID: Final = 2_000
#: How often :meth:`PostgresFeed.publish_in` removes old events.
_TRIM_EVERY: Final = 500


class PostgresFeed(Feed):
    """A feed in a table of PostgreSQL 12 or newer. Needs the extra ``postgres`` and libpq.

    The table and a second one, with ``_head`` at the end of its name, are made if they are not there. A role that may
    not create tables needs ``SELECT``, ``INSERT``, ``UPDATE`` and ``DELETE`` on both. :attr:`create_sql` makes them.

    Connect to the primary itself, or through a pooler in session mode. For a failover, name all hosts and
    ``target_session_attrs=read-write`` in the DSN. If the new primary lacks events that a worker has applied, that is a
    gap.

    All publishers of a feed wait for each other, one commit at a time. Those of one process share commits.

    Args:
        dsn: where the server is, as libpq reads it: ``postgresql://user@host/database``, or ``host=... dbname=...``.
        table: the name of the table as SQL reads it: ``inbox``, ``app.inbox``, or ``app."In Box"``.
        keep: how many events are kept for workers that lag behind, about. None keeps all. An id is recognized as long
            as its event is kept.
        keep_s: for how many seconds events are kept, about, by the server's clock. None does not look at their age. The
            last event stays.
        name: the name in logs and metrics. The table's by default.
        settings: ``max_bytes``, ``max_pending`` and ``publish_timeout_ms``, as :class:`~purgatory.feeds.Feed` takes
            them.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    system = "postgresql"

    def __init__(
        self,
        dsn: str,
        *,
        table: str,
        keep: int | None = 100_000,
        keep_s: int | None = None,
        name: str | None = None,
        **settings: int,
    ) -> None:
        self._tables = Tables(table)
        super().__init__(table if name is None else name, where=f"{_where(dsn)}, table {table}", **settings)
        self.destination = table
        self._dsn = dsn
        self._trimmer = Trimmer(
            self._tables,
            None if keep is None else checked_int("keep", keep, 1),
            None if keep_s is None else checked_int("keep_s", keep_s, 1),
        )
        self._published_in = 0

    @property
    def create_sql(self) -> str:
        """The SQL that makes the tables, for a migration or the owner of the schema."""
        return self._tables.create_sql

    async def publish_in(
        self,
        connection: psycopg.AsyncConnection[Any],
        key: str,
        value: bytes,
        *,
        id: str | None = None,  # noqa: A002  # the contract's name
    ) -> Position:
        """Publish an event in a transaction of your own: it is published when that commits, together with your changes.

        The tables must exist. Until the transaction ends, other publishers of the feed wait, so commit soon after it.
        The first call, and each 500th, also removes up to 1,000 events that are too old to keep.

        Args:
            connection: a connection of psycopg to the same database.
            key: as in :meth:`publish`.
            value: as in :meth:`publish`.
            id: as in :meth:`publish`.

        Returns:
            The position that the event has once the transaction is committed.

        Raises:
            psycopg.Error: the statement failed, and your transaction with it. With ``UniqueViolation``, another worker
                has used the id at this moment: try the whole transaction again.
            PublishRejected: the tables are empty. Publish or follow once, which makes them ready.
            EventTooLarge: it is larger than ``max_bytes``.
            InvalidSetting: an argument of another type, or a connection that is not in a transaction.
        """
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            hint = "use 'async with connection.transaction()'"
            raise InvalidSetting("connection", connection, "a connection in a transaction", hint)
        rows = await append(connection, self._tables, [self._new_event(key, value, id)])
        if not rows:
            raise PublishRejected(self.name, "its table was emptied; publish or follow once")
        self._published_in += 1
        position = position_of(rows[0])
        if self._published_in % _TRIM_EVERY == 1 and self._trimmer.is_needed:
            await self._trimmer.trim(connection, position.epoch)
        return position

    async def open_publisher(self) -> PostgresPublisher:
        """A connection for publishing."""
        # The server gives up before this side does. So what waits too long for another transaction is rejected, and
        # does not become an event later.
        timeout_ms = max(1, self.publish_timeout_ms * 4 // 5)
        link = await Link.open(self._dsn, self.name, self._tables, timeout_ms)
        return PostgresPublisher(link, self.name, self._tables, self._trimmer)

    async def open_reader(self) -> PostgresReader:
        """A connection for reading."""
        link = await Link.open(self._dsn, self.name, self._tables, 5_000)
        return PostgresReader(link, self.name, self._tables)

    def _new_event(self, key: object, value: object, id: object) -> NewEvent:  # noqa: A002
        """As for every feed, within the limits of PostgreSQL."""
        event = super()._new_event(key, value, id)
        if "\0" in event.key or "\0" in (event.id or ""):
            raise InvalidSetting("key and id", (event.key, event.id), "text without NUL, which PostgreSQL cannot store")
        if len((event.id or "").encode()) > _LONGEST_ID:
            raise InvalidSetting("id", event.id, f"at most {_LONGEST_ID} bytes", "use a hash of it")
        return event


def _where(dsn: object) -> str:
    """Names the server of a DSN, without the password.

    Raises:
        InvalidSetting: it is not a DSN.
    """
    wanted = "a DSN that libpq accepts, such as 'postgresql://user@host/database'"
    if not isinstance(dsn, str):
        raise InvalidSetting("dsn", dsn, wanted)
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        scheme, separator, _ = dsn.partition("://")
        shown = f"{scheme}://..." if separator else "..."  # the rest may hold a password
        why = str(error).strip() if separator and dsn not in str(error) else ""
        hint = "remove the name of the driver" if scheme.startswith("postgresql+") else why
        raise InvalidSetting("dsn", shown, wanted, hint) from None
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    if not all(port == "" or (port.isdecimal() and 0 < int(port) < 1 << 16) for port in ports):
        hint = "its port must be a number; percent-encode special characters of the password"
        raise InvalidSetting("dsn", "...", wanted, hint)  # what looks like a port may be of the password
    ports = ports * len(hosts) if len(ports) == 1 else ports
    servers = ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False) if host)
    database = f", database {parts['dbname']}" if "dbname" in parts else ""
    return f"PostgreSQL at {servers or 'the default address of libpq'}{database}"
