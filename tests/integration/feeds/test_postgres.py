"""``PostgresFeed`` on a real PostgreSQL: the contract of all feeds, its tables, and a user's own transactions."""

import asyncio
import time
import uuid

import psycopg
import pytest
from psycopg.rows import dict_row

from purgatory import InvalidSetting
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedUnavailable, ForeignStream, PostgresFeed, PublishRejected, UnsupportedServer
from purgatory.feeds.engines.postgres import _publisher, _reader
from purgatory.testing.feeds import FeedContract
from tests.integration.feeds.conftest import ServerFaults
from tests.support.loops import until
from tests.support.postgres import postgres, require

require()

SERVER = postgres


@pytest.fixture
def table(server):
    """A name that was never used, with all that a quoted name may have."""
    return f'"In ""Box"" 100% é {uuid.uuid4().hex[:12]}"'


@pytest.fixture
def head(table):
    return f'{table[:-1]}_head"'


@pytest.fixture
def make_feed(server, table):
    return lambda **settings: PostgresFeed(server.dsn, **{"table": table, **settings})


class PostgresFaults(ServerFaults):
    def __init__(self, server, table, head):
        super().__init__(server)
        self._events = table
        self._head = head

    def cut(self):
        self.server.cut_connections()

    def trim(self, keep):
        self.server.execute(
            f"DELETE FROM {self._events} WHERE position <= (SELECT max(position) FROM {self._events}) - {keep}"
        )

    def lose_last(self, count):
        self.server.execute(
            f"DELETE FROM {self._events} WHERE position > (SELECT max(position) FROM {self._events}) - {count}"
        )

    def empty(self):
        self.server.execute(f"TRUNCATE {self._head}, {self._events}")


class TestPostgresFeed(FeedContract):
    @pytest.fixture
    def make_feed(self, make_feed):
        return make_feed

    @pytest.fixture
    def faults(self, server, table, head):
        return PostgresFaults(server, table, head)


async def read_all(feed):
    """Every event that is there, by another reader."""
    reader = await feed.open_reader()
    try:
        end = await reader.end()
        await reader.resume(type(end)(end.epoch, 0))
        events = []
        while batch := await reader.read(1000, 0):
            events += batch
        return events
    finally:
        await reader.close()


# -- tables


async def test_workers_that_start_together_make_one_table(make_feed):
    """Each of them finds or makes the tables, and there is one epoch."""
    feeds = [make_feed() for _ in range(8)]
    positions = await asyncio.gather(*(feed.publish("key", b"1") for feed in feeds))
    assert {1, 2, 3, 4, 5, 6, 7, 8} == {position.offset for position in positions}
    assert 1 == len({position.epoch for position in positions})
    for feed in feeds:
        await feed.aclose()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DROP TABLE {table}; CREATE TABLE {table} (a int)", "a table with the columns a integer"),
        ("ALTER TABLE {table} ALTER key TYPE varchar", "key character varying"),
        ("DROP TABLE {head}; CREATE VIEW {head} AS SELECT 1 AS last", "last integer"),
        ("ALTER TABLE {table} DROP CONSTRAINT {pkey}", "without the unique indexes"),
    ],
)
async def test_table_of_another_shape_is_named(server, table, head, make_feed, change, found):
    """The error says what the table is, and nothing is changed."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        pkey = f'{table[:-1]}_pkey"'
        for statement in change.format(table=table, head=head, pkey=pkey).split("; "):
            server.execute(statement)
        for open_it in (feed.open_reader, feed.open_publisher):
            with pytest.raises(ForeignStream, match="choose another name") as raised:
                await open_it()
            assert found in str(raised.value)
        await feed.aclose()
        with pytest.raises(PublishRejected, match="choose another name"):
            await feed.publish("key", b"2")


async def test_further_columns_do_no_harm(server, table, make_feed):
    """A user may add a column with a default."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        server.execute(f"ALTER TABLE {table} ADD COLUMN seen_at timestamptz DEFAULT now()")
        await feed.publish("key", b"2")
        assert [b"1", b"2"] == [event.value for event in await read_all(feed)]


