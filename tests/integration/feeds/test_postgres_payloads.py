"""Events of ``PostgresFeed`` that come in notifications: when they are believed, and when the table is read instead."""

import asyncio
import base64
import contextlib
import random
import uuid

import attrs
import psycopg
import pytest

from purgatory.feeds import PostgresFeed
from purgatory.feeds.engine import Gap, LogPosition, mark_of
from purgatory.feeds.engines.postgres import _direct
from purgatory.feeds.engines.postgres._direct import DirectStatement
from purgatory.feeds.engines.postgres._payload import head_after, is_old, unpack
from purgatory.feeds.engines.postgres._reader import PostgresReader
from purgatory.testing.feeds import FeedContract
from tests.integration.feeds.test_postgres import PostgresFaults
from tests.support.postgres import postgres, require
from tests.support.threads import in_thread

require()

SERVER = postgres


@pytest.fixture
def table():
    return f"inbox_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_feed(server, table):
    return lambda **settings: PostgresFeed(server.dsn, **{"table": table, **settings})


@pytest.fixture
def feed(make_feed):
    """A feed with one event."""
    elsewhere(make_feed, b"first")
    return make_feed()


@pytest.fixture
def sent(monkeypatch):
    """An entry for each statement that a reader has sent to read events.

    Only what asks for one counts, not the time: a busy machine may need more than a second for two events.
    """
    monkeypatch.setattr(_direct, "_LEAST_S", 3_600)
    sent = []
    send = DirectStatement._send

    def note(self):
        sent.append(self)
        send(self)

    monkeypatch.setattr(DirectStatement, "_send", note)
    return sent


@contextlib.asynccontextmanager
async def reading(feed, sent):
    """A reader at the end, which has asked the server once."""
    reader = await feed.open_reader()
    try:
        await reader.resume(await reader.end())
        for wait_s in (0, 0.05):  # the notification of an earlier event may come yet
            assert [] == await reader.read(10, wait_s)
        sent.clear()
        yield reader
    finally:
        await reader.close()
        await feed.aclose()


async def read(reader, count, most=100):
    """So many events. They must come before the time at which a reader asks by itself."""
    events = []
    async with asyncio.timeout(20):
        while len(events) < count:
            events += await reader.read(most, 60)
    return events


async def read_table(feed, after=0):
    """Every event of the table after an offset."""
    reader = await feed.open_reader()
    try:
        end = await reader.end()
        await reader.resume(LogPosition(end.epoch, after))
        return [event for batch in [await reader.read(1000, 0)] for event in batch]
    finally:
        await reader.close()


async def channels(feed, server):
    """The channels of bells and of payloads."""
    async with await psycopg.AsyncConnection.connect(server.dsn) as connection:
        return (await (await connection.execute(feed._tables.end)).fetchone())[3:]


async def listen(connection, *names):
    for name in names:
        await connection.execute(f'LISTEN "{name}"')


def notify(server, channel, payload):
    server.execute("SELECT pg_notify(%s, %s)", channel, payload)


def forge(position, *, value=b"forged"):
    """A payload that comes next after a position."""
    return head_after(position).decode() + base64.b64encode(b"7\0key\0\0\0" + value).decode()


def elsewhere(make_feed, *values, first=lambda: None):
    """Do something, then publish each value alone on another loop, while this one stands still."""

    async def publish():
        first()
        async with make_feed() as feed:
            for value in values:
                await feed.publish("key", value)

    in_thread(asyncio.run, publish())


# -- events by payload


async def test_event_comes_in_its_notification(feed, sent):
    """No statement is sent for it, and it is the same as in the table."""
    async with reading(feed, sent) as reader:
        for key, value, name in [
            ("key", b"", None),
            ("é ß 漢", bytes(range(256)) * 4, "name"),
            ("", b"a\0b\\ \n", "\U0001f600"),
        ]:
            position = await feed.publish(key, value, id=name)
            (event,) = await read(reader, 1)
            assert (key, value, name, position) == (event.key, event.value, event.id, event.position)
            assert [event] == (await read_table(feed))[-1:]
            sent[:] = [statement for statement in sent if statement is reader._direct]
        assert [] == sent


async def test_trace_comes_in_its_notification(feed, sent):
    """What a tracer of the publisher wants carried is in it."""
    publisher = await feed.open_publisher()
    async with reading(feed, sent) as reader:
        await publisher.publish([attrs.evolve(feed._new_event("key", b"1", None), context="00-é")])
        assert ["00-é"] == [event.context for event in await read(reader, 1)]
        assert [] == sent
    await publisher.close()


