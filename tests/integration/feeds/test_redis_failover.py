"""The feed over Redis through failovers, restores and deploys: of one server, with Sentinel, and in a cluster."""

import asyncio

import pytest

from purgatory import InvalidSetting
from purgatory.feeds import Gone, PublishRejected, PublishUncertain, RedisFeed, UnsupportedServer
from purgatory.feeds.engines.redis import _entries
from purgatory.testing.feeds._tools import Worker
from tests.support.loops import until
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, need_redis
from tests.support.redis_servers import cluster, sentinels

need_redis()

LONG_MS = 60_000


@pytest.fixture
def pair(tmp_path):
    """A master and its replica."""
    (tmp_path / "master").mkdir()
    (tmp_path / "replica").mkdir()
    with (
        RedisServer(tmp_path / "master") as master,
        RedisServer(tmp_path / "replica", replicaof=f"127.0.0.1 {master.port}") as replica,
    ):
        yield master, replica


async def published(feed, value, **settings):
    """Publish until it is accepted, by an id."""
    async with asyncio.timeout(LONG_MS / 1000):
        while True:
            try:
                return await feed.publish("key", value, id=f"id of {value}", **settings)
            except (PublishRejected, PublishUncertain):
                await asyncio.sleep(0.05)


async def replicated(url, stream, value):
    """Publish an event that the replica has."""
    async with RedisFeed(url, stream=stream, replicas=1) as sure:
        return await published(sure, value)


# -- one server and its replica