async def test_role_that_may_not_create_uses_the_owners_tables(server):
    """Without them, the error names the SQL, with which the owner makes them."""
    role, table = f"role_{uuid.uuid4().hex[:8]}", f"app_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    dsn = server.dsn.replace("purgatory@", f"{role}@")
    async with PostgresFeed(dsn, table=table) as feed:
        with pytest.raises(UnsupportedServer, match=r"permission denied for schema public; .*create_sql"):
            await feed.open_reader()
        server.execute(feed.create_sql)
        server.execute(f"GRANT SELECT ON {table}, {table}_head TO {role}")
        with pytest.raises(PublishRejected, match="permission denied for table"):
            await feed.publish("key", b"1")
        server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, {table}_head TO {role}")
        assert 1 == (await feed.publish("key", b"1")).offset
        assert [b"1"] == [event.value for event in await read_all(feed)]


async def test_schema_that_is_missing_is_named(make_feed):
    """The error names it."""
    with pytest.raises(UnsupportedServer, match='schema "nowhere" does not exist'):
        await make_feed(table="nowhere.inbox").open_publisher()


async def test_other_defaults_of_a_role_do_no_harm(server, table):
    """Concurrent publishes do not fail under a stricter isolation level, and a slow batch has its time."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'serializable'")
    server.execute(f"ALTER ROLE {role} SET statement_timeout = 9999")
    feeds = [PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=table) for _ in range(4)]
    positions = await asyncio.gather(*(feed.publish("key", b"1") for feed in feeds for _ in range(200)))
    assert set(range(1, 801)) == {position.offset for position in positions}
    publisher = await feeds[0].open_publisher()
    assert ("4s",) == await publisher._link.row(psycopg.sql.SQL("SHOW statement_timeout"))
    await publisher.close()
    for feed in feeds:
        await feed.aclose()


@pytest.mark.parametrize(("default", "used"), [("off", "on"), ("remote_write", "remote_write")])
async def test_accepted_event_survives_a_crash_whatever_the_role_says(server, table, default, used):
    """A role or a database may commit before the write is on the disk by default. A feed waits for the disk."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET synchronous_commit = {default}")
    publisher = await PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=table).open_publisher()
    assert (used,) == await publisher._link.row(psycopg.sql.SQL("SHOW synchronous_commit"))
    await publisher.close()


async def test_any_text_is_published_as_it_is(server, table):
    """Also under a role whose literals are read in another way."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET standard_conforming_strings = off")
    text = "it's \"100%\" %b $1 \\ \\x00 \\' é 漢 \x01 {NULL} ,"
    async with PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=table) as feed:
        for key, value, name in [(text, bytes(range(256)), text), ("", b"", None), ("NULL", b"'", "NULL")]:
            await feed.publish(key, value, id=name)
            assert [(key, value, name)] == [(e.key, e.value, e.id) for e in await read_all(feed)][-1:]


async def test_publish_is_not_planned_each_time(server, table, make_feed):
    """Planning takes longer than running it. The plan does not visit the whole table, whatever that had at first."""
    async with make_feed() as feed:
        for _ in range(8):
            await feed.publish("key", b"1")
        (outbox,) = feed._outboxes.values()
        link = outbox._publisher._link
        plans = await link.row("SELECT custom_plans FROM pg_prepared_statements WHERE name = 'purgatory_publish'")
        assert (0,) == plans
        message = feed._tables.publish_message([feed._new_event("key", b"1", "id")], lambda text: b"'%b'" % text)
        explained = await link.execute(b"EXPLAIN " + message.partition(b"; ")[2])
        assert "Seq Scan" not in str(await explained.fetchall())


async def test_full_queue_of_notifications_rejects_no_event(server, table):
    """A session that listens and does nothing can fill it. Workers then find the events without a notification."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"CREATE SCHEMA {role}")
    full = "RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'"
    server.execute(f"""
        CREATE FUNCTION {role}.pg_notification_queue_usage() RETURNS float LANGUAGE sql AS 'SELECT 0.99';
        CREATE FUNCTION {role}.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {full}; END $$;
        ALTER ROLE {role} SET search_path = {role}, pg_catalog, public
    """)
    feed = PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=f"public.{table}")
    async with AsyncPurgatory("test") as purgatory, feed.follow(purgatory, lambda event: [event.key]) as following:
        await following.applied(await feed.publish("key", b"1"), timeout_ms=20_000)


