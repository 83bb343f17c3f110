"""The two tables of a feed, and each statement on them.

    inbox        position  key  value  id  context  published_ns     one row per event
    inbox_head   one  epoch  last                                    one row: how far the feed is

**Why a head row and not a sequence.** Numbers of a sequence become visible out of order, and a rolled back transaction
leaves a hole. A reader that has seen 7 would miss a 6 that is committed later:

    1. A publisher takes 6 from the sequence.
    2. Another one takes 7 and commits.
    3. A reader reads up to 7.
    4. The first publisher commits 6, which no reader asks for any more.

Here a publish adds to ``last``, and keeps the lock of that row until it has committed. So the next publish cannot begin
before step 4. Positions become visible in their order, and a transaction that is rolled back leaves no hole.

**Why one statement.** A publish is one statement, which the server has received as a whole before it locks the head. A
publisher that stops in the middle, by SIGSTOP for example, does not keep the lock from others.

Everything here is immutable, and any thread may use it.
"""

from __future__ import annotations

import re
from typing import Final, LiteralString

from psycopg import sql

from purgatory import InvalidSetting

#: The columns that a table must have, with their types. It may have others with a default.
EVENTS: Final = frozenset(
    {"position bigint", "key text", "value bytea", "id text", "context text", "published_ns bigint"}
)
HEAD: Final = frozenset({"one boolean", "epoch bigint", "last bigint"})

#: PostgreSQL cuts off longer names, and the second table has a longer one.
_LONGEST: Final = 63 - len("_head")
_PART: Final = r'(?:"(?:[^"\0]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_NAME: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")

_CREATE_EVENTS: Final = """
CREATE TABLE {events} (
    position bigint PRIMARY KEY,
    key text NOT NULL,
    value bytea NOT NULL,
    id text COLLATE "C",
    context text,
    published_ns bigint NOT NULL
)"""
_CREATE_INDEX: Final = "CREATE UNIQUE INDEX ON {events} (id) WHERE id IS NOT NULL"
# Each publish makes a new version of this row. The free part of the page is for these, so that no index is written.
_CREATE_HEAD: Final = """
CREATE TABLE {head} (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    last bigint NOT NULL
) WITH (fillfactor = 10)"""

# Rows of a history that is over must not be taken for new ones, so they go before the head is made.
_CLEAR: Final = "DELETE FROM {events} WHERE NOT EXISTS (SELECT FROM {head})"
_BEGIN: Final = """
INSERT INTO {head} (epoch, last)
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0 WHERE NOT EXISTS (SELECT FROM {head})"""

_PUBLISH: Final = """
WITH given AS MATERIALIZED (
    SELECT g.*, e.position AS first, e.published_ns AS first_ns,
        count(*) FILTER (WHERE e.position IS NULL) OVER (ORDER BY g.n) AS place
    FROM unnest(%b::text[], %b::bytea[], %b::text[], %b::text[], %b::bigint[])
        WITH ORDINALITY AS g(key, value, id, context, published_ns, n)
    LEFT JOIN {events} AS e ON e.id = g.id
), head AS (
    UPDATE {head} SET last = last + (SELECT count(*) FROM given WHERE first IS NULL) WHERE one
    RETURNING tableoid, epoch, last - (SELECT count(*) FROM given WHERE first IS NULL) AS base
), added AS (
    INSERT INTO {events} (position, key, value, id, context, published_ns)
    SELECT base + place, key, value, id, context, published_ns FROM head, given WHERE first IS NULL
)
SELECT epoch, coalesce(first, base + place), coalesce(first_ns, published_ns),
    (SELECT pg_notify('purgatory_' || tableoid, '') FROM head)
FROM head, given ORDER BY n"""

# The first row is the event at the position itself, without its value: the reader compares its mark.
_READ: Final = """
SELECT h.epoch, h.last, e.* FROM {head} AS h LEFT JOIN LATERAL (
    SELECT position, key, CASE WHEN position > %(after)s THEN value END, id, context, published_ns FROM (
        SELECT w.*, sum(octet_length(value)) FILTER (WHERE position > %(after)s) OVER (ORDER BY position)
            - octet_length(value) AS before
        FROM (
            SELECT position, key, value, id, context, published_ns FROM {events}
            WHERE position >= %(after)s ORDER BY position LIMIT %(most)s
        ) AS w
    ) AS v WHERE position <= %(after)s + 1 OR before < %(most_bytes)s ORDER BY position
) AS e ON true WHERE h.one"""

