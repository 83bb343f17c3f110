import pytest

from purgatory.feeds import MemoryFeed
from tests.support.feeds import Worker


@pytest.fixture
def feed():
    """A feed in memory. A test that is a coroutine gets it open."""
    return MemoryFeed()


@pytest.fixture
def worker(feed):
    """A worker that follows the feed by the time that a test which is a coroutine begins."""
    return Worker(feed)
