"""The feed in memory keeps the contract of all feeds."""

import pytest

from purgatory.feeds import MemoryFeed
from purgatory.testing.feeds import Faults, FeedContract


class MemoryFaults(Faults):
    def __init__(self, feeds):
        self._feeds = feeds

    def cut(self):
        self._feeds[0].disconnect()

    def stop(self):
        self._feeds[0].disconnect(away=True)

    def start(self):
        self._feeds[0].come_back()

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
