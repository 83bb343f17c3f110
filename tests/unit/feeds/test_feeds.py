"""The parts of feeds: positions, errors, publishing, and the package itself."""

import asyncio
import subprocess
import sys

import pytest

import purgatory.feeds
from purgatory._events.feeds import live_feeds
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import MemoryFeed, PublishRejected, PublishUncertain
from purgatory.feeds._connections import Rests
from purgatory.feeds.engine import Disconnected, Gap, LogPosition, check_contiguous, mark_of
from tests.support import PATIENCE_S

# -- positions


def test_positions_are_ordered_by_epoch_and_offset():
    """The mark tells two histories apart, and is not part of the order."""
    one, other, next_epoch = LogPosition(7, 3, 1), LogPosition(7, 4, 0), LogPosition(8, 0)

    assert one < other < next_epoch
    assert next_epoch > other >= LogPosition(7, 4, 9) >= other
    assert one != other
    assert {one} == {one, LogPosition(7, 3, 2)}
    assert (1, 0, None) == (one.events_until(other), other.events_until(one), one.events_until(next_epoch))
    with pytest.raises(TypeError):
        assert one < "7-4-0"


def test_mark_is_never_zero():
    """Zero means that it is not known."""
    assert 1 == mark_of(0) == mark_of(1 << 32)
    assert 0xFFFF_FFFF == mark_of(0xFFFF_FFFF)


@pytest.mark.guarantee("no gap is silent")
def test_hole_is_a_gap():
    """Offsets must follow each other, and come directly after the position."""
    check_contiguous(LogPosition(7, 3), [])
    check_contiguous(LogPosition(7, 3), [LogPosition(7, 4), LogPosition(7, 5)])
    for places in ([(7, 5)], [(7, 4), (7, 6)], [(8, 4)], [(7, 3)]):
        with pytest.raises(Gap):
            check_contiguous(LogPosition(7, 3), [LogPosition(*place) for place in places])


# -- publishing


class Fake(MemoryFeed):
    """A feed whose connections do what the test says: a list of results, one for each batch."""

    def __init__(self, *results, **settings):
        super().__init__(**settings)
        self.results = list(results)
        self.batches = []
        self.opened = 0

    async def open_publisher(self):
        self.opened += 1
        publisher = await super().open_publisher()
        inner = publisher.publish

        async def publish(events):
            self.batches.append([event.value for event in events])
            result = self.results.pop(0) if self.results else None
            if isinstance(result, float):
                await asyncio.sleep(result)
            elif result is not None:
                raise result
            return await inner(events)

        publisher.publish = publish
        return publisher


async def answers(*publishes):
    """The kinds of answers."""
    return [type(answer).__name__ for answer in await asyncio.gather(*publishes, return_exceptions=True)]


async def test_publishes_share_batches():
    """What is published while a batch is on its way makes up the next, over the same connection."""
    async with Fake() as feed:
        first = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(feed.publish("key", b"%d" % number) for number in range(2, 5)))
        assert ([[b"1"], [b"2", b"3", b"4"]], 1) == (feed.batches, feed.opened)


@pytest.mark.guarantee("publish says what happened")
async def test_lost_batch_is_uncertain_and_the_next_is_not():
    """A lost connection concerns the batch that was on its way. The next one gets another connection."""
    async with Fake(Disconnected("it broke")) as feed:
        first = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        assert ["PublishUncertain", "LogPosition"] == await answers(first, feed.publish("key", b"2"))
        assert 2 == feed.opened
        statistics = feed.statistics()
        assert (1, 0, 1) == (statistics.published, statistics.rejected, statistics.uncertain)


async def test_bug_of_an_engine_is_an_uncertain_publish():
    """Whatever an engine raises, every publisher is answered, with the cause."""
    async with Fake(ZeroDivisionError("bug")) as feed:
        with pytest.raises(PublishUncertain, match="bug") as raised:
            await feed.publish("key", b"1")
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        await feed.publish("key", b"2")


@pytest.mark.guarantee("publish says what happened")
async def test_cancelled_error_of_an_engine_concerns_one_batch():
    """It is like any other error: its batch is uncertain, and the next one is sent."""
    async with Fake(asyncio.CancelledError()) as feed:
        first = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            assert ["PublishUncertain", "LogPosition"] == await answers(first, feed.publish("key", b"2"))


