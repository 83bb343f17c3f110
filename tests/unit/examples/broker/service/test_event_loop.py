"""The loop of a node."""

import asyncio
import sys

import pytest

from examples.broker.service.event_loop import run


@pytest.fixture
def loop_of():
    """Run something, and give the module of the loop that it ran on."""

    def loop_of():
        found = []

        async def main():
            found.append(type(asyncio.get_running_loop()).__module__)

        run(main())
        return found[0].partition(".")[0]

    return loop_of


def test_uvloop_is_used_where_it_is(loop_of):
    """Where uvloop is installed, a node runs on it."""
    pytest.importorskip("uvloop")
    assert "uvloop" == loop_of()


def test_asyncio_serves_elsewhere(loop_of, monkeypatch):
    """Without uvloop, a node runs on asyncio's own loop."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert "asyncio" == loop_of()