@pytest.mark.slow
async def test_publisher_of_a_demoted_master_finds_the_new_one(pair):
    """No connection is cut in a planned switch. One publish is rejected, and the next one goes to the new master."""
    master, replica = pair
    with Proxy(master.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        await replicated(url, "inbox", b"0")
        async with RedisFeed(url, stream="inbox") as feed:
            await feed.publish("key", b"1")
            await replicated(url, "inbox", b"2")
            replica.ask("REPLICAOF", "NO", "ONE")
            proxy.target_port = replica.port
            master.ask("REPLICAOF", "127.0.0.1", replica.port)
            with pytest.raises(PublishRejected, match="READONLY"):
                await feed.publish("key", b"3")
            assert 4 == (await feed.publish("key", b"3")).offset


@pytest.mark.slow
async def test_master_without_its_replicas_is_asked_over_another_connection(tmp_path):
    """It may be one that was left alone. The event was certainly not accepted."""
    with RedisServer(tmp_path, min_replicas_to_write=1) as server:
        async with RedisFeed(server.url, stream="inbox") as feed:
            with pytest.raises(PublishRejected, match="NOREPLICAS"):
                await feed.publish("key", b"1", id="1")
            server.ask("CONFIG", "SET", "min-replicas-to-write", 0)
            assert 1 == (await feed.publish("key", b"1", id="1")).offset


@pytest.mark.guarantee("read your writes")
@pytest.mark.slow
async def test_new_event_is_not_taken_for_a_lost_one(pair):
    """A worker that has not noticed the failover has applied other events at the new event's offset."""
    master, replica = pair
    with Proxy(master.port) as proxy, Proxy(master.port) as slow:
        feed = RedisFeed(f"redis://127.0.0.1:{slow.port}", stream="inbox")
        async with RedisFeed(f"redis://127.0.0.1:{proxy.port}", stream="inbox") as publisher:
            await replicated(master.url, "inbox", b"1")
            async with Worker(feed) as worker:
                replica.ask("REPLICAOF", "NO", "ONE")
                for number in range(3):
                    lost = await publisher.publish("key", b"lost %d" % number)
                await worker.applied(lost)
                slow.is_frozen = True
                master.kill()
                proxy.target_port = slow.target_port = replica.port
                new = await published(publisher, b"new")
                with pytest.raises(Gone, match="another event"):
                    await worker.applied(new)
                slow.is_frozen = False
                slow.cut()
                await until(lambda: worker.reloads == 2 and worker.following.is_following)
                for number in range(3):
                    await worker.applied(await published(publisher, b"after %d" % number))
                with pytest.raises(Gone, match="another event"):
                    await worker.applied(lost)


# -- an older copy


async def test_id_whose_event_a_restore_has_removed_is_accepted_again(tmp_path):
    """Its key is still there. The event that it leads to is not, or it is another one."""
    with RedisServer(tmp_path) as server:
        async with RedisFeed(server.url, stream="inbox") as feed, Worker(feed) as worker:
            await feed.publish("key", b"1")
            copy = server.ask("DUMP", "inbox")
            await worker.applied(await feed.publish("key", b"2", id="2"))
            server.ask("RESTORE", "inbox", 0, copy, "REPLACE")
            await until(lambda: worker.reloads == 2 and worker.following.is_following)
            again = await feed.publish("key", b"2", id="2")
            await worker.applied(again)
            assert again == await feed.publish("key", b"2", id="2")
            server.ask("RESTORE", "inbox", 0, copy, "REPLACE")
            await feed.publish("key", b"other")
            third = await feed.publish("key", b"2", id="2")
            assert 3 == third.offset == server.ask("XLEN", "inbox")


@pytest.mark.guarantee("no gap is silent")
async def test_unread_end_that_was_deleted_is_a_gap(tmp_path):
    """A worker that was away has not read it. It notices although no other event comes."""
    with RedisServer(tmp_path) as server, Proxy(server.port) as proxy:
        feed = RedisFeed(f"redis://127.0.0.1:{proxy.port}", stream="inbox")
        async with RedisFeed(server.url, stream="inbox") as publisher, Worker(feed) as worker:
            await worker.applied(await publisher.publish("key", b"1"))
            proxy.is_frozen = True
            proxy.cut()
            lost = await publisher.publish("key", b"2")
            server.ask("XDEL", "inbox", f"{lost.epoch}-{lost.offset}")
            proxy.is_frozen = False
            proxy.cut()
            await until(lambda: worker.feed.statistics().gaps == 1 and worker.following.is_following)
            await worker.applied(await publisher.publish("key", b"3"))
            assert [b"1", b"3"] == worker.values


async def test_history_with_a_hole_begins_after_it(tmp_path):
    """Somebody has removed an entry. A worker that begins with the last events applies those after the hole."""
    with RedisServer(tmp_path) as server:
        async with RedisFeed(server.url, stream="inbox") as feed:
            positions = [await feed.publish("key", b"%d" % number) for number in range(10)]
            server.ask("XDEL", "inbox", f"{positions[6].epoch}-{positions[6].offset}")
            async with Worker(RedisFeed(server.url, stream="inbox"), reload=None, history=8) as worker:
                await worker.applied(await feed.publish("key", b"last"))
                assert [b"7", b"8", b"9", b"last"] == worker.values


# -- a rolling deploy


class WithoutMarks:
    """Entries as an earlier version wrote them."""

    def __enter__(self):
        self.script = _entries.PUBLISH.text
        old = _entries.Script(self.script.decode().replace(", 'after', before)", ")"))
        assert old.text != self.script
        self.sha, _entries.PUBLISH.text, _entries.PUBLISH.sha = _entries.PUBLISH.sha, old.text, old.sha

    def __exit__(self, *_):
        _entries.PUBLISH.text, _entries.PUBLISH.sha = self.script, self.sha


async def test_entries_of_an_earlier_version_are_read(tmp_path):
    """Publishers of both versions take turns. A lost end is noticed in the older entries, too."""
    with RedisServer(tmp_path) as server:
        async with RedisFeed(server.url, stream="inbox") as feed, Worker(feed) as worker:
            for number in range(0, 40, 2):
                with WithoutMarks():
                    await worker.applied(await feed.publish("key", b"%d" % number, id=f"{number}"))
                await worker.applied(await feed.publish("key", b"%d" % (number + 1)))
            assert [b"%d" % number for number in range(40)] == worker.values
            fields = {len(entry) for _, entry in server.ask("XRANGE", "inbox", "-", "+")}
            assert {1, 2} == fields or {2, 4} == fields
            copy = server.ask("DUMP", "inbox")
            with WithoutMarks():
                await worker.applied(await feed.publish("key", b"lost"))
                server.ask("RESTORE", "inbox", 0, copy, "REPLACE")
                for _ in range(2):
                    await feed.publish("key", b"other")
            await until(lambda: feed.statistics().gaps)


# -- Sentinel


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.slow
async def test_feed_follows_the_master_of_sentinel(tmp_path):
    """The master is killed, and its replica promoted. Events that it has are applied once, in order, without a gap."""
    with sentinels(tmp_path) as watched:
        settings = {"stream": "inbox", "sentinels": ["redis://127.0.0.1:1", *watched.urls]}
        async with RedisFeed("redis://mymaster", **settings) as feed, Worker(feed) as worker:
            async with RedisFeed("redis://mymaster", replicas=1, name="sure", **settings) as sure:
                for number in range(10):
                    position = await published(sure, b"%d" % number)
            await worker.applied(position)
            old = watched.master()
            old.kill()
            await worker.applied(await published(feed, b"10"))
            old.start()  # Sentinel makes it a replica
            await until(lambda: old.ask("ROLE")[0] == b"slave")
            await worker.applied(await published(feed, b"11"))
            assert [b"%d" % number for number in range(12)] == worker.values
            assert (1, 0) == (worker.reloads, feed.statistics().gaps)


@pytest.mark.slow
async def test_demotion_by_sentinel_is_followed(tmp_path):
    """A planned failover. The publisher and the follower leave the old master, although it still answers."""
    with sentinels(tmp_path) as watched:
        feed = RedisFeed("redis://mymaster", stream="inbox", sentinels=watched.urls)
        async with feed, Worker(feed) as worker:
            await worker.applied(await published(feed, b"0"))
            old = watched.master()
            client = RedisFeed(watched.urls[0], stream="x")._servers._seeds[0].make_connection()
            await client.connect()
            await client.send_command("SENTINEL", "FAILOVER", "mymaster")
            await client.read_response()
            await client.disconnect()
            await until(lambda: old.ask("ROLE")[0] == b"slave")
            for number in range(1, 5):
                await worker.applied(await published(feed, b"%d" % number))
            assert b"4" == worker.values[-1]
            assert len(worker.values) == len(set(worker.values))


async def test_master_that_no_sentinel_knows_is_unavailable():
    """The error names it, and the Sentinels without their passwords."""
    feed = RedisFeed("redis://mymaster", stream="inbox", sentinels="redis://ann:secret@127.0.0.1:1")
    assert "Redis master 'mymaster' of Sentinel at 127.0.0.1:1, database 0, stream 'inbox'" == feed.where
    async with feed:
        with pytest.raises(PublishRejected, match="no Sentinel knows a master 'mymaster'"):
            await feed.publish("key", b"1")


@pytest.mark.parametrize("arguments", [{"url": []}, {"url": ["redis://a", "redis://b"], "sentinels": ["redis://c"]}])
def test_urls_that_name_no_server_are_errors(arguments):
    """There is one master with Sentinels, and at least one server without."""
    with pytest.raises(InvalidSetting):
        RedisFeed(**arguments, stream="inbox")


# -- a cluster


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["inbox", "orders", "{app}inbox", "in{box"])
async def test_stream_of_a_cluster_is_found_from_any_node(nodes, stream):
    """Its ids are in the same slot, and are accepted once."""
    for url in nodes.urls:
        async with RedisFeed(url, stream=stream) as feed, Worker(feed, reload=None, history=100) as worker:
            first = await feed.publish("key", b"1", id="1")
            await worker.applied(await feed.publish("key", b"2"))
            assert first == await feed.publish("key", b"1", id="1")
            assert 1 == worker.values.count(b"1")


