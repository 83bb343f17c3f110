"""The feed over Redis keeps the contract of feeds, on a real server that is killed, emptied, trimmed and cut off."""

import uuid

import pytest

from purgatory.feeds import RedisFeed
from purgatory.testing.feeds import Faults, FeedContract
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, need_redis

need_redis()


class RedisFaults(Faults):
    """The connections of the feed go through a proxy. The commands here do not."""

    def __init__(self, server, proxy, stream):
        self.server = server
        self.proxy = proxy
        self.stream = stream

    def cut(self):
        self.proxy.cut()

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def trim(self, keep):
        self.server.ask("XTRIM", self.stream, "MAXLEN", keep)

    def lose_last(self, count):
        ids = [entry for entry, _ in self.server.client().xrevrange(self.stream, count=count + 1)]
        self.server.ask("XDEL", self.stream, *ids[:count])
        self.server.ask("XSETID", self.stream, ids[count])
        self.proxy.cut()

    def empty(self):
        self.server.ask("FLUSHALL")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def stream():
    return f"stream {uuid.uuid4()}"


@pytest.fixture
def url(proxy):
    return f"redis://127.0.0.1:{proxy.port}"


class TestRedisFeed(FeedContract):
    @pytest.fixture
    def make_feed(self, url, stream):
        return lambda **settings: RedisFeed(url, stream=stream, **settings)

    @pytest.fixture
    def faults(self, server, proxy, stream):
        return RedisFaults(server, proxy, stream)
