"""The two tables of a feed, and each statement on them.

    inbox        position  key  value  id  context  published_ns  accepted_at     one row per event
    inbox_head   one  epoch  has_events  secret                                   one row: the lock of the publishers

**Why a lock and not a sequence.** Numbers of a sequence become visible out of order, and a rolled back transaction
leaves a hole. A reader that has seen 7 would miss a 6 that is committed later:

    1. A publisher takes 6 from the sequence.
    2. Another one takes 7 and commits.
    3. A reader reads up to 7.
    4. The first publisher commits 6, which no reader asks for any more.

Here a publish locks the head row until it has committed, and then takes the number after the greatest one. So the next
publish cannot begin before step 4. Positions become visible in their order, and a transaction that is rolled back
leaves no hole.

**Why not a counter in the head row.** Each publish would make another version of the row. While any transaction of the
database is open for long, a backup for example, no version can be removed, and each publish visits them all.

**Why one message.** The greatest number is read in a snapshot that is taken when the lock is there. So a publish is two
statements. They are sent in one message, which the server has received as a whole before it locks the head. A publisher
that stops in the middle, by SIGSTOP for example, does not keep the lock from others.

**What a publish notifies.** Two channels, when it commits, in the order of the commits. ``_payload`` has their formats.

    purgatory_ and the head's secret    a payload for each event that fits into one: the event itself
    purgatory_ and the head's oid       the last event's number, which says only that there are events up to it

Any role that can connect may send and receive notifications. So the first channel has a name that only a role with
``SELECT`` on the head can know, and nothing but a statement is believed that comes through the second. Tables of an
earlier version have no secret, and no payloads. What a payload says is what is stored, also after a trigger of yours.

**Why ``accepted_at``.** It is the server's time. The clocks of publishers must not decide which events are old.

Everything here is immutable, and any thread may use it.
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from purgatory import InvalidSetting

if TYPE_CHECKING:
    from purgatory.feeds.engine import NewEvent

#: The columns that a table must have, with their types. It may have others with a default.
EVENTS: Final = frozenset(
    {
        *("position bigint", "key text", "value bytea", "id text", "context text", "published_ns bigint"),
        "accepted_at timestamp with time zone",
    }
)
HEAD: Final = frozenset({"one boolean", "epoch bigint", "has_events boolean"})

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
    published_ns bigint NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
)"""
_CREATE_INDEX: Final = "CREATE UNIQUE INDEX ON {events} (id) WHERE id IS NOT NULL"
_CREATE_HEAD: Final = """
CREATE TABLE {head} (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    has_events boolean NOT NULL DEFAULT false,
    secret text DEFAULT
        left(encode(sha256(convert_to(concat(random(), random(), clock_timestamp()), 'UTF8')), 'hex'), 32)
)"""

# A table that was emptied begins another epoch, because its numbers begin again. The last event is never removed.
_END_EPOCH: Final = "DELETE FROM {head} WHERE has_events AND NOT EXISTS (SELECT FROM {events})"
# Rows of a history that is over must not be taken for new ones, so they go before the head is made.
_CLEAR: Final = "DELETE FROM {events} WHERE NOT EXISTS (SELECT FROM {head})"
_BEGIN: Final = """
INSERT INTO {head} (epoch)
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE NOT EXISTS (SELECT FROM {head})"""

_LOCK: Final = "SELECT FROM {head} WHERE one FOR NO KEY UPDATE"

# A head of an earlier version has no such column, and one statement serves both.
_CHANNELS: Final = "'purgatory_' || h.tableoid AS bell, 'purgatory_' || (to_jsonb(h) ->> 'secret') AS channel"

# As ``mark_of`` says it.
_MARK: Final = "greatest(published_ns & 4294967295, 1)"

# Independent of ``standard_conforming_strings``.
_NUL: Final = "decode('00', 'hex')"