@pytest.mark.parametrize(
    ("part", "wrong", "why"),
    [("/postgres", "/nowhere", 'database "nowhere" does not exist'), ("purgatory@", "bob:pw@", 'role "bob" does not')],
)
async def test_wrong_dsn_is_named(server, part, wrong, why):
    """The error at the start has the server's own words, and no password."""
    feed = PostgresFeed(server.dsn.replace(part, wrong), table="inbox")
    with pytest.raises(FeedUnavailable, match=why) as raised:
        await feed._open(feed.open_reader)
    assert f"127.0.0.1:{server.port}" in str(raised.value)
    assert "pw" not in str(raised.value)


# -- publishing


async def test_id_twice_in_one_batch_is_one_event(make_feed):
    """The second publish gets the position of the first."""
    async with make_feed() as feed:
        names = ["a", None, "b", "a", None, "b", "c"]
        positions = await asyncio.gather(*(feed.publish("key", b"%d" % n, id=name) for n, name in enumerate(names)))
        assert [1, 2, 3, 1, 4, 3, 5] == [position.offset for position in positions]
        assert [b"0", b"1", b"2", b"4", b"6"] == [event.value for event in await read_all(feed)]
        assert positions[0].mark == positions[3].mark


async def test_workers_race_for_an_id(make_feed):
    """Whichever is first, there is one event per id, every publisher gets its position, and no offset is left out."""
    feeds = [make_feed() for _ in range(4)]
    names = [f"id-{number}" for number in range(60)]

    async def publish_all(feed, turn):
        answers = {}
        for name in names[turn * 7 :] + names[: turn * 7]:
            few = [name, *(f"{name}-{part}" for part in range(3))]
            found = await asyncio.gather(*(feed.publish("key", name.encode(), id=each) for each in few))
            answers |= zip(few, found, strict=True)
        return answers

    first, *others = await asyncio.gather(*(publish_all(feed, turn) for turn, feed in enumerate(feeds)))
    assert all(first == other for other in others)
    assert {event.id: event.position for event in await read_all(feeds[0])} == first
    assert set(range(1, 241)) == {position.offset for position in first.values()}
    for feed in feeds:
        await feed.aclose()


