"""`PostgresFeed` keeps the contract of all feeds, on a real PostgreSQL that is killed, stopped and emptied."""

import uuid

import pytest

from purgatory.feeds.engines.postgres import PostgresFeed
from purgatory.testing.feeds import Faults, FeedContract
from tests.support.postgres import postgres, require

require()


@pytest.fixture(scope="module")
def server():
    with postgres() as started:
        yield started


@pytest.fixture
def table(server):
    """A name that was never used, with all that a quoted name may have."""
    return f'"In ""Box"" 100% é {uuid.uuid4().hex[:12]}"'


class PostgresFaults(Faults):
    def __init__(self, server, table):
        self._server = server
        self._events = table
        self._head = f'{table[:-1]}_head"'

    def cut(self):
        self._server.cut_connections()

    def stop(self):
        self._server.kill()

    def start(self):
        self._server.start()

    def trim(self, keep):
        last = self._server.execute(f"SELECT last FROM {self._head}")[0][0]
        self._server.execute(f"DELETE FROM {self._events} WHERE position <= {last - keep}")

    def lose_last(self, count):
        self._server.execute(f"UPDATE {self._head} SET last = last - {count}")
        self._server.execute(f"DELETE FROM {self._events} WHERE position > (SELECT last FROM {self._head})")

    def empty(self):
        self._server.execute(f"TRUNCATE {self._events}, {self._head}")


class TestPostgresFeed(FeedContract):
    @pytest.fixture
    def make_feed(self, server, table):
        return lambda **settings: PostgresFeed(server.dsn, table=table, **settings)

    @pytest.fixture
    def faults(self, server, table):
        return PostgresFaults(server, table)