# A listener that stands still keeps all later notifications in the server's queue. So payloads take little of it. If it
# is nearly full, the workers find the events by themselves a little later.
_PUBLISH: Final = """
WITH given AS MATERIALIZED (
    SELECT g.*, e.position AS first, e.published_ns AS first_ns,
        count(*) FILTER (WHERE e.position IS NULL) OVER (ORDER BY g.n) AS place
    FROM unnest({key}::text[], {value}::bytea[], {id}::text[], {context}::text[], {published_ns}::bigint[])
        WITH ORDINALITY AS g(key, value, id, context, published_ns, n)
    LEFT JOIN {events} AS e ON e.id = g.id
), head AS (
    SELECT {channels}, epoch, coalesce(position, 0) AS base,
        CASE WHEN position IS NULL THEN 0 ELSE {mark} END AS base_mark, pg_notification_queue_usage() AS usage
    FROM {head} AS h
    LEFT JOIN (SELECT position, published_ns FROM {events} ORDER BY position DESC LIMIT 1) AS e ON true
    WHERE one AND (position IS NOT NULL OR NOT has_events)
), begun AS (
    UPDATE {head} SET has_events = true WHERE one AND NOT has_events
), added AS (
    INSERT INTO {events} (position, key, value, id, context, published_ns)
    SELECT base + place, key, value, id, context, published_ns FROM head, given WHERE first IS NULL
    RETURNING position, key, value, id, context, published_ns
), payloads AS (
    SELECT channel, concat(epoch, '-', position, '-', lag({mark}, 1, base_mark) OVER (ORDER BY position), ' ')
        || CASE WHEN octet_length(value) < 6000 THEN encode(
            convert_to(published_ns::text, 'UTF8') || {nul} || convert_to(key, 'UTF8') || {nul}
            || convert_to(coalesce(id, ''), 'UTF8') || {nul} || convert_to(coalesce(context, ''), 'UTF8') || {nul}
            || value, 'base64') END AS payload
    FROM head, added WHERE usage < 0.01 AND channel IS NOT NULL
)
SELECT epoch, coalesce(first, base + place), coalesce(first_ns, published_ns),
    (SELECT count(pg_notify(channel, payload)) FROM payloads WHERE octet_length(payload) < 8000),
    (SELECT pg_notify(bell, epoch || '-' || (SELECT max(position) FROM added)) FROM head WHERE usage < 0.5)
FROM head, given ORDER BY n"""

# The first row is the event at the position itself, without its value: the reader compares its mark.
_READ: Final = """
SELECT h.epoch, coalesce((SELECT max(position) FROM {events}), CASE WHEN h.has_events THEN -1 ELSE 0 END), e.*
FROM {head} AS h LEFT JOIN LATERAL (
    SELECT position, key, CASE WHEN position > {after} THEN value END, id, context, published_ns FROM (
        SELECT w.*, sum(octet_length(value)) FILTER (WHERE position > {after}) OVER (ORDER BY position)
            - octet_length(value) AS before
        FROM (
            SELECT position, key, value, id, context, published_ns FROM {events}
            WHERE position >= {after} ORDER BY position LIMIT {most}
        ) AS w
    ) AS v WHERE position <= {after} + 1 OR before < {most_bytes} ORDER BY position
) AS e ON true WHERE h.one"""

_END: Final = """
SELECT h.epoch, coalesce(e.position, 0), e.published_ns, {channels}
FROM {head} AS h LEFT JOIN (SELECT position, published_ns FROM {events} ORDER BY position DESC LIMIT 1) AS e ON true
WHERE h.one AND (e.position IS NOT NULL OR NOT h.has_events)"""

# The position before the last events, and whether there is an event at it. If not, the first one that is there counts.
_BEFORE_LAST: Final = """
SELECT h.epoch, coalesce(e.position, (SELECT min(position) - 1 FROM {events}), 0), e.published_ns
FROM {head} AS h LEFT JOIN {events} AS e ON e.position = (SELECT max(position) FROM {events}) - %(count)s::bigint
WHERE h.one"""

# The last event stays, so that a reader which has applied everything can compare its mark.
# Rows that were removed before are not visited again, as an old snapshot may keep them. No event is removed before an
# earlier one: the server's clock may go back.
_TRIM: Final = """
WITH oldest AS MATERIALIZED (
    SELECT position, coalesce(position <= top - %(keep)s::bigint, false) OR coalesce(
        accepted_at < clock_timestamp() - make_interval(secs => %(keep_s)s::float), false) AS is_old
    FROM {events}, (SELECT max(position) AS top FROM {events}) AS e
    WHERE position > %(above)s AND position < top ORDER BY position LIMIT %(step)s
)
DELETE FROM {events} WHERE position > %(above)s AND position <= (
    SELECT coalesce(min(position) FILTER (WHERE NOT is_old) - 1, max(position)) FROM oldest
) RETURNING position"""

