"""The metrics of feeds: one series per name, read from the feed's own counters."""

import asyncio
import gc

import pytest
from prometheus_client import generate_latest

from purgatory.feeds import FeedGap, FeedUnavailable, MemoryFeed, PublishRejected
from purgatory.metrics import register
from tests.support.feeds import Worker
from tests.support.loops import until


class Scrapes:
    """The metrics of the feed of one test, without the prefix."""

    def __init__(self, registry, name):
        register(registry)
        self.name = name
        self._registry = registry

    def __getitem__(self, name):
        return self._registry.get_sample_value(f"purgatory_feed_{name}", {"feed": self.name})

    def bucket(self, bound):
        labels = {"feed": self.name, "le": bound}
        return self._registry.get_sample_value("purgatory_feed_publish_seconds_bucket", labels)

    def of(self, *names):
        return [self[name] for name in names]


@pytest.fixture
def scrapes(registry, request):
    return Scrapes(registry, request.node.name)


@pytest.fixture
def feed(scrapes):
    """The feed of this test. A test that is a coroutine gets it open."""
    return MemoryFeed(scrapes.name)


def check(event):
    """An ``apply`` that fails on one value."""
    if event.value == b"bad":
        raise ZeroDivisionError
    return [event.key]


async def test_worker_in_good_health(scrapes, feed):
    """Position, lag and counters are those of the feed."""
    async with Worker(feed, apply=check, reload=lambda: None) as worker:
        await worker.publish(b"1", b"bad", b"3")
        await until(lambda: scrapes["lag_seconds"] == 0)
        assert [1, 3, 0] == scrapes.of("following", "position_events", "lag_events")
        assert [2, 1, 3] == scrapes.of("events_applied_total", "events_skipped_total", "events_published_total")
        assert [0, 1, 0] == scrapes.of("gaps_total", "reloads_total", "reload_errors_total")


async def test_lost_connection_and_gap_show(scrapes, feed):
    """A worker without a connection does not follow and lags. Afterwards, reconnections and gaps are counted."""
    async with Worker(feed, reload=lambda: None) as worker:
        feed.disconnect(away=True)
        await until(lambda: not worker.following.is_following)
        with pytest.raises(PublishRejected):
            await feed.publish("key", b"1")
        assert [0, 1, None] == scrapes.of("following", "publishes_rejected_total", "lag_events")
        assert 0 < scrapes["lag_seconds"]
        feed.restart()
        feed.come_back()
        await until(lambda: worker.following.is_following)
        assert [1, 1] == scrapes.of("following", "gaps_total")
        assert [1, 2] == scrapes.of("reconnections_total", "reloads_total")


async def test_publish_time_is_a_histogram(scrapes, feed):
    """Each accepted publish is in a bucket, and the buckets are those of the other histograms."""
    for _ in range(3):
        await feed.publish("key", b"1")

    assert 3 == scrapes["publish_seconds_count"]
    assert 0 < scrapes["publish_seconds_sum"] < 60
    assert 3 == scrapes.bucket("+Inf")
    assert scrapes.bucket(repr(2**14 / 1e9)) is not None


async def test_process_that_only_publishes_has_no_gauges(scrapes, feed):
    """It follows nothing, which is no failure."""
    await feed.publish("key", b"1")

    assert [None] * 4 == scrapes.of("following", "position_events", "lag_events", "lag_seconds")
    assert 1 == scrapes["events_published_total"]


async def test_worker_that_stopped_with_an_error_does_not_follow_until_another_does(scrapes, feed):
    """A web server that logs the error and serves on is seen. A start that fails does not hide it."""
    with pytest.raises(FeedGap):
        async with Worker(feed):
            feed.restart()
            await asyncio.sleep(60)
    assert 0 == scrapes["following"]
    feed.disconnect(away=True)
    with pytest.raises(FeedUnavailable):
        async with Worker(feed, start_timeout_ms=0):
            pass
    assert 0 == scrapes["following"]
    feed.come_back()
    async with Worker(feed):
        assert 1 == scrapes["following"]
    assert scrapes["following"] is None


async def test_namesakes_are_one_series_and_the_one_behind_counts(scrapes, feed):
    """Counters are added up. If one of two does not follow, the series says so, and shows its position."""
    async with Worker(feed) as one, Worker(MemoryFeed(scrapes.name)) as other:
        await one.publish(b"1")
        await other.publish(b"1", b"2")
        assert [1, 1, 3] == scrapes.of("following", "position_events", "events_applied_total")
        feed.disconnect(away=True)
        await until(lambda: not one.following.is_following)
        assert 0 == scrapes["following"]
        assert 0 < scrapes["lag_seconds"]
        feed.come_back()


async def test_series_ends_with_its_feed(scrapes, registry):
    """The collector keeps no feed alive."""
    feed = MemoryFeed(scrapes.name)
    assert 0 == scrapes["events_published_total"]
    del feed
    gc.collect()
    assert f'feed="{scrapes.name}"'.encode() not in generate_latest(registry)


async def test_name_without_an_encoding_is_exported(registry):
    """A lone surrogate in a name does not break the page."""
    register(registry)
    feed = MemoryFeed("\ud800")
    assert rb'feed="\\ud800"' in generate_latest(registry)
    assert "\ud800" == feed.name