_END: Final = """
SELECT h.epoch, h.last, e.published_ns, 'purgatory_' || h.tableoid
FROM {head} AS h LEFT JOIN {events} AS e ON e.position = h.last WHERE h.one"""

# The position before the last events, and whether there is an event at it. If not, the first one that is there counts.
_BEFORE_LAST: Final = """
SELECT h.epoch, coalesce(e.position, (SELECT min(position) - 1 FROM {events}), h.last), e.published_ns
FROM {head} AS h LEFT JOIN {events} AS e ON e.position = h.last - %(count)s::bigint WHERE h.one"""

# The last event stays, so that a reader which has applied everything can compare its mark.
_TRIM: Final = """
WITH oldest AS MATERIALIZED (SELECT position, published_ns FROM {events} ORDER BY position LIMIT %(step)s)
DELETE FROM {events} WHERE position IN (
    SELECT o.position FROM oldest AS o, {head} AS h WHERE h.one AND o.position < h.last
    AND (o.position <= h.last - %(keep)s::bigint OR o.published_ns < %(oldest_ns)s::bigint)
)"""

_COLUMNS: Final = """(
    SELECT array_agg(attname::text || ' ' || format_type(atttypid, NULL) ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = to_regclass({name}) AND attnum > 0 AND NOT attisdropped
)"""
_LOOK: Final = """
SELECT {of_events}, {of_head}, ARRAY(
    SELECT attname::text FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
    WHERE indrelid = to_regclass({name}) AND indisunique AND indisvalid AND indnkeyatts = 1
)"""


class Tables:
    """The tables of one feed, under a name such as ``inbox``, ``app.inbox`` or ``app."In Box"``.

    A name is read as SQL reads it. Without a schema, the ``search_path`` of the connection decides where it is.

    Raises:
        InvalidSetting: it is not the name of a table.
    """

    def __init__(self, table: object) -> None:
        found = _NAME.fullmatch(table) if isinstance(table, str) else None
        if found is None or len(_plain(found[2]).encode()) > _LONGEST:
            wanted = f"the name of a table of at most {_LONGEST} bytes"
            raise InvalidSetting("table", table, wanted, 'for example inbox, app.inbox, or app."In Box"')
        parts = [_plain(part) for part in found.groups() if part]
        events, head = parts, [*parts[:-1], parts[-1] + "_head"]
        self._names = {"events": sql.Identifier(*events), "head": sql.Identifier(*head)}
        # psycopg reads a % in a statement with parameters as a placeholder, in a quoted name too.
        self._escaped = {
            "events": sql.Identifier(*(part.replace("%", "%%") for part in events)),
            "head": sql.Identifier(*(part.replace("%", "%%") for part in head)),
        }
        self.name = str(table)
        self.publish = self._with_parameters(_PUBLISH)
        self.read = self._with_parameters(_READ)
        self.before_last = self._with_parameters(_BEFORE_LAST)
        self.trim = self._with_parameters(_TRIM)
        self.end = self._plain(_END)
        self.look = self._look()
        self.create_events = [self._plain(_CREATE_EVENTS), self._plain(_CREATE_INDEX)]
        self.create_head = [self._plain(_CREATE_HEAD)]
        self.begin = [self._plain(_CLEAR), self._plain(_BEGIN)]
        self.lock = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended({}, 0))").format(
            sql.Literal("purgatory " + events[-1])
        )

    @property
    def create_sql(self) -> str:
        """The statements that make the tables, for someone who may do so."""
        statements = [*self.create_events, *self.create_head, self.begin[-1]]
        return ";\n".join(statement.as_string(None).strip() for statement in statements) + ";\n"

    def _plain(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(**self._names)

    def _with_parameters(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(**self._escaped)

    def _look(self) -> sql.Composed:
        events, head = (sql.Literal(self._names[name].as_string(None)) for name in ("events", "head"))
        columns = sql.SQL(_COLUMNS)
        of_events, of_head = columns.format(name=events), columns.format(name=head)
        return sql.SQL(_LOOK).format(of_events=of_events, of_head=of_head, name=events)


def _plain(part: str) -> str:
    """The name that a part of an SQL name stands for."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
