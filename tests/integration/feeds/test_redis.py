"""The feed over Redis keeps the contract of feeds, on a real server that is killed, emptied, trimmed and cut off."""

import asyncio
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from purgatory import InvalidSetting
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import (
    FeedGap,
    FeedUnavailable,
    ForeignStream,
    PublishRejected,
    PublishUncertain,
    RedisFeed,
    UnsupportedServer,
)
from purgatory.testing.feeds import FeedContract
from tests.integration.feeds.conftest import ServerFaults
from tests.support.loops import until
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, need_redis

need_redis()

ROOT = Path(__file__).resolve().parents[3]
LONG_MS = 60_000


class RedisFaults(ServerFaults):
    """The connections of the feed go through a proxy. The commands here do not."""

    def __init__(self, server, proxy, stream):
        super().__init__(server)
        self.proxy = proxy
        self.stream = stream

    def cut(self):
        self.proxy.cut()

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


class Worker:
    """A following whose state is a list of values."""

    def __init__(self, feed, **settings):
        self.purgatory = AsyncPurgatory("worker")
        self.feed = feed
        self.values = []
        self.reloads = 0
        self.following = feed.follow(self.purgatory, self.apply, **{"reload": self.reload, **settings})

    def apply(self, event):
        self.values.append(event.value)
        return [event.key]

    def reload(self):
        self.reloads += 1

    async def applied(self, position):
        await self.following.applied(position, timeout_ms=LONG_MS)

    async def __aenter__(self):
        await self.following.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.following.__aexit__(*error)
        await self.purgatory.shutdown("cancel")


async def published(feed, value, **settings):
    """Publish until it is accepted, by an id."""
    while True:
        try:
            return await feed.publish("key", value, id=f"id of {value}", **settings)
        except (PublishRejected, PublishUncertain):
            await asyncio.sleep(0.02)


# -- what is under the name


@pytest.mark.parametrize("command", [("LPUSH", "x"), ("SET", "x"), ("XADD", "*", "field", "value")])
async def test_something_else_under_the_name_is_an_error(server, url, stream, command):
    """A key of another type, and a stream of another program, are named at the start. A publish changes neither."""
    name, *arguments = command
    server.ask(name, stream, *arguments)
    async with RedisFeed(url, stream=stream) as feed:
        with pytest.raises(ForeignStream, match="choose another name"):
            async with Worker(feed):
                pass
        with pytest.raises(PublishRejected, match="choose another name"):
            await feed.publish("key", b"value")
    if name == "XADD":
        assert 1 == server.ask("XLEN", stream)


@pytest.mark.slow
async def test_key_of_another_type_in_the_place_of_the_stream_ends_the_following(server, url, stream):
    """If another program replaces the stream while it is followed, the block raises ForeignStream."""
    with pytest.raises(ForeignStream, match="choose another name"):
        async with Worker(RedisFeed(url, stream=stream)) as worker:
            await worker.applied(await worker.feed.publish("key", b"1"))
            server.ask("DEL", stream)
            server.ask("LPUSH", stream, "x")
            await asyncio.sleep(LONG_MS / 1000)


@pytest.mark.parametrize(
    ("url", "stream"),
    [
        *(("http://localhost", "x"), ("localhost:6379", "x"), (None, "x"), ("redis://localhost:port", "x")),
        *(("redis://localhost?health_check_interval=soon", "x"), ("redis://localhost", ""), ("redis://localhost", 7)),
        *(("redis://localhost/inbox", "x"), ("redis://localhost/0/1", "x"), ("redis://localhost", "\ud800")),
    ],
)
def test_bad_url_and_bad_name_are_errors(url, stream):
    """They are errors before anything is connected."""
    with pytest.raises(InvalidSetting):
        RedisFeed(url, stream=stream)


def test_password_is_not_shown():
    """Neither the description of a feed nor an error has it."""
    feed = RedisFeed("redis://ann:secret@localhost:7/2", stream="x")

    assert "Redis at localhost:7, database 2, stream 'x'" == feed.where
    assert "secret" not in repr(feed)
    for url in (
        *("http://ann:secret@localhost", "redis://ann:secret/1@localhost", "redis://ann:1@secret@localhost:x"),
        "redis://localhost:x?password=secret",
    ):
        with pytest.raises(InvalidSetting) as raised:
            RedisFeed(url, stream="x")
        assert "secret" not in str(raised.value)


@pytest.mark.slow
async def test_wrong_password_is_named(tmp_path, stream):
    """A server that rejects the password is unavailable, and the error says why."""
    with RedisServer(tmp_path, requirepass="right") as server:  # noqa: SIM117
        with pytest.raises(FeedUnavailable, match=r"(?i)auth|password"):
            async with Worker(RedisFeed(server.url, stream=stream), start_timeout_ms=0):
                pass


