"""``PostgresFeed`` while its server is killed, stopped, cut off and failed over, and while workers stand still."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

import psycopg
import pytest

from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedUnavailable, PostgresFeed, PublishRejected, PublishUncertain
from tests.support.loops import until
from tests.support.postgres import PostgresServer, postgres, require
from tests.support.served import ROOT
from tests.support.threads import in_thread

require()

SERVER = postgres


@pytest.fixture
def make_feed(server, proxy):
    """Feeds on one new table. Their connections go through the proxy."""
    table = f"inbox_{uuid.uuid4().hex[:12]}"
    dsn = server.dsn.replace(f":{server.port}/", f":{proxy.port}/")
    return lambda **settings: PostgresFeed(settings.pop("dsn", dsn), table=table, **settings)


@contextlib.asynccontextmanager
async def worker(feed, **settings):
    """A worker that keeps its events in ``following.seen``, and counts its reloads."""
    seen = []

    def apply(event):
        seen.append(event)
        return [event.key]

    def reload():
        following.reloads += 1

    async with AsyncPurgatory("worker") as purgatory:
        following = feed.follow(purgatory, apply, **{"reload": reload, **settings})
        following.seen, following.reloads = seen, 0
        async with following:
            yield following


class History:
    """What publishers were told."""

    def __init__(self):
        self.accepted = {}
        self.rejected = set()
        self.uncertain = set()
        self.ends = False

    async def publish(self, feed, name):
        number = 0
        while not self.ends:
            value = f"{name} {number}".encode()
            number += 1
            try:
                self.accepted[value] = await feed.publish("key", value)
            except PublishRejected:
                self.rejected.add(value)
            except PublishUncertain:
                self.uncertain.add(value)
            await asyncio.sleep(0.002)

    def check(self, seen):
        """What a worker has seen is what publishers were told, once, in order and without a hole."""
        values = [event.value for event in seen]
        assert len(values) == len(set(values)), "an event was applied twice"
        assert not set(self.accepted) - set(values), "an accepted event was lost"
        assert not self.rejected & set(values), "a rejected event was applied"
        assert not set(values) - set(self.accepted) - self.uncertain, "an event came from nowhere"
        assert list(range(1, len(seen) + 1)) == [event.position.offset for event in seen]
        assert all(self.accepted.get(event.value, event.position) == event.position for event in seen)


async def publish_surely(feed, value):
    for _ in range(300):
        try:
            return await feed.publish("key", value, id=f"id of {value}")
        except (PublishRejected, PublishUncertain):
            await asyncio.sleep(0.05)
    raise AssertionError(value)


@pytest.mark.guarantee("publish says what happened")
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "end", "terminate", "cut", "pause", "refuse", "freeze"])
async def test_every_answer_is_true_while_the_server_fails(server, proxy, make_feed, fault):
    """Accepted events are applied once and in order by each worker. Rejected ones never are."""

    def fail():
        if fault in ("kill", "end"):
            getattr(server, fault)()
            server.start()
        elif fault == "terminate":
            server.cut_connections()
        elif fault == "cut":
            proxy.cut()
        elif fault == "pause":
            server.pause()
            time.sleep(1.5)
            server.resume()
        elif fault == "refuse":
            proxy.refuse()
            time.sleep(0.3)
            proxy.accept()
        else:
            proxy.is_frozen = True
            time.sleep(1.5)
            proxy.is_frozen = False

    history = History()
    feeds = [make_feed(publish_timeout_ms=1000) for _ in range(3)]
    async with worker(feeds[0]) as one, worker(feeds[1]) as other:
        publishing = [
            asyncio.create_task(history.publish(feed, f"{name}{number}"))
            for name, feed in enumerate(feeds)
            for number in range(4)
        ]
        for _ in range(4):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(fail)
        history.ends = True
        await asyncio.gather(*publishing)
        last = await publish_surely(feeds[0], b"last")
        history.accepted[b"last"] = last
        for following in (one, other):
            await following.applied(last, timeout_ms=30_000)
            history.check(following.seen)
            assert 1 == following.reloads
        assert history.accepted
    for feed in feeds:
        await feed.aclose()


async def test_publisher_of_a_server_that_became_read_only_connects_again(make_feed):
    """The event was certainly not accepted. The next publish may reach another server."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        (outbox,) = feed._outboxes.values()
        await outbox._publisher._link.execute("SET default_transaction_read_only = on")
        with pytest.raises(PublishRejected, match="read-only"):
            await feed.publish("key", b"2")
        assert 2 == (await feed.publish("key", b"2")).offset