async def test_id_that_a_transaction_commits_meanwhile(server, make_feed):
    """A publish that waited for a transaction with the same id gets the position of its event."""
    async with make_feed() as feed, await psycopg.AsyncConnection.connect(server.dsn) as mine:
        await feed.publish("key", b"1")
        position = await feed.publish_in(mine, "key", b"2", id="two")
        publishing = asyncio.create_task(feed.publish("key", b"2", id="two"))
        await until(lambda: server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        await mine.commit()
        assert position == await publishing
        assert [b"1", b"2"] == [event.value for event in await read_all(feed)]


async def test_event_that_the_server_rejects_fails_alone(server, table, make_feed):
    """Other events of its batch are accepted, and it leaves no hole."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        server.execute(f"ALTER TABLE {table} ADD CHECK (key <> 'bad')")
        keys = ["a", "bad", "b"]
        one, bad, other = await asyncio.gather(*(feed.publish(key, b"") for key in keys), return_exceptions=True)
        assert (2, 3) == (one.offset, other.offset)
        assert isinstance(bad, PublishRejected)
        assert "check constraint" in str(bad)


async def test_publish_that_waits_too_long_for_a_lock_is_rejected(server, head, make_feed):
    """It is rejected and not uncertain: it does not become an event when the lock is released."""
    async with make_feed(publish_timeout_ms=500) as feed:
        await feed.publish("key", b"1")
        with psycopg.connect(server.dsn) as connection:
            connection.execute(f"SELECT FROM {head} FOR UPDATE")
            with pytest.raises(PublishRejected, match="statement timeout"):
                await feed.publish("key", b"2")
        assert 2 == (await feed.publish("key", b"3")).offset
        assert [b"1", b"3"] == [event.value for event in await read_all(feed)]


async def test_connection_that_the_server_has_closed_is_not_used(server, make_feed):
    """A publish after a restart of the server is accepted at once, as nothing was on its way."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        await until(lambda: not _trimming(feed))
        server.restart()
        assert 2 == (await feed.publish("key", b"2")).offset
        await asyncio.to_thread(server.cut_connections)
        await asyncio.to_thread(server.execute, "SELECT pg_sleep(0.1)")
        assert 3 == (await feed.publish("key", b"3")).offset


# -- a user's own transaction


async def test_event_commits_with_the_users_changes(server, make_feed):
    """It is published by the commit, and not before. Any kind of rows will do."""
    async with make_feed() as feed, await psycopg.AsyncConnection.connect(server.dsn, row_factory=dict_row) as mine:
        await feed.publish("key", b"1")
        await mine.execute("CREATE TEMP TABLE mine (i int)")
        position = await feed.publish_in(mine, "key", b"2", id="a")
        assert [b"1"] == [event.value for event in await read_all(feed)]
        await mine.commit()
        assert [b"1", b"2"] == [event.value for event in await read_all(feed)]
        assert position == await feed.publish("key", b"2", id="a") == await feed.publish_in(mine, "key", b"2", id="a")


async def test_transaction_that_is_rolled_back_publishes_nothing(server, make_feed):
    """No event, and no hole in the offsets."""
    async with make_feed() as feed, await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as mine:
        await feed.publish("key", b"1")
        with pytest.raises(ZeroDivisionError):
            async with mine.transaction():
                assert 2 == (await feed.publish_in(mine, "key", b"never")).offset
                raise ZeroDivisionError
        assert 2 == (await feed.publish("key", b"2")).offset
        assert [b"1", b"2"] == [event.value for event in await read_all(feed)]


async def test_bell_rings_for_a_users_transaction(server, make_feed):
    """A worker learns of the event at once."""
    async with make_feed() as feed, await psycopg.AsyncConnection.connect(server.dsn) as mine:
        reader = await feed.open_reader()
        await reader.resume(await reader.end())
        reading = asyncio.create_task(reader.read(10, 1000))
        await asyncio.sleep(0.1)
        await feed.publish_in(mine, "key", b"1")
        await mine.commit()
        async with asyncio.timeout(10):
            assert [b"1"] == [event.value for event in await reading]
        await reader.close()


async def test_event_needs_a_transaction_to_be_part_of(server, make_feed):
    """On a connection that commits each statement, the state and the event would not commit together."""
    async with make_feed() as feed, await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as mine:
        with pytest.raises(InvalidSetting, match="connection must be a connection in a transaction"):
            await feed.publish_in(mine, "key", b"1")


# -- reading


async def test_missed_bell_costs_a_short_wait_and_no_event(logs, make_feed, monkeypatch):
    """A pooler in transaction mode loses notifications. Events arrive at the end of each wait, and the log says why."""
    monkeypatch.setattr(_reader, "_MOST_MISSED", 2)
    async with make_feed() as feed:
        reader = await feed.open_reader()
        await reader.resume(await reader.end())
        await reader._link.execute("UNLISTEN *")

        async def read():
            while not (events := await reader.read(10, 1.0)):
                pass  # a publish on a busy machine may take longer than a wait
            return events

        for number in range(3):
            reading = asyncio.create_task(read())
            await asyncio.sleep(0.05)
            await feed.publish("key", b"%d" % number)
            assert [b"%d" % number] == [event.value for event in await reading]
        assert ["feed_without_notifications"] == [line["event"] for line in logs]
        await reader.close()


async def test_one_read_is_bounded_in_bytes(make_feed, monkeypatch):
    """A reader that asks for many large events gets a few of them, and at least one."""
    monkeypatch.setattr(_reader, "_MOST_BYTES", 2_500)
    async with make_feed() as feed:
        await asyncio.gather(*(feed.publish("key", b"x" * size) for size in (1000, 1000, 1000, 1000, 9000, 1, 1)))
        reader = await feed.open_reader()
        end = await reader.end()
        await reader.resume(type(end)(end.epoch, 0))
        async with asyncio.timeout(10):  # it does not wait while there are more
            assert [3, 2, 2] == [len(await reader.read(100, 1000)) for _ in range(3)]
        assert [] == await reader.read(100, 0)
        await reader.close()


async def test_cancelled_read_closes_at_once_though_the_server_hangs(server, make_feed):
    """psycopg itself would wait ten seconds for the server to confirm the cancellation."""
    async with make_feed() as feed:
        reader = await feed.open_reader()
        await reader.resume(await reader.end())
        server.pause()
        try:
            began_s = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1, 0)
            await reader.close()
            assert time.monotonic() - began_s < 3
        finally:
            server.resume()


