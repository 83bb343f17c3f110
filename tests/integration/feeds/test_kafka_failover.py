"""A topic whose leader goes: what a worker sees if the next one lacks events that were accepted."""

import asyncio
import socket
import struct
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedGap, Gone, KafkaFeed, PublishRejected, PublishUncertain, UnsupportedServer
from purgatory.testing.feeds._tools import until
from tests.support.kafka import Cluster, patiently

PATIENCE_MS = 60_000
TOPIC = "inbox"


@pytest.fixture
def cluster(tmp_path):
    """Two nodes."""
    cluster = Cluster(tmp_path, 2, ["--session-ms", "2000", "--leader-rebalance-ms", "0"]).start()
    yield cluster
    cluster.stop()


def make_topic(cluster, **config):
    """A topic with a replica on each of both nodes."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config=config)
    admin.create_topics([new], operation_timeout=30)[TOPIC].result(30)


def partition(cluster):
    """The partition, as a node that runs knows it."""
    return cluster._ask().topics[TOPIC].partitions.get(0)


def await_partition(cluster, holds):
    """Wait until a node knows this of the partition."""
    deadline = time.monotonic() + 60
    while not ((found := partition(cluster)) and holds(found)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def elect_unclean_leader(cluster):
    """Have node 2 lead, which lacks what node 1 has accepted alone."""
    cluster.nodes[1].kill()
    cluster.nodes[2].start()
    await_partition(cluster, lambda found: found.leader == -1)
    request_unclean_election(cluster.ports[1])
    await_partition(cluster, lambda found: found.leader == 2)


def request_unclean_election(port):
    """Ask for it as ``kafka-leader-election`` does. The clients at hand cannot."""
    unclean, timeout_ms, name = 1, 30_000, TOPIC.encode()
    topic = struct.pack(f">ih{len(name)}sii", 1, len(name), name, 1, 0)
    request = struct.pack(">hhih", 43, 1, 7, -1) + struct.pack(">b", unclean) + topic + struct.pack(">i", timeout_ms)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(struct.pack(">i", len(request)) + request)
        assert sock.recv(4, socket.MSG_WAITALL)


def keep(seen):
    def apply(event):
        seen.append(event.value)
        return [event.key]

    return apply


async def publish(feed, value):
    """Publish, until it is accepted. The first one after such an election is uncertain."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await feed.publish("key", value, id=value.decode())
            except (PublishRejected, PublishUncertain):
                await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.guarantee("no gap is silent")
async def test_unclean_election_is_a_gap_for_a_worker_that_has_read_a_lost_event(cluster):
    """Its state is read again. A worker that has not read the event cannot know that there was one."""
    make_topic(cluster)
    async with (
        KafkaFeed(cluster.bootstrap, topic=TOPIC) as feed,
        KafkaFeed(cluster.bootstrap, topic=TOPIC) as other,
        AsyncPurgatory("worker") as purgatory,
        AsyncPurgatory("late") as late,
    ):
        kept = await feed.publish("key", b"kept")
        await asyncio.to_thread(cluster.nodes[2].kill)
        await asyncio.to_thread(await_partition, cluster, lambda found: found.isrs == [1])
        seen, unread, others = [], [], []
        ending = asyncio.create_task(follow_until_gap(other, began := asyncio.Event(), others))
        async with feed.follow(purgatory, keep(seen), reload=lambda: kept) as following:
            await began.wait()
            lost = await publish(feed, b"lost")
            await following.applied(lost, timeout_ms=PATIENCE_MS)
            await until(lambda: others == [b"lost"])
            await asyncio.to_thread(elect_unclean_leader, cluster)
            await until(lambda: following.is_following and feed.statistics().gaps)
            async with other.follow(late, keep(unread), reload=lambda: kept) as late_following:
                new = await publish(feed, b"new")
                await following.applied(new, timeout_ms=PATIENCE_MS)
                await late_following.applied(new, timeout_ms=PATIENCE_MS)
            assert [b"lost", b"new"] == seen
            assert [b"new"] == unread
            assert 1 == feed.statistics().gaps
            with pytest.raises(Gone, match="another event is in its place"):
                await following.applied(lost)
        assert str(lost) == await ending


async def follow_until_gap(feed, began, seen):
    """Follow without ``reload``. Returns the position of the gap."""
    async with AsyncPurgatory("ends") as purgatory:
        try:
            async with feed.follow(purgatory, keep(seen)):
                began.set()
                await asyncio.sleep(120)
        except FeedGap as gap:
            return str(gap.position)


@pytest.mark.slow
async def test_topic_that_elects_unclean_leaders_by_itself_is_rejected(cluster):
    """Its events would be lost without anybody's decision."""
    make_topic(cluster, **{"unclean.leader.election.enable": "true"})
    assert patiently(cluster.bootstrap, TOPIC)
    async with KafkaFeed(cluster.bootstrap, topic=TOPIC) as feed, AsyncPurgatory("worker") as purgatory:
        with pytest.raises(UnsupportedServer, match=r"unclean\.leader\.election\.enable=true, which loses events"):
            async with feed.follow(purgatory, lambda event: []):
                pass