@pytest.mark.slow
async def test_publisher_that_is_stopped_does_not_stop_others(server, make_feed):
    """A process that stands still in the middle of its publishes has no lock that another one waits for."""
    feed = make_feed()
    await feed.publish("key", b"first")
    script = f"""
import asyncio
from purgatory.feeds import PostgresFeed
async def main():
    feed = PostgresFeed({server.dsn!r}, table={feed._tables.name!r})
    async def publish():
        while True:
            await feed.publish("key", b"x" * 20_000)
    await asyncio.gather(*(publish() for _ in range(50)))
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as process:  # noqa: ASYNC220
        try:
            began = (await feed.publish("key", b"")).offset
            await until(
                lambda: server.execute(f"SELECT max(position) > {began} + 50 FROM {feed._tables.name}") == [(True,)]
            )
            for _ in range(20):
                await asyncio.sleep(0.03)
                process.send_signal(signal.SIGSTOP)
                began_s = time.monotonic()
                for _ in range(5):
                    await feed.publish("key", b"")
                assert time.monotonic() - began_s < 2
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
    await feed.aclose()


@pytest.mark.slow
async def test_server_that_hangs_for_long(server, make_feed):
    """Publishes are uncertain after their timeout, the block can be left, and a worker reads on afterwards."""
    feed = make_feed(publish_timeout_ms=1000)
    async with worker(feed) as following:
        await following.applied(await feed.publish("key", b"1"))
        async with worker(make_feed()):
            await asyncio.to_thread(server.pause)
            with pytest.raises(PublishUncertain, match="no answer within 1000 ms"):
                await feed.publish("key", b"2")
            with pytest.raises(PublishRejected, match="no answer within"):
                await feed.publish("key", b"3")
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 3
        with pytest.raises(FeedUnavailable, match="no answer within"):
            async with worker(make_feed(), start_timeout_ms=500):
                pass
        await until(lambda: not following.is_following)
        await asyncio.to_thread(server.resume)
        await following.applied(await publish_surely(feed, b"4"), timeout_ms=30_000)
        assert b"3" not in [event.value for event in following.seen]
        assert (1, 0) == (following.reloads, feed.statistics().gaps)


async def test_answer_that_is_lost_after_the_commit_is_uncertain(server, proxy, make_feed):
    """The event is there, and publishing it again by its id finds it."""
    async with make_feed() as feed:
        await feed.publish("key", b"1")
        with psycopg.connect(server.dsn) as other:
            other.execute(f"SELECT FROM {feed._tables.name}_head FOR UPDATE")
            publishing = asyncio.create_task(feed.publish("key", b"2", id="two"))
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await until(lambda: server.execute(waits))
            proxy.is_frozen = True
        await until(lambda: [(2,)] == server.execute(f"SELECT max(position) FROM {feed._tables.name}"))
        proxy.cut()
        proxy.is_frozen = False
        with pytest.raises(PublishUncertain, match="publish it again if it has an id"):
            await publishing
        assert 2 == (await feed.publish("key", b"2", id="two")).offset
        assert 3 == (await feed.publish("key", b"3")).offset


# -- failover


@pytest.fixture
def pair():
    """A primary, its standby, and a DSN that leads to the one that accepts writes."""
    with postgres() as primary:
        standby = PostgresServer()
        try:
            standby.follow(primary)
            standby.start()
            hosts = f"host=127.0.0.1,127.0.0.1 port={primary.port},{standby.port} user=purgatory dbname=postgres"
            yield primary, standby, f"{hosts} target_session_attrs=read-write"
        finally:
            standby.remove()


def has_first(standby, feed):
    """Whether the standby has received the first event."""
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return standby.execute(f"SELECT max(position) FROM {feed._tables.name}") == [(1,)]


@pytest.mark.guarantee("each event once, in order")
@pytest.mark.slow
async def test_failover_to_a_standby_that_has_everything_is_no_gap(pair, make_feed):
    """Workers and publishers find the new primary, and nothing is reloaded."""
    primary, standby, dsn = pair
    feed = make_feed(dsn=dsn)
    async with worker(feed) as following:
        position = await feed.publish("key", b"1")
        await following.applied(position)
        await until(lambda: has_first(standby, feed))
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.promote)
        await following.applied(await publish_surely(feed, b"2"), timeout_ms=30_000)
        assert [b"1", b"2"] == [event.value for event in following.seen]
        assert (1, 0) == (following.reloads, feed.statistics().gaps)


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1, 2, 5])
async def test_failover_to_a_standby_without_the_last_events_is_a_gap(pair, make_feed, others):
    """A worker that has applied events which the new primary lacks reloads, also if others stand in their place."""
    primary, standby, dsn = pair
    feed = make_feed(dsn=dsn)
    async with worker(feed) as following:
        await following.applied(await feed.publish("key", b"1"))
        await until(lambda: has_first(standby, feed))
        standby.end()
        await following.applied([await feed.publish("key", value) for value in (b"2", b"3")][-1])
        primary.kill()
        standby.start()
        standby.promote()
        alone = make_feed(dsn=standby.dsn)
        for number in range(others):
            publish_elsewhere(alone, b"other %d" % number)  # the worker must not see these one by one
        await until(lambda: following.reloads == 2)
        await following.applied(await publish_surely(feed, b"last"), timeout_ms=30_000)
        assert [b"1", b"2", b"3", b"last"] == [event.value for event in following.seen]


def publish_elsewhere(feed, value):
    """Publish on another loop, while this one stands still."""

    async def publish():
        async with feed:
            await feed.publish("key", value)

    in_thread(asyncio.run, publish())


async def test_standby_is_named(pair, make_feed):
    """The error says what is wrong with the DSN."""
    _, standby, _ = pair
    with pytest.raises(FeedUnavailable, match="read-only standby; name the primary, or add target_session_attrs"):
        async with worker(make_feed(dsn=standby.dsn), start_timeout_ms=0):
            pass