async def test_cancelled_start_ends_at_once_though_the_server_hangs(server, make_feed, caplog):
    """Likewise while the tables are made. psycopg does not try to roll that back, and warns of nothing."""
    feed = make_feed()
    with psycopg.connect(server.dsn) as other:
        other.execute(feed._tables.lock)
        opening = asyncio.create_task(feed.open_publisher())
        await until(lambda: server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory'"))
        server.pause()
        try:
            began_s = time.monotonic()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert time.monotonic() - began_s < 3
            assert [] == caplog.records
        finally:
            server.resume()


@pytest.mark.parametrize(
    ("change", "gaps"),
    [
        ("TRUNCATE {table}", 1),
        ("DELETE FROM {table}", 1),
        ("DROP TABLE {table}", 1),
        ("TRUNCATE {table}, {head}", 1),
        ("DELETE FROM {head}", 1),
        ("DROP TABLE {table}, {head}", 1),
    ],
)
async def test_table_that_is_emptied_or_dropped_is_made_again(server, table, head, make_feed, change, gaps):
    """A worker goes on after a gap. The feed begins another epoch, so no position stands for two events."""
    seen = []

    def apply(event):
        seen.append(event.value)
        return [event.key]

    feed = make_feed()
    async with AsyncPurgatory("test") as purgatory, feed.follow(purgatory, apply, reload=lambda: None) as following:
        await following.applied(await feed.publish("key", b"1"))
        await until(lambda: feed.statistics().lag_s == 0)
        server.execute(change.format(table=table, head=head))
        await feed.publish("key", b"2")
        await until(lambda: seen == [b"1", b"2"] or feed.statistics().reloads == 2)
        await following.applied(await feed.publish("key", b"3"), timeout_ms=20_000)
        assert gaps == feed.statistics().gaps
        assert b"3" == seen[-1]


# -- removing old events


async def test_old_events_are_removed_by_number(server, table, make_feed, monkeypatch):
    """About ``keep`` are left, and these are the last."""
    monkeypatch.setattr(_publisher, "_STEP", 50)
    monkeypatch.setattr(_publisher, "_REST_S", 0.0)
    async with make_feed(keep=100) as feed:
        await asyncio.gather(*(feed.publish("key", b"") for _ in range(1000)))
        await asyncio.gather(*(feed.publish("key", b"") for _ in range(50)))
        await until(lambda: feed._outboxes and not _trimming(feed))
        ((count, first, last),) = server.execute(f"SELECT count(*), min(position), max(position) FROM {table}")
        assert 1050 == last
        assert 100 <= count <= 150
        assert count == last - first + 1


async def test_old_events_are_removed_by_age_except_the_last(server, table, make_feed):
    """The last one stays, as a worker that comes back compares it with the one that it has applied."""
    async with make_feed(keep=None, keep_s=3600) as feed:
        await asyncio.gather(*(feed.publish("key", b"") for _ in range(20)))
        await until(lambda: not _trimming(feed))
        assert [(20,)] == server.execute(f"SELECT count(*) FROM {table}")
        server.execute(f"UPDATE {table} SET accepted_at = accepted_at - interval '3601 s' WHERE position <= 15")
        await feed.aclose()
        await feed.publish("key", b"")
        await until(lambda: not _trimming(feed))
        assert [(16,)] == server.execute(f"SELECT min(position) FROM {table}")
        server.execute(f"UPDATE {table} SET accepted_at = '2001-01-01'")
        reader = await feed.open_reader()
        end = await reader.end()
        publisher = await feed.open_publisher()
        publisher._trim_if_due(0)
        await until(lambda: publisher._trimming is None)
        assert [(21,)] == server.execute(f"SELECT position FROM {table}")
        await reader.resume(end)
        await reader.close()
        await publisher.close()


async def test_clock_of_a_publisher_does_not_decide_what_is_old(server, table, make_feed, monkeypatch):
    """A host whose clock is two hours ahead removes nothing, and ids that were accepted are known."""
    async with make_feed(keep=None, keep_s=3600) as feed, make_feed(keep=None, keep_s=3600) as other:
        position = await feed.publish("key", b"1", id="one")
        await feed.publish("key", b"2")
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() + 7200 * 10**9)
        await other.publish("key", b"3")
        await until(lambda: not _trimming(other))
        monkeypatch.undo()
        assert position == await feed.publish("key", b"1", id="one")
        assert [(3,)] == server.execute(f"SELECT count(*) FROM {table}")