async def test_missing_answer_is_uncertain():
    """After ``publish_timeout_ms`` the publisher gets an answer."""
    async with Fake(60.0, publish_timeout_ms=20) as feed:
        with pytest.raises(PublishUncertain, match="20 ms"):
            await feed.publish("key", b"1")


@pytest.mark.guarantee("publish says what happened")
async def test_server_that_is_away_rejects_all_that_waits():
    """None of it was sent. Each publisher gets an error of its own."""
    async with Fake() as feed:
        feed.disconnect(away=True)
        found = await asyncio.gather(*(feed.publish("key", b"1") for _ in range(3)), return_exceptions=True)
        assert [PublishRejected] * 3 == [type(error) for error in found]
        assert 3 == len({id(error) for error in found})
        assert 3 == feed.statistics().rejected
        feed.come_back()
        await feed.publish("key", b"2")


async def test_cancelled_publish_that_was_not_sent_is_not_sent():
    """It leaves the queue. One that is on its way may be accepted."""
    async with Fake() as feed:
        tasks = [asyncio.create_task(feed.publish("key", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        assert ["LogPosition", "CancelledError", "LogPosition"] == await answers(*tasks)
        assert [[b"0", b"2"]] == feed.batches


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from Python 3.12 on")
async def test_publish_under_a_factory_of_eager_tasks():
    """A batch may be sent before its task is known."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with Fake() as feed, asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await feed.publish("key", b"1")


async def test_closing_answers_every_publish():
    """A batch on its way is uncertain, and what waits behind it is rejected."""
    feed = Fake(60.0)
    first = asyncio.create_task(feed.publish("key", b"1"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(feed.publish("key", b"2"))
    await asyncio.sleep(0.01)
    await feed.aclose()
    assert ["PublishUncertain", "PublishRejected"] == await answers(first, second)
    await feed.publish("key", b"3")
    await feed.aclose()


@pytest.mark.guarantee("publish says what happened")
async def test_follow_that_fails_to_start_leaves_the_publishes_of_others():
    """They are answered by the server, not by the end of a following that never was."""
    async with Fake(0.05) as feed, AsyncPurgatory("worker") as purgatory:
        publish = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with feed.follow(purgatory, list, reload=lambda: 1 // 0):
                pass
        assert ["LogPosition"] == await answers(publish)


async def test_failed_publishes_are_logged_once_per_second(logs):
    """A server that is away does not fill the log."""
    async with Fake() as feed:
        feed.disconnect(away=True)
        for _ in range(5):
            with pytest.raises(PublishRejected):
                await feed.publish("key", b"1")
    assert 1 == sum(line["event"] == "publish_failed" for line in logs)


# -- the rest


def test_rests_grow_and_are_bounded():
    """Each is about twice as long as the one before, up to two seconds, and never the same for all workers."""
    rests = Rests()
    given = [rests.next_s() for _ in range(20)]

    assert 0.025 <= given[0] <= 0.05
    assert all(1 <= rest <= 2 for rest in given[6:])
    rests.over()
    assert rests.next_s() <= 0.05


def test_live_feeds_are_known_until_they_are_collected():
    """Metrics and the console find them by name, without an import of this package."""
    feed = MemoryFeed("of this test")

    assert feed in live_feeds()
    assert "of this test" == feed.statistics().name
    del feed
    assert "of this test" not in [feed.name for feed in live_feeds()]


@pytest.mark.slow
def test_import_needs_no_client():
    """The package and the feed in memory import no client. An engine without its client names the extra."""
    program = (
        "import sys, purgatory.feeds as feeds\n"
        "assert 'redis' not in sys.modules\n"
        "sys.modules['redis'] = sys.modules['redis.asyncio'] = None\n"
        "try: feeds.RedisFeed\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert "RedisFeed needs the package 'redis'; pip install 'delayed-operation-purgatory[redis]'\n" == done.stdout


def test_unknown_name_is_an_attribute_error():
    """As for any module."""
    with pytest.raises(AttributeError, match="SqliteFeed"):
        purgatory.feeds.SqliteFeed  # noqa: B018
