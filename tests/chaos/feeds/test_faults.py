"""A short run of faults on each engine, with a fixed seed: the long ones are ``make feed-faults``."""

import asyncio
import shutil

import pytest

from tests.chaos.feeds import by_hand
from tests.chaos.feeds.run import Run
from tests.chaos.feeds.servers import SERVERS, STREAM
from tests.chaos.feeds.worker import make_feed
from tests.support.postgres import programs

#: What has to be installed for an engine's server. The one of Kafka is the broker example.
INSTALLED = {"redis": shutil.which("redis-server"), "postgres": programs(), "kafka": True}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", INSTALLED)
def test_no_fault_breaks_a_promise(tmp_path_factory, engine):
    """Under seconds of kills, cuts, stops and trimmed history, nothing is lost, doubled, out of order or missed."""
    if not INSTALLED[engine]:
        pytest.skip(f"the server of {engine} is not installed: run `make programs`")
    folder = tmp_path_factory.mktemp(engine)

    report = Run(engine, folder, seconds=8, seed=4, rate=40, say=print).play()

    assert [] == report.complaints, report.row()
    assert report.deeds.total() >= 4, report.deeds


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED["redis"], reason="redis-server is not installed: run `make programs`")
def test_plain_publish_and_subscribe_loses_events():
    """The faults are real: code by hand over publish and subscribe of Redis loses accepted events."""
    accepted, lost, _, deeds = by_hand.run("redis", 10, seed=7)

    assert accepted > 100, deeds
    assert lost > 0, deeds


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["redis", "postgres"])
def test_lost_and_removed_events_are_those_at_the_ends(tmp_path, engine):
    """``lose`` removes the last events and says which, ``trim`` all but the last, and ``empty`` all of them."""
    if not INSTALLED[engine]:
        pytest.skip(f"the server of {engine} is not installed: run `make programs`")

    async def publish(address):
        async with make_feed(engine, address, STREAM) as feed:
            for number in range(10):
                await feed.publish("key", f"event u{number}".encode())

    def events():
        return [uid for _, uid in sorted(server.history().items())]

    server = SERVERS[engine](tmp_path)
    try:
        server.start()
        assert [] == server.lose(3)  # there is no feed yet
        asyncio.run(publish(server.address(server.port)))
        assert {"u7", "u8", "u9"} == set(server.lose(3))
        assert [f"u{number}" for number in range(7)] == events()
        assert [] == server.lose(7)  # that would be an empty history
        server.trim(2)
        assert ["u5", "u6"] == events()
        server.empty()
        assert [] == events()
    finally:
        server.remove()