async def test_old_server_is_rejected(url, stream, monkeypatch):
    """The error says which version is needed."""
    monkeypatch.setattr("purgatory.feeds.engines.redis._connection._OLDEST", (1000, 2))
    with pytest.raises(UnsupportedServer, match=r"it is Redis \d+\.\d+, and at least 1000\.2 is needed"):
        async with Worker(RedisFeed(url, stream=stream)):
            pass


# -- what the server loses


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.slow
async def test_restart_without_persistence_is_a_gap(tmp_path, stream):
    """A server that starts again with nothing begins another epoch, which every worker notices."""
    with RedisServer(tmp_path, appendonly=False) as server:
        feed = RedisFeed(server.url, stream=stream)
        async with Worker(feed) as worker:
            before = await published(feed, b"before")
            await worker.applied(before)
            server.kill()
            server.start()
            after = await published(feed, b"after")
            await until(lambda: worker.reloads == 2)
            await worker.applied(after)
            await worker.applied(await feed.publish("key", b"last"))
            assert after.epoch > before.epoch
            assert [b"before", b"last"] == [value for value in worker.values if value != b"after"]
            assert 1 == feed.statistics().gaps


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.slow
@pytest.mark.parametrize("lagging", [False, True])
async def test_failover(tmp_path, stream, lagging):
    """After a failover a worker goes on without a gap if the replica has everything, and sees a gap otherwise."""
    (tmp_path / "master").mkdir()
    (tmp_path / "replica").mkdir()
    with (
        RedisServer(tmp_path / "master") as master,
        Proxy(master.port) as proxy,
        RedisServer(tmp_path / "replica", replicaof=f"127.0.0.1 {master.port}") as replica,
    ):
        url = f"redis://127.0.0.1:{proxy.port}"
        feed, sure = RedisFeed(url, stream=stream), RedisFeed(url, stream=stream, replicas=1)
        async with Worker(feed) as worker, sure:
            await worker.applied(await published(sure, b"1"))
            if lagging:
                replica.ask("REPLICAOF", "NO", "ONE")
            await worker.applied(await published(feed if lagging else sure, b"2"))
            proxy.target_port = replica.port
            master.kill()
            replica.ask("REPLICAOF", "NO", "ONE")
            await published(feed, b"3")
            await until(lambda: worker.reloads == 2 or b"3" in worker.values)
            await worker.applied(await feed.publish("key", b"last"))
            assert (2 if lagging else 1, lagging) == (worker.reloads, feed.statistics().gaps == 1)
            assert [b"1", b"2", b"last"] == [value for value in worker.values if value != b"3"]


async def test_replica_is_not_published_to(tmp_path, server, stream):
    """A server that has become a replica counts as unavailable until a master is there."""
    with RedisServer(tmp_path, replicaof=f"127.0.0.1 {server.port}") as replica:
        async with RedisFeed(replica.url, stream=stream) as feed:
            with pytest.raises(PublishRejected, match="replica"):
                await feed.publish("key", b"1")


async def test_missing_replica_makes_a_publish_uncertain(url, stream):
    """With ``replicas=`` an event that too few replicas confirm may be lost by a failover, and the error says so."""
    async with RedisFeed(url, stream=stream, replicas=1, publish_timeout_ms=1_000) as feed:
        with pytest.raises(PublishUncertain, match="0 of 1 replicas"):
            await feed.publish("key", b"1")


@pytest.mark.slow
async def test_repeated_publish_waits_for_the_replica_too(tmp_path, stream):
    """An id that is known counts as accepted only when the replicas have its event, whichever connection asks."""
    (tmp_path / "master").mkdir()
    (tmp_path / "replica").mkdir()
    with (
        RedisServer(tmp_path / "master") as master,
        RedisServer(tmp_path / "replica", replicaof=f"127.0.0.1 {master.port}") as replica,
    ):
        async with RedisFeed(master.url, stream=stream, replicas=1, publish_timeout_ms=1_000) as feed:
            await published(feed, b"0")
            replica.tell(signal.SIGSTOP)
            for _ in range(2):
                with pytest.raises(PublishUncertain, match="0 of 1 replicas"):
                    await feed.publish("key", b"1", id="1")
                await feed.aclose()
            replica.tell(signal.SIGCONT)
            await published(feed, b"0")
            assert 2 == (await feed.publish("key", b"1", id="1")).offset


async def test_history_is_trimmed(server, url, stream):
    """The stream keeps about ``keep`` events."""
    async with RedisFeed(url, stream=stream, keep=100) as feed:
        await asyncio.gather(*(feed.publish("key", b"") for _ in range(1_000)))
    assert 100 <= server.ask("XLEN", stream) < 400