@pytest.mark.slow
async def test_stream_whose_ids_would_be_elsewhere_is_rejected(nodes):
    """A brace in its name makes the slots differ."""
    async with RedisFeed(nodes.urls, stream="in}box") as feed:
        with pytest.raises(UnsupportedServer, match="hash tag"):
            async with Worker(feed):
                pass
        with pytest.raises(PublishRejected, match="hash tag"):
            await feed.publish("key", b"1")


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.slow
async def test_failover_of_a_node_is_followed(nodes):
    """The node that has the stream is killed. Events that its replica has are applied once, in order."""
    settings = {"stream": "failover"}
    async with RedisFeed(nodes.urls[:2], **settings) as feed, Worker(feed) as worker:
        async with RedisFeed(nodes.urls[:2], replicas=1, name="sure", **settings) as sure:
            for number in range(10):
                position = await published(sure, b"%d" % number)
        await worker.applied(position)
        old = nodes.owner("failover")
        old.kill()
        await worker.applied(await published(feed, b"10"))
        old.start()
        await until(lambda: old.ask("ROLE")[0] == b"slave")
        await worker.applied(await published(feed, b"11"))
        assert [b"%d" % number for number in range(12)] == worker.values
        assert (1, 0) == (worker.reloads, feed.statistics().gaps)