async def test_batch_comes_in_notifications(feed, sent):
    """Each event names the one before it in its statement. A read returns at most what it is asked for."""
    async with reading(feed, sent) as reader:
        positions = await asyncio.gather(*(feed.publish("key", b"%d" % number) for number in range(30)))
        batches = [await reader.read(7, 60) for _ in range(5)]
        assert positions == [event.position for batch in batches for event in batch]
        assert 7 == max(map(len, batches))
        assert [] == sent


async def test_transaction_of_a_user_comes_in_notifications(feed, sent, server):
    """Its events come after the commit, and those that were rolled back never."""
    async with reading(feed, sent) as reader, await psycopg.AsyncConnection.connect(server.dsn) as mine:
        await feed.publish_in(mine, "key", b"never")
        await mine.rollback()
        await feed.publish_in(mine, "key", b"1")
        with contextlib.suppress(ZeroDivisionError):
            async with mine.transaction():
                await feed.publish_in(mine, "key", b"never")
                raise ZeroDivisionError
        await feed.publish_in(mine, "key", b"2")
        await mine.commit()
        assert [b"1", b"2"] == [event.value for event in await read(reader, 2)]
        assert [] == sent


async def test_first_event_of_an_epoch_comes_in_its_notification(make_feed, sent):
    """A reader of an empty feed knows that nothing is before it."""
    async with make_feed() as feed, reading(feed, sent) as reader:
        await feed.publish("key", b"1")
        assert [b"1"] == [event.value for event in await read(reader, 1)]
        assert [] == sent


async def test_payload_has_what_a_trigger_has_stored(feed, sent, server, table):
    """A reader by notification and one of the table get the same."""
    server.execute(f"""
        CREATE FUNCTION change_{table}() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN NEW.value = 'changed'; RETURN NEW; END $$;
        CREATE TRIGGER change BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION change_{table}()""")
    async with reading(feed, sent) as reader:
        await feed.publish("key", b"1")
        assert [b"changed"] == [event.value for event in await read(reader, 1)]
        assert [] == sent


