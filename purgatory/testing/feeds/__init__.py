"""The test suite of feeds: what every engine of ``purgatory.feeds`` promises.

An engine for another system runs it, too. With pytest, subclass :class:`FeedContract` and give it a feed::

    class TestMyFeed(FeedContract):
        @pytest.fixture
        def make_feed(self, my_server):
            stream = f"stream-{uuid.uuid4()}"  # a new one for each test
            return lambda **settings: MyFeed(my_server.url, stream=stream, **settings)

        @pytest.fixture
        def faults(self, my_server, make_feed):
            return MyFaults(my_server)

Faults are what the suite does to the server. A test whose fault is not implemented is skipped. The tests need no plugin
for asyncio.
"""

from __future__ import annotations

import pytest

# Before the imports, so that a failed assertion shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("_blocks", "_clients", "_gaps", "_history", "_order", "_publishing"))
)

from purgatory.testing.feeds._blocks import Blocks
from purgatory.testing.feeds._clients import Clients
from purgatory.testing.feeds._gaps import Gaps
from purgatory.testing.feeds._history import History
from purgatory.testing.feeds._order import Order
from purgatory.testing.feeds._publishing import Publishing
from purgatory.testing.feeds._tools import Faults, MakeFeed

__all__ = ["Faults", "FeedContract"]


class FeedContract(Order, Gaps, History, Clients, Publishing, Blocks):
    """The suite. See the module."""

    @pytest.fixture
    def make_feed(self) -> MakeFeed:
        """Make a feed object. All that one test makes are on one stream. Settings are those of ``Feed``."""
        raise NotImplementedError

    @pytest.fixture
    def faults(self) -> Faults:
        """What this test may do to the server."""
        return Faults()
