"""The contract of all feeds: the feed in memory keeps it, and somebody else's engine runs the suite by itself."""

import sys

import pytest

from purgatory.feeds import MemoryFeed
from purgatory.testing.feeds import Faults, FeedContract
from tests.support.programs import ROOT, ended


class MemoryFaults(Faults):
    def __init__(self, feeds):
        self._feeds = feeds

    def cut(self):
        self._feeds[0].disconnect()

    def stop(self):
        self._feeds[0].disconnect(away=True)

    def start(self):
        self._feeds[0].restore()

    def trim(self, keep):
        self._feeds[0].trim(keep)

    def lose_last(self, count):
        self._feeds[0].lose_last(count)

    def empty(self):
        self._feeds[0].restart()


class TestMemoryFeed(FeedContract):
    @pytest.fixture
    def feeds(self):
        return []

    @pytest.fixture
    def make_feed(self, feeds):
        def make(**settings):
            if not feeds:
                feeds.append(MemoryFeed(**settings))
            return feeds[0]

        return make

    @pytest.fixture
    def faults(self, feeds):
        return MemoryFaults(feeds)


#: A suite outside of this project, without its plugins.
TESTS = """
import pytest

from purgatory.feeds import MemoryFeed
from purgatory.testing.feeds import FeedContract


class TestMine(FeedContract):
    @pytest.fixture
    def make_feed(self):
        feeds = []

        def make(**settings):
            if not feeds:
                feeds.append(Mine(**settings))
            return feeds[0]

        return make
"""
MINE = "class Mine(MemoryFeed):\n    pass\n"
LOSES = """
class Mine(MemoryFeed):
    def _append(self, event):
        return self._end if event.id else super()._append(event)
"""


def run(folder, engine):
    """The last line of a run of the suite on an engine."""
    (folder / "test_mine.py").write_text(f"{TESTS}\n\n{engine}", encoding="utf-8")
    command = sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not backlog"
    return ended(*command, cwd=folder, seconds=120, PYTHONPATH=str(ROOT)).stdout


@pytest.mark.slow
def test_tests_whose_fault_is_not_given_are_skipped(tmp_path):
    """An engine begins with a feed, and adds faults one by one."""
    *_, last = run(tmp_path, MINE).splitlines()

    assert "failed" not in last
    assert "passed" in last
    assert "skipped" in last


@pytest.mark.slow
def test_engine_that_loses_events_fails(tmp_path):
    """The suite finds it."""
    output = run(tmp_path, LOSES)

    assert "FAILED test_mine.py::TestMine::test_id_is_accepted_once" in output
