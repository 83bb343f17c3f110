"""What ``PostgresFeed`` checks without a server."""

import asyncio

import pytest

pytest.importorskip("psycopg")

from purgatory import InvalidSetting
from purgatory.feeds import PostgresFeed

DSN = "postgresql://ann:secret@db.example:5433/app"


@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        (DSN, "PostgreSQL at db.example:5433, database app, table inbox"),
        ("host=one,two dbname=app password=secret", "PostgreSQL at one:5432, two:5432, database app, table inbox"),
        ("postgresql://one:1,two:2/app", "PostgreSQL at one:1, two:2, database app, table inbox"),
        ("", "PostgreSQL at the default address of libpq, table inbox"),
    ],
)
def test_feed_names_its_server_without_the_password(dsn, where):
    """Errors and the repr say where the feed is."""
    feed = PostgresFeed(dsn, table="inbox")
    assert where == feed.where
    assert "secret" not in repr(feed)


@pytest.mark.parametrize(
    ("dsn", "hint"),
    [
        ("redis://ann:secret@localhost", "got 'redis://...'"),
        ("postgresql+psycopg://ann:secret@localhost", "remove the name of the driver"),
        ("postgresql://ann:secret@localhost/app?wrong=1", 'invalid URI query parameter: "wrong"'),
        ("host=localhost password=my secret", "got '...'"),
        (None, "got None"),
        ("postgresql://ann:secret/1@localhost/app", "its port must be a number"),
        ("postgresql://ann:secret@localhost:port/app", "its port must be a number"),
        ("host=a,b port=5432,70000 password=secret", "its port must be a number"),
    ],
)
def test_dsn_that_is_none_is_rejected(dsn, hint):
    """The error says what a DSN is, and does not repeat a password."""
    with pytest.raises(InvalidSetting, match="dsn must be a DSN that libpq accepts") as raised:
        PostgresFeed(dsn, table="inbox")
    assert hint in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("table", ["", "in box", "a.b.c", "1st", '"open', '""', 'a"b', ".a", "a\0b", "x" * 59, None, 7])
def test_name_that_is_none_is_rejected(table):
    """A table is named as in SQL, and PostgreSQL would cut off a longer name."""
    with pytest.raises(InvalidSetting, match="table must be the name of a table of at most 58 bytes"):
        PostgresFeed(DSN, table=table)


@pytest.mark.parametrize(
    ("table", "quoted", "head"),
    [
        ("Inbox", '"inbox"', '"inbox_head"'),
        ("app.inbox", '"app"."inbox"', '"app"."inbox_head"'),
        ('"In ""Box"" 100%".inbox', '"In ""Box"" 100%"."inbox"', '"In ""Box"" 100%"."inbox_head"'),
    ],
)
def test_name_is_read_as_sql_reads_it(table, quoted, head):
    """Letters are folded outside quotes, and nothing in quotes changes."""
    sql = PostgresFeed(DSN, table=table).create_sql
    assert f"CREATE TABLE {quoted} (" in sql
    assert f"CREATE TABLE {head} (" in sql


@pytest.mark.parametrize("setting", [{"keep": 0}, {"keep": "7"}, {"keep_s": 0}, {"max_bytes": 0}, {"name": ""}])
def test_setting_that_cannot_work_is_rejected(setting):
    """It names the setting."""
    with pytest.raises(InvalidSetting, match=next(iter(setting))):
        PostgresFeed(DSN, table="inbox", **setting)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"key": "a\0b"}, "text without NUL"),
        ({"key": "a", "id": "a\0b"}, "text without NUL"),
        ({"key": "a", "id": "x" * 2001}, "at most 2000 bytes"),
    ],
)
def test_event_that_postgresql_cannot_store_is_rejected(event, message):
    """The error comes before anything is sent, so that no other event of a batch is concerned."""
    with pytest.raises(InvalidSetting, match=message):
        asyncio.run(PostgresFeed(DSN, table="inbox").publish(value=b"", **event))