_EXECUTE_PUBLISH: Final = b"""; EXECUTE purgatory_publish (
    ARRAY[%b]::text[], ARRAY[%b]::bytea[], ARRAY[%b]::text[], ARRAY[%b]::text[], ARRAY[%b]::bigint[])"""
_READ_FROM: Final = ("after", "most", "most_bytes")
_COLUMNS_GIVEN: Final = ("key", "value", "id", "context", "published_ns")

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
        match = _NAME.fullmatch(table) if isinstance(table, str) else None
        if match is None or len(_plain(match[2]).encode()) > _LONGEST:
            wanted = f"the name of a table of at most {_LONGEST} bytes"
            raise InvalidSetting("table", table, wanted, 'for example inbox, app.inbox, or app."In Box"')
        parts = [_plain(part) for part in match.groups() if part]
        events, head = parts, [*parts[:-1], parts[-1] + "_head"]
        expressions = {"channels": sql.SQL(_CHANNELS), "mark": sql.SQL(_MARK), "nul": sql.SQL(_NUL)}
        self._names = {"events": sql.Identifier(*events), "head": sql.Identifier(*head), **expressions}
        # psycopg reads a % in a statement with parameters as a placeholder, in a quoted name too.
        self._escaped = {
            "events": sql.Identifier(*(part.replace("%", "%%") for part in events)),
            "head": sql.Identifier(*(part.replace("%", "%%") for part in head)),
            **expressions,
        }
        self.name = str(table)
        self.lock_head = self._plain(_LOCK)
        self.publish = sql.SQL(_PUBLISH).format(**self._escaped, **{name: sql.SQL("%b") for name in _COLUMNS_GIVEN})
        #: The same for :meth:`publish_message`. It is prepared once per connection.
        self.prepare_publish = sql.SQL("PREPARE purgatory_publish (text[], bytea[], text[], text[], bigint[]) AS ") + (
            sql.SQL(_PUBLISH).format(
                **self._names, **{name: sql.SQL(f"${n}") for n, name in enumerate(_COLUMNS_GIVEN, 1)}
            )
        )
        lock = self._plain(_LOCK).as_bytes(None).replace(b"%", b"%%")
        self._execute_publish = lock + _EXECUTE_PUBLISH
        self.read = sql.SQL(_READ).format(**self._escaped, **{name: sql.SQL(f"%({name})s") for name in _READ_FROM})
        #: The same for ``_direct``. It is prepared once per connection.
        self.prepare_read = sql.SQL("PREPARE purgatory_read (bigint, bigint, bigint) AS ") + (
            sql.SQL(_READ).format(**self._names, **{name: sql.SQL(f"${n}") for n, name in enumerate(_READ_FROM, 1)})
        )
        self.before_last = self._with_parameters(_BEFORE_LAST)
        self.trim = self._with_parameters(_TRIM)
        self.end = self._plain(_END)
        self.look = self._look()
        self.create_events = [self._plain(_CREATE_EVENTS), self._plain(_CREATE_INDEX)]
        self.create_head = [self._plain(_CREATE_HEAD)]
        self.begin = [self._plain(_END_EPOCH), self._plain(_CLEAR), self._plain(_BEGIN)]
        self.lock = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended({}, 0))").format(
            sql.Literal("purgatory " + events[-1])
        )

    def publish_message(self, events: Sequence[NewEvent], quote: Callable[[bytes], bytes]) -> bytes:
        """Both statements of a publish, with the events, to be sent in one message. ``quote`` makes a literal.

        psycopg's own literals of arrays would take most of the time of a publish.
        """
        columns = (
            [quote(event.key.encode()) for event in events],
            [b"E'\\\\x%b'" % hexlify(event.value) for event in events],
            [b"NULL" if event.id is None else quote(event.id.encode()) for event in events],
            [b"NULL" if event.context is None else quote(event.context.encode()) for event in events],
            [b"%d" % event.published_ns for event in events],
        )
        return self._execute_publish % tuple(map(b",".join, columns))

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
