"""A short run of faults on each engine, with a fixed seed: the long ones are `make feed-faults`."""

import shutil

import pytest

from tests.chaos.feeds import by_hand
from tests.chaos.feeds.run import Run
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
