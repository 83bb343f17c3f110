"""The parts of feeds: positions, errors, publishing, and the package itself."""

import asyncio
import sys

import pytest

import purgatory.feeds
from purgatory._feed_records import live_feeds
from purgatory.feeds import MemoryFeed, PublishRejected, PublishUncertain
from purgatory.feeds._connections import Backoff
from purgatory.feeds.engine import Disconnected, Gap, LogPosition, check_contiguous, mark_of
from tests.support import PATIENCE_S, output_of
from tests.support.feeds import Scripted, Worker

# -- positions


def test_positions_are_ordered_by_epoch_and_offset():
    """The mark tells two events at one offset apart. They have no order. A mark of 0 is not known."""
    one, other, next_epoch = LogPosition(7, 3, 1), LogPosition(7, 4, 0), LogPosition(8, 0)

    assert one < other < next_epoch
    assert next_epoch > other >= LogPosition(7, 4, 9) >= other
    assert one != other
    another = LogPosition(7, 3, 2)
    assert 2 == len({one, another})
    assert not any((one == another, one >= another, one > another, one < another, one <= another))
    unknown = LogPosition(7, 3)
    assert one >= unknown >= one
    assert not one > unknown
    assert not one < unknown
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


async def answers(*publishes):
    """The kinds of answers."""
    return [type(answer).__name__ for answer in await asyncio.gather(*publishes, return_exceptions=True)]


async def test_publishes_share_batches():
    """What is published while a batch is on its way makes up the next, over the same connection."""
    async with Scripted() as feed:
        first = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(feed.publish("key", b"%d" % number) for number in range(2, 5)))
        assert ([[b"1"], [b"2", b"3", b"4"]], 1) == (feed.batches, feed.opened["publisher"])


@pytest.mark.guarantee("publish says what happened")
@pytest.mark.parametrize("error", [Disconnected("it broke"), asyncio.CancelledError()], ids=["lost", "cancelled"])
async def test_lost_batch_is_uncertain_and_the_next_is_not(error):
    """An error of the engine concerns the batch that was on its way. The next one gets another connection."""

    async def fail(_):
        await asyncio.sleep(0.02)
        raise error

    async with Scripted(publish=[fail]) as feed, asyncio.timeout(PATIENCE_S):
        first = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0.005)
        assert ["PublishUncertain", "LogPosition"] == await answers(first, feed.publish("key", b"2"))
        assert 2 == feed.opened["publisher"]
        statistics = feed.statistics()
        assert (1, 0, 1) == (statistics.published, statistics.rejected, statistics.uncertain)


def so_many(number):
    """An engine that gives another number of answers, so that nobody knows which belongs to which event."""

    async def publish(_):
        return [MemoryFeed().position("1-1-1")] * number

    return publish


@pytest.mark.parametrize(
    ("step", "message", "cause"),
    [
        (ZeroDivisionError("bug"), "bug", ZeroDivisionError),
        (60.0, "no answer within 20 ms", TimeoutError),
        *((so_many(number), f"{number} answers for 2 events", type(None)) for number in (0, 1, 3)),
    ],
    ids=["bug", "no answer", "none", "too few", "too many"],
)
async def test_publish_whose_answer_is_not_known_is_uncertain(step, message, cause):
    """Whatever an engine does, every publisher is answered, with the cause."""
    async with Scripted(publish=[step], publish_timeout_ms=20) as feed:
        found = await asyncio.gather(*(feed.publish("key", b"1") for _ in range(2)), return_exceptions=True)
    assert [(PublishUncertain, cause)] * 2 == [(type(error), type(error.__cause__)) for error in found]
    assert all(message in str(error) for error in found)


@pytest.mark.guarantee("publish says what happened")
async def test_server_that_is_away_rejects_all_that_waits(feed, logs):
    """None of it was sent. Each publisher gets an error of its own, and the log has one line per second."""
    feed.disconnect(away=True)
    found = await asyncio.gather(*(feed.publish("key", b"1") for _ in range(3)), return_exceptions=True)
    assert [PublishRejected] * 3 == [type(error) for error in found]
    assert 3 == len({id(error) for error in found})
    for _ in range(4):
        assert ["PublishRejected"] == await answers(feed.publish("key", b"1"))
    assert 7 == feed.statistics().rejected
    assert 1 == sum(line["event"] == "publish_failed" for line in logs)
    feed.restore()
    await feed.publish("key", b"2")


async def test_cancelled_publish_that_was_not_sent_is_not_sent():
    """It leaves the queue. One that is on its way may be accepted."""
    async with Scripted() as feed:
        tasks = [asyncio.create_task(feed.publish("key", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        assert ["LogPosition", "CancelledError", "LogPosition"] == await answers(*tasks)
        assert [[b"0", b"2"]] == feed.batches


async def test_batch_whose_publishes_were_all_cancelled_is_not_sent():
    """The engine is asked for nothing, and its connection stays."""
    async with Scripted(publish=[0.02]) as feed:
        first = asyncio.create_task(feed.publish("k", b"1"))
        await asyncio.sleep(0.005)
        second = asyncio.create_task(feed.publish("k", b"2"))
        await asyncio.sleep(0)
        second.cancel()
        await first
        await feed.publish("k", b"3")
        assert ([[b"1"], [b"3"]], 1) == (feed.batches, feed.opened["publisher"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from Python 3.12 on")
async def test_publish_under_a_factory_of_eager_tasks(feed):
    """A batch may be sent before its task is known."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await feed.publish("key", b"1")


async def test_closing_answers_every_publish():
    """A batch on its way is uncertain, and what waits behind it is rejected."""
    feed = Scripted(publish=[60.0])
    first = asyncio.create_task(feed.publish("key", b"1"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(feed.publish("key", b"2"))
    await asyncio.sleep(0.01)
    await feed.aclose()
    assert ["PublishUncertain", "PublishRejected"] == await answers(first, second)
    await feed.publish("key", b"3")
    await feed.aclose()


async def test_publish_is_answered_although_the_feed_is_closed_while_its_connection_is_given_up():
    """The answer comes before the connection is closed, which may take a while."""
    feed = Scripted(publish=[OSError("no")], close=[60.0])
    publish = asyncio.create_task(feed.publish("k", b"1"))
    await asyncio.sleep(0.01)
    await feed.aclose()
    async with asyncio.timeout(5):
        assert ["PublishUncertain"] == await answers(publish)


@pytest.mark.guarantee("publish says what happened")
async def test_follow_that_fails_to_start_leaves_the_publishes_of_others():
    """They are answered by the server, not by the end of a following that never was."""
    async with Scripted(publish=[0.05]) as feed:
        publish = asyncio.create_task(feed.publish("key", b"1"))
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with Worker(feed, reload=lambda: 1 // 0):
                pass
        assert ["LogPosition"] == await answers(publish)


# -- the rest


def test_rests_grow_and_are_bounded():
    """Each is about twice as long as the one before, up to two seconds, and never the same for all workers."""
    backoff = Backoff()
    given = [backoff.next_delay_s() for _ in range(20)]

    assert 0.025 <= given[0] <= 0.05
    assert all(1 <= rest <= 2 for rest in given[6:])
    backoff.reset()
    assert backoff.next_delay_s() <= 0.05


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
    wanted = "RedisFeed needs the package 'redis'; pip install 'delayed-operation-purgatory[redis]'"
    assert wanted == output_of(program)[0].strip()


def test_unknown_name_is_an_attribute_error():
    """As for any module."""
    with pytest.raises(AttributeError, match="SqliteFeed"):
        purgatory.feeds.SqliteFeed  # noqa: B018