@pytest.mark.guarantee("no gap is silent")
async def test_stream_that_was_removed_and_begun_again_is_a_gap(server, url, stream):
    """A worker that starts makes the stream again, without an event. The server answers waiting reads with no entry."""
    async with RedisFeed(url, stream=stream) as feed, Worker(RedisFeed(url, stream=stream)) as worker:
        await worker.following.applied(await feed.publish("ann", b"1"))
        await until(lambda: server.ask("INFO", "clients")["blocked_clients"] == 1)
        server.ask("DEL", stream)
        async with Worker(feed):
            await until(lambda: worker.reloads == 2)
        assert worker.following.error is None


# -- publishing


@pytest.mark.guarantee("publish says what happened")
async def test_publish_without_an_answer_is_uncertain_and_not_repeated(server, proxy, url, stream):
    """The client sends it once. With the id it can be published again, and is in the stream once."""
    async with RedisFeed(url, stream=stream, publish_timeout_ms=300) as feed:
        await feed.publish("key", b"first")
        proxy.drops_answers = True
        try:
            with pytest.raises(PublishUncertain, match="300 ms"):
                await feed.publish("key", b"second", id="2")
        finally:
            proxy.drops_answers = False
        assert 2 == server.ask("XLEN", stream)
        again = await feed.publish("key", b"second", id="2")
        assert (2, 2) == (again.offset, server.ask("XLEN", stream))


async def test_idle_connection_that_the_server_closed_costs_no_publish(server, url, stream):
    """A publisher looks before it sends, so the first publish after a restart is not uncertain."""
    async with RedisFeed(url, stream=stream) as feed:
        await feed.publish("key", b"1")
        server.cut_connections()
        await asyncio.sleep(0.1)
        await feed.publish("key", b"2")
    assert 2 == server.ask("XLEN", stream)


async def test_full_server_rejects_a_publish(tmp_path, stream):
    """The error has the server's own words, and the feed goes on when there is memory again."""
    with RedisServer(tmp_path) as server:
        async with RedisFeed(server.url, stream=stream) as feed:
            await feed.publish("key", b"1")
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(PublishRejected, match="(?i)memory"):
                await feed.publish("key", b"2", id="2")
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert 2 == (await feed.publish("key", b"2", id="2")).offset


async def test_id_is_forgotten_after_a_time(url, stream):
    """After ``keep_ids_ms`` a publish with the id adds another event."""
    async with RedisFeed(url, stream=stream, keep_ids_ms=1) as feed:
        first = await feed.publish("key", b"1", id="x")
        await asyncio.sleep(0.05)
        assert first < await feed.publish("key", b"1", id="x")


@pytest.mark.slow
async def test_large_events_arrive(url, stream):
    """Events of a megabyte are read in batches that fit into memory."""
    async with Worker(RedisFeed(url, stream=stream)) as worker:
        big = bytes(1_000_000)
        positions = await asyncio.gather(*(worker.feed.publish("key", big) for _ in range(20)))
        await worker.applied(positions[-1])
        assert [big] * 20 == worker.values


# -- faults of the network and of workers


@pytest.mark.slow
async def test_network_that_loses_everything_is_noticed(server, proxy, url, stream):
    """A connection over which nothing comes any more is given up, and the worker catches up over another one."""
    feed = RedisFeed(url, stream=stream, publish_timeout_ms=500)
    direct = RedisFeed(server.url, stream=stream)
    async with Worker(feed) as worker, direct:
        await worker.applied(await feed.publish("key", b"1"))
        proxy.is_frozen = True
        try:
            position = await direct.publish("key", b"2")
            with pytest.raises(PublishUncertain):
                await feed.publish("key", b"3", id="3")
            await until(lambda: not worker.following.is_following)
            assert worker.following.lag_s > 1
        finally:
            proxy.is_frozen = False
        await worker.applied(position)
        await worker.applied(await published(feed, b"4"))
        assert (1, b"2") == (worker.values.count(b"2"), worker.values[1])


async def test_slow_network_costs_nothing(proxy, url, stream):
    """Events arrive once and in order if each packet takes a while."""
    async with Worker(RedisFeed(url, stream=stream)) as worker:
        proxy.delay_s = 0.02
        try:
            values = [b"%d" % number for number in range(50)]
            positions = await asyncio.gather(*(worker.feed.publish("key", value) for value in values))
            await worker.applied(positions[-1])
        finally:
            proxy.delay_s = 0.0
        assert values == worker.values