async def test_payloads_of_a_database_with_another_encoding(server, table, sent):
    """A key is text in the server's encoding, and a payload has it in UTF-8."""
    server.execute(f"CREATE DATABASE {table} ENCODING LATIN1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    feed = PostgresFeed(server.dsn.replace("/postgres", f"/{table}"), table="inbox")
    async with feed, reading(feed, sent) as reader:
        await feed.publish("é", b"\xff", id="ß")
        assert [("é", b"\xff", "ß")] == [(event.key, event.value, event.id) for event in await read(reader, 1)]
        assert [] == sent


# -- events that the table is read for


@pytest.mark.parametrize("size", [5_800, 6_100, 100_000])
async def test_large_event_is_read_from_the_table(feed, sent, size):
    """It does not fit into a notification. Those after it come in theirs again, also in one batch with it."""
    values = [b"1", b"x" * size, b"2", b"3"]
    async with reading(feed, sent) as reader:
        for value in values:
            await feed.publish("key", value)
            assert [value] == [event.value for event in await read(reader, 1)]
        assert (1 if size > 6000 else 0) == len(sent)
        await asyncio.gather(*(feed.publish("key", value) for value in values))
        assert values == [event.value for event in await read(reader, 4)]


async def test_key_that_is_too_long_for_a_notification(feed, sent):
    """The whole payload counts, and the publish is accepted."""
    async with reading(feed, sent) as reader:
        for size in [*range(5_800, 5_960, 10), 9_000]:
            position = await feed.publish("k" * size, b"1" * 50)
            assert [position] == [event.position for event in await read(reader, 1)]
        assert 1 < len(sent) < 16


async def test_busy_queue_of_notifications_gets_no_payloads(server, table, make_feed, sent):
    """A listener that stands still keeps them on the server's disk. Events are read from the table meanwhile."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.execute(f"CREATE SCHEMA {role}")
    server.execute(f"""
        CREATE FUNCTION {role}.pg_notification_queue_usage() RETURNS float LANGUAGE sql AS 'SELECT 0.1';
        ALTER ROLE {role} SET search_path = {role}, pg_catalog, public
    """)
    async with make_feed() as feed:
        await feed.publish("key", b"0")
        async with (
            reading(feed, sent) as reader,
            PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=f"public.{table}") as busy,
        ):
            await busy.publish("key", b"1")
            assert [b"1"] == [event.value for event in await read(reader, 1)]
            assert 1 == len(sent)


@pytest.mark.parametrize(("most_waiting", "most_taken"), [(5, 1_000), (1_000, 3), (5, 3)])
async def test_reader_that_is_slow_reads_the_rest_from_the_table(
    make_feed, feed, sent, monkeypatch, most_waiting, most_taken
):
    """It keeps a bounded number of events and of notifications, and gets every event once."""
    monkeypatch.setattr(_direct, "_MOST_WAITING", most_waiting)
    monkeypatch.setattr(PostgresReader, "most_events", most_taken)
    async with reading(feed, sent) as reader:
        values = [b"%d" % number for number in range(100)]
        elsewhere(make_feed, *values)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert len(reader._taken) <= most_taken
            assert len(reader._direct._notices) <= most_waiting
        assert values == [event.value for event in await read(reader, 100)]
        assert sent
        assert [] == await reader.read(100, 0)


async def test_reader_that_asks_for_the_end_meanwhile_gets_each_event_once(make_feed, feed, sent):
    """Other statements use the same connection, and drop the notifications that come with their answers."""
    async with reading(feed, sent) as reader:
        values = [b"%d" % number for number in range(60)]
        events = []
        for number in range(0, 60, 6):
            elsewhere(make_feed, *values[number : number + 6])
            await asyncio.sleep(0.001 * (number % 3))
            await reader.end()
            events += await reader.read(4, 60)
        events += await read(reader, 60 - len(events))
        assert values == [event.value for event in events]


# -- what is not believed


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "-",
            "--",
            "hello",
            "7",
            "7-",
            "7-7",
            "7-7-7 ",
            "7-7-7 AAAA",
            "-1--1--1 AA==",
            "é-é-é é",
            "1" * 7_000,
        ),
        *("{epoch}-{next}", "{epoch}-{next}-{mark}", "{epoch}-{next}-{mark} ", "{epoch}-{next}-{mark} AAAA"),
        *("{epoch}-{next}-{mark} é", "{epoch}-{next}-{mark} !", "{epoch}-{next}-{mark} AAAAAAAAAA"),
        *(
            "{epoch}-{next}-{mark} bm93AAAAAA==",
            "{epoch}-{next}-{mark} N/8A/wAAAA==",
        ),  # "now" as the time, a key of 0xff
        *("{epoch}-{next}-0 NwBrAAAAdg==", "{epoch}-{next}-1 NwBrAAAAdg==", "7-{next}-{mark} NwBrAAAAdg=="),
        *("{epoch}-2-{mark} NwBrAAAAdg==", "{epoch}-9-{mark} NwBrAAAAdg==", "{epoch}-" + "9" * 5_000, "{epoch}-²"),
    ],
)
async def test_foreign_notification_does_no_harm(feed, sent, server, text):
    """Whatever it is, and on whichever channel, no event comes of it, and the next one is read."""
    async with reading(feed, sent) as reader:
        await feed.publish("key", b"2")
        (event,) = await read(reader, 1)
        here = event.position
        text = text.format(epoch=here.epoch, next=here.offset + 1, mark=here.mark)
        for channel in await channels(feed, server):
            notify(server, channel, text)
        assert [] == await reader.read(10, 0)
        await feed.publish("key", b"3")
        assert [b"3"] == [event.value for event in await read(reader, 1)]


async def test_payload_on_the_channel_of_bells_is_no_event(feed, sent, server):
    """Any role that can connect can guess its name. It makes the reader ask, and no more."""
    async with reading(feed, sent) as reader:
        bell, channel = await channels(feed, server)
        assert 42 == len(channel)
        notify(server, bell, forge(reader._position))
        assert [] == await reader.read(10, 0)
        await feed.publish("key", b"2")
        assert [b"2"] == [event.value for event in await read(reader, 1)]


async def test_secret_needs_the_right_to_read_the_table(feed, server, table):
    """Another role cannot learn the name of the channel of payloads."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    other = PostgresFeed(server.dsn.replace("purgatory@", f"{role}@"), table=table)
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(other._dsn) as connection:
        connection.execute(f"SELECT secret FROM {table}_head")
    (secret,) = server.execute(f"SELECT secret FROM {table}_head")
    server.execute(f"DELETE FROM {table}_head")
    await feed.aclose()
    await feed.publish("key", b"1")
    assert secret != server.execute(f"SELECT secret FROM {table}_head")[0]
    await feed.aclose()


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize("events", [0, 1, 2])
async def test_event_that_a_reader_of_the_table_forged_is_a_gap(feed, sent, server, events):
    """A role that may read the secret may send an event that is not in the table. Its place tells."""
    async with reading(feed, sent) as reader:
        notify(server, (await channels(feed, server))[1], forge(reader._position))
        assert [b"forged"] == [event.value for event in await read(reader, 1)]
        for number in range(events):
            await feed.publish("key", b"%d" % number)
        with pytest.raises(Gap):
            await reader.read(10, 0.5)


@pytest.mark.guarantee("no gap is silent")
async def test_forged_events_without_an_end_are_a_gap(feed, sent, server):
    """The reader compares its last event with the table now and then, also while payloads continue each other."""
    async with reading(feed, sent) as reader:
        channel = (await channels(feed, server))[1]
        with pytest.raises(Gap):
            async with asyncio.timeout(20):
                while True:
                    notify(server, channel, forge(reader._position))
                    assert [b"forged"] == [event.value for event in await reader.read(10, 1)]


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize("others", [1, 2, 3, 5])
async def test_another_history_at_the_same_offsets_is_a_gap(make_feed, feed, sent, server, table, others):
    """No event of it is read, although its payloads continue each other."""
    async with reading(feed, sent) as reader:
        for number in range(3):
            await feed.publish("key", b"%d" % number)
        await read(reader, 3)

        def lose():
            server.execute(f"DELETE FROM {table} WHERE position > 2")

        elsewhere(make_feed, *(b"other" for _ in range(others)), first=lose)
        with pytest.raises(Gap):
            await reader.read(10, 0.5)


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize("fault", ["TRUNCATE {table}, {table}_head", "DELETE FROM {table}", "DELETE FROM {table}_head"])
async def test_another_epoch_is_a_gap_at_once(make_feed, feed, sent, server, table, fault):
    """Its payloads have another channel. A bell reports it, also if the numbers are those that were read."""
    async with reading(feed, sent) as reader:
        elsewhere(make_feed, b"other", first=lambda: server.execute(fault.format(table=table)))
        with pytest.raises(Gap):
            await read(reader, 1)


@pytest.mark.guarantee("no gap is silent")
async def test_gap_is_noticed_while_payloads_come(make_feed, feed, sent, server, table):
    """A missing event among those that come is not jumped over."""
    async with reading(feed, sent) as reader:
        elsewhere(make_feed, b"2", b"3")
        await read(reader, 2)
        server.execute(f"INSERT INTO {table} SELECT 5, key, value, 'x', context, 7 FROM {table} WHERE position = 3")
        elsewhere(make_feed, b"6", b"7")
        with pytest.raises(Gap):
            await read(reader, 1)


async def test_position_whose_mark_is_not_known_is_read_on_from_by_the_table(make_feed, feed, sent):
    """The first payload after it proves nothing. Those after the answer do."""
    position = await feed.publish("key", b"2")
    async with reading(feed, sent) as reader:
        await reader.resume(LogPosition(position.epoch, position.offset))
        assert [] == await reader.read(10, 0)
        sent.clear()
        for number in range(3):
            await feed.publish("key", b"%d" % number)
            assert [b"%d" % number] == [event.value for event in await read(reader, 1)]
        assert 1 == len(sent)


# -- workers of different versions

#: What an earlier version runs to publish one event, and to make a head.
OLD_PUBLISH = """
WITH head AS (SELECT tableoid, epoch, (SELECT max(position) FROM {table}) AS base FROM {table}_head),
added AS (INSERT INTO {table} (position, key, value, published_ns) SELECT base + 1, 'key', %s, %s FROM head)
SELECT pg_notify('purgatory_' || tableoid, '') FROM head"""
OLD_HEAD = "INSERT INTO {table}_head (epoch) SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


async def test_workers_of_both_versions_publish_to_one_table(feed, sent, server, table):
    """An event without a payload is read from the table at once. The next one of this version comes in its own."""
    async with reading(feed, sent) as reader:
        for number in range(4):
            server.execute(OLD_PUBLISH.format(table=table), b"old", 10**18 + number)
            await feed.publish("key", b"new")
            assert [b"old", b"new"] == [event.value for event in await read(reader, 2)]
        assert len(sent) <= 8


async def test_reader_of_an_earlier_version_is_notified(feed, server):
    """Its channel has a notification for each commit, with or without a payload on the other one."""
    async with feed, await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as old:
        await listen(old, (await channels(feed, server))[0])
        for size in (1, 10_000):
            position = await feed.publish("key", b"x" * size)
            assert [f"{position.epoch}-{position.offset}"] == [
                n.payload async for n in old.notifies(timeout=5, stop_after=1)
            ]


async def test_head_that_an_earlier_version_makes_has_a_secret(make_feed, feed, sent, server, table):
    """So its workers can follow by payloads."""
    await feed.aclose()
    server.execute(f"TRUNCATE {table}, {table}_head")
    server.execute(OLD_HEAD.format(table=table))
    async with make_feed() as other, reading(other, sent) as reader:
        await other.publish("key", b"1")
        assert [b"1"] == [event.value for event in await read(reader, 1)]
        assert [] == sent


class TestTablesOfAnEarlierVersion(FeedContract):
    """They have no secret. Everything is read from the table, and every promise holds."""

    @pytest.fixture
    def make_feed(self, server, table, make_feed):
        create = make_feed().create_sql.split("secret text")[0].rstrip().rstrip(",") + ");"
        server.execute(f"{create} {OLD_HEAD.format(table=table)}")
        return make_feed

    @pytest.fixture
    def faults(self, server, table):
        return PostgresFaults(server, table, f"{table}_head")

    async def test_events_are_read_by_statement(self, make_feed, sent):
        """One per event."""
        async with make_feed() as feed:
            await feed.publish("key", b"0")
            async with reading(feed, sent) as reader:
                for number in range(3):
                    await feed.publish("key", b"%d" % number)
                    assert [b"%d" % number] == [event.value for event in await read(reader, 1)]
                assert 3 == len(sent)

    async def test_secret_that_is_added_later_is_used(self, make_feed, sent, server, table):
        """A publisher that is connected already sends payloads from then on, and a new reader takes them."""
        async with make_feed() as feed:
            await feed.publish("key", b"0")
            server.execute(f"ALTER TABLE {table}_head ADD secret text DEFAULT md5(random()::text)")
            async with reading(feed, sent) as reader:
                await feed.publish("key", b"1")
                assert [b"1"] == [event.value for event in await read(reader, 1)]
                assert [] == sent


# -- races


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.parametrize("rest_s", [0, 0.002])
async def test_payloads_race_with_statements(make_feed, feed, sent, rest_s):
    """Some events are too large for a payload, and the reader is slow at times. Each comes once, in order."""
    draw = random.Random()
    async with reading(feed, sent) as reader:
        count = 150

        async def publish():
            async with make_feed() as other:
                for number in range(0, count, 5):
                    sizes = [draw.choice([1, 10, 7_000]) for _ in range(5)]
                    await asyncio.gather(
                        *(other.publish("key", b"%d " % (number + n) + b"x" * size) for n, size in enumerate(sizes))
                    )
                    await asyncio.sleep(rest_s)

        publishing = asyncio.create_task(asyncio.to_thread(asyncio.run, publish()))
        numbers = []
        async with asyncio.timeout(60):
            while len(numbers) < count:
                if draw.random() < 0.1:
                    await asyncio.sleep(draw.choice([0, 0.001, 0.01]))
                if draw.random() < 0.05:
                    await reader.end()
                events = await reader.read(draw.choice([1, 2, 16, 1000]), draw.choice([0, 0.002, 1]))
                numbers += [int(event.value.partition(b" ")[0]) for event in events]
        assert list(range(count)) == numbers
        assert [] == await reader.read(10, 0)
        await publishing


# -- the format


def test_payload_proves_that_it_comes_next():
    """It begins with its place, and the mark of the event before it."""
    here = LogPosition(7, 4, 0xFFFF_FFFF)
    assert b"7-5-4294967295 " == head_after(here)
    event = unpack(b"7-5-4294967295 NwBrAABjAHYA", here)
    assert ("k", b"v\0", None, "c", 7) == (event.key, event.value, event.id, event.context, event.published_ns)
    assert LogPosition(7, 5, mark_of(7)) == event.position


@pytest.mark.parametrize(
    ("text", "old"),
    [(b"7-4", True), (b"7-5-1 x", True), (b"7-6", False), (b"7-6-1 x", False), (b"6-4", False), (b"8-4", False)]
    + [(text, False) for text in (b"", b"7", b"7-", b"-", b"7--4", b"7-x", b"07-4", b"7-" + b"9" * 5_000)],
)
def test_number_of_a_notification(text, old):
    """One of an event that was read is nothing new. Anything that cannot be read may be."""
    assert old == is_old(text, LogPosition(7, 5, 1))