async def test_events_are_removed_in_their_order(server, table, make_feed):
    """An old event behind a young one stays, as the clock of the server may go back. So no hole appears."""
    async with make_feed(keep=None, keep_s=3600) as feed:
        await asyncio.gather(*(feed.publish("key", b"") for _ in range(5)))
        server.execute(f"UPDATE {table} SET accepted_at = '2001-01-01' WHERE position IN (1, 2, 4)")
        await feed.aclose()
        await feed.publish("key", b"")
        await until(lambda: not _trimming(feed))
        assert [(3,), (4,), (5,), (6,)] == server.execute(f"SELECT position FROM {table} ORDER BY 1")


async def test_old_snapshot_makes_no_publish_slower(server, table, head, make_feed):
    """A transaction that is open for long keeps old versions of rows. A publish makes none of the head row."""
    async with make_feed(keep=100) as feed:
        await feed.publish("key", b"")
        with psycopg.connect(server.dsn) as old:
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute(f"SELECT count(*) FROM {table}")
            for _ in range(1010):
                await feed.publish("key", b"")
            await until(lambda: not _trimming(feed))
            assert [(1011,)] == server.execute(f"SELECT max(position) FROM {table}")
            assert [(8192,)] == server.execute("SELECT pg_relation_size(%s)", head)
            assert 800 <= feed._trimmer._above  # where the next removal begins


async def test_error_of_the_removal_is_logged_and_publishing_goes_on(server, table, make_feed, logs):
    """Old events stay meanwhile."""
    async with make_feed(keep=1) as feed:
        await feed.publish("key", b"1")
        await until(lambda: not _trimming(feed))
        server.execute(f"CREATE TABLE other_{(name := uuid.uuid4().hex[:8])} (p bigint REFERENCES {table} (position))")
        server.execute(f"INSERT INTO other_{name} VALUES (1)")
        await feed.aclose()
        await feed.publish("key", b"2")
        await until(lambda: not _trimming(feed))
        assert ["feed_trim_failed"] == [line["event"] for line in logs]
        assert 3 == (await feed.publish("key", b"3")).offset


async def test_connection_is_closed_before_the_removal_has_begun(make_feed):
    """A publisher that is closed directly after a publish leaves no connection."""
    feed = make_feed()
    publisher = await feed.open_publisher()
    await publisher.publish([feed._new_event("key", b"1", None)])
    assert publisher._trimming is not None
    await publisher.close()
    assert publisher._link.closed


def _trimming(feed):
    return any(outbox._publisher._trimming is not None for outbox in feed._outboxes.values())


async def test_publishes_in_transactions_remove_old_events_too(server, table, make_feed):
    """Now and then, as the others do."""
    async with make_feed(keep=10) as feed, await psycopg.AsyncConnection.connect(server.dsn) as mine:
        await feed.publish("key", b"0")
        for _ in range(502):
            await feed.publish_in(mine, "key", b"1")
            await mine.commit()
        ((count,),) = server.execute(f"SELECT count(*) FROM {table}")
        assert 10 <= count <= 12