PROGRAM = """
import asyncio, sys
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import RedisFeed

def apply(event):
    print(event.value.decode(), flush=True)
    return [event.key]

async def main():
    feed = RedisFeed(sys.argv[1], stream=sys.argv[2])
    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, apply):
        print("follows", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.slow
async def test_stopped_process_misses_nothing(server, url, stream):
    """A worker process that stands still for longer than its connections last applies each event once, in order."""
    command = (sys.executable, "-c", PROGRAM, url, stream)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220  # it ends in it
        try:
            assert "follows\n" == await asyncio.to_thread(process.stdout.readline)
            async with RedisFeed(server.url, stream=stream) as feed:
                await feed.publish("key", b"0")
                process.send_signal(signal.SIGSTOP)
                for number in range(1, 100):
                    await feed.publish("key", b"%d" % number)
                server.cut_connections()
                await asyncio.sleep(8)
                process.send_signal(signal.SIGCONT)
                await published(feed, b"100")
            lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(101)]
            assert [f"{number}\n" for number in range(101)] == lines
        finally:
            process.kill()


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.slow
async def test_killed_server_loses_nothing_that_it_has_accepted(tmp_path, stream):
    """Events are published while the server is killed and started again. Each is applied once, in order."""
    with RedisServer(tmp_path) as server:
        feed = RedisFeed(server.url, stream=stream)
        async with Worker(feed) as worker, Worker(RedisFeed(server.url, stream=stream)) as other:
            values = [b"%d" % number for number in range(300)]

            async def publish():
                for value in values:
                    position = await published(feed, value)
                    await asyncio.sleep(0.002)
                return position

            publishing = asyncio.create_task(publish())
            for _ in range(3):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            position = await publishing
            await worker.applied(position)
            await other.applied(position)
            assert values == worker.values == other.values


@pytest.mark.slow
async def test_gap_without_reload_names_the_position(server, url, stream):
    """The error has the position that was applied last, and what the server has instead."""
    with pytest.raises(FeedGap, match="deleted") as raised:
        async with Worker(RedisFeed(url, stream=stream), reload=None) as worker:
            position = await worker.feed.publish("key", b"1")
            await worker.applied(position)
            server.ask("DEL", stream)
            await asyncio.sleep(LONG_MS / 1000)
    assert position == raised.value.position


@pytest.mark.guarantee("leaving does not block")
async def test_leaving_closes_every_connection(server, stream):
    """Nothing stays open on the server."""
    began = time.monotonic()
    async with Worker(RedisFeed(server.url + "/3", stream=stream)) as worker:
        await worker.applied(await worker.feed.publish("key", b"1"))
        assert 2 == str(server.ask("CLIENT", "LIST")).count(" db=3 ")
    await until(lambda: str(server.ask("CLIENT", "LIST")).count(" db=3 ") == 0)
    assert time.monotonic() - began < 10


async def test_stream_that_an_older_copy_replaced_is_a_gap(server, url, stream):
    """Events that come after it have the offsets of others that the worker has applied."""
    async with RedisFeed(url, stream=stream) as feed, Worker(feed) as worker:
        for number in range(8):
            await worker.feed.publish("key", b"%d" % number)
        copy = server.ask("DUMP", stream)
        for number in (8, 9):
            position = await worker.feed.publish("key", b"%d" % number)
        await worker.following.applied(position)
        server.ask("RESTORE", stream, 0, copy, "REPLACE")
        async with RedisFeed(url, stream=stream) as other:
            for number in range(3):
                await other.publish("key", b"new %d" % number)
        await until(lambda: worker.feed.statistics().gaps)


async def test_id_is_unknown_in_a_new_epoch(server, url, stream):
    """The event that had it is gone with the stream, so a repeated publish stores it."""
    async with RedisFeed(url, stream=stream) as feed:
        first = await feed.publish("key", b"1", id="x")
        server.ask("DEL", stream)
        second = await feed.publish("key", b"1", id="x")
        assert first.epoch < second.epoch
        assert 1 == server.ask("XLEN", stream)
        assert second == await feed.publish("key", b"1", id="x")


async def test_id_that_cannot_be_kept_rejects_its_event(server, url, stream):
    """A user who may not write it is told so. Otherwise the event could be there twice."""
    server.ask("ACL", "SETUSER", "noset", "on", ">pw", "~*", "+@all", "-set")
    async with RedisFeed(url.replace("redis://", "redis://noset:pw@"), stream=stream) as feed:
        with pytest.raises(PublishRejected, match="can't run this command|permissions"):
            await feed.publish("key", b"1", id="x")
        assert 0 == server.ask("XLEN", stream)
        await feed.publish("key", b"2")
        assert 1 == server.ask("XLEN", stream)
