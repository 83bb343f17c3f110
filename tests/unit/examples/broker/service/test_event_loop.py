"""The loop of a node."""

import asyncio
import sys

import pytest

from examples.broker.service.event_loop import run


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_uvloop_is_used_where_it_is(loop, monkeypatch):
    """Where uvloop is installed, a node runs on it. Elsewhere it runs on asyncio's own loop."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    found = []

    async def main():
        found.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    run(main())
    assert [loop] == found
