"""The metrics of feeds: one series per name, read from the feed's own counters."""

import asyncio
import gc

import pytest
from prometheus_client import generate_latest

from purgatory.feeds import FeedGap, FeedUnavailable, MemoryFeed, PublishRejected
from purgatory.metrics import register
from tests.support.feeds import Worker
from tests.support.loops import until


@pytest.fixture
def scraped(registry, value, request):
    """The values of these metrics of the feed of this test."""
    register(registry)
    return lambda *names, **labels: [value(f"feed_{name}", feed=request.node.name, **labels) for name in names]


@pytest.fixture
def feed(request):
    """The feed of this test. A test that is a coroutine gets it open."""
    return MemoryFeed(request.node.name)


def check(event):
    """An ``apply`` that fails on one value."""
    if event.value == b"bad":
        raise ZeroDivisionError
    return [event.key]


async def test_worker_in_good_health(scraped, feed):
    """Position, lag and counters are those of the feed."""
    async with Worker(feed, apply=check, reload=lambda: None) as worker:
        await worker.publish(b"1", b"bad", b"3")
        await until(lambda: scraped("lag_seconds") == [0])
        assert [1, 3, 0] == scraped("following", "position_events", "lag_events")
        assert [2, 1, 3] == scraped("events_applied_total", "events_skipped_total", "events_published_total")
        assert [0, 1, 0] == scraped("gaps_total", "reloads_total", "reload_errors_total")


async def test_lost_connection_and_gap_show(scraped, feed):
    """A worker without a connection does not follow and lags. Afterwards, reconnections and gaps are counted."""
    async with Worker(feed, reload=lambda: None) as worker:
        feed.disconnect(away=True)
        await until(lambda: not worker.following.is_following)
        with pytest.raises(PublishRejected):
            await feed.publish("key", b"1")
        assert [0, 1, None] == scraped("following", "publishes_rejected_total", "lag_events")
        assert [0] < scraped("lag_seconds")
        feed.restart()
        feed.restore()
        await until(lambda: worker.following.is_following)
        assert [1, 1] == scraped("following", "gaps_total")
        assert [1, 2] == scraped("reconnections_total", "reloads_total")


async def test_publish_time_is_a_histogram(scraped, feed):
    """Each accepted publish is in a bucket, and the buckets are those of the other histograms."""
    for _ in range(3):
        await feed.publish("key", b"1")

    assert [3] == scraped("publish_seconds_count") == scraped("publish_seconds_bucket", le="+Inf")
    assert [0] < scraped("publish_seconds_sum") < [60]
    assert [None] != scraped("publish_seconds_bucket", le=repr(2**14 / 1e9))


async def test_process_that_only_publishes_has_no_gauges(scraped, feed):
    """It follows nothing, which is no failure."""
    await feed.publish("key", b"1")

    assert [None] * 4 == scraped("following", "position_events", "lag_events", "lag_seconds")
    assert [1] == scraped("events_published_total")


async def test_worker_that_stopped_with_an_error_does_not_follow_until_another_does(scraped, feed):
    """A web server that logs the error and serves on is seen. A start that fails does not hide it."""
    with pytest.raises(FeedGap):
        async with Worker(feed):
            feed.restart()
            await asyncio.sleep(60)
    assert [0] == scraped("following")
    feed.disconnect(away=True)
    with pytest.raises(FeedUnavailable):
        async with Worker(feed, start_timeout_ms=0):
            pass
    assert [0] == scraped("following")
    feed.restore()
    async with Worker(feed):
        assert [1] == scraped("following")
    assert [None] == scraped("following")


async def test_namesakes_are_one_series_and_the_one_behind_counts(scraped, feed):
    """Counters are added up. If one of two does not follow, the series says so, and shows its position."""
    async with Worker(feed) as one, Worker(MemoryFeed(feed.name)) as other:
        await one.publish(b"1")
        await other.publish(b"1", b"2")
        assert [1, 1, 3] == scraped("following", "position_events", "events_applied_total")
        feed.disconnect(away=True)
        await until(lambda: not one.following.is_following)
        assert [0] == scraped("following")
        assert [0] < scraped("lag_seconds")
        feed.restore()


def test_series_ends_with_its_feed(scraped, registry):
    """The collector keeps no feed alive."""
    feed = MemoryFeed(test_series_ends_with_its_feed.__name__)
    assert [0] == scraped("events_published_total")
    del feed
    gc.collect()
    assert b"test_series_ends_with_its_feed" not in generate_latest(registry)


def test_name_without_an_encoding_is_exported(registry):
    """A lone surrogate in a name does not break the page."""
    register(registry)
    feed = MemoryFeed("\ud800")
    assert rb'feed="\\ud800"' in generate_latest(registry)
    assert "\ud800" == feed.name
