"""The loop of a node."""

import asyncio
import sys
import threading

import pytest

from examples.broker.service.event_loop import OnLoop, run


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_uvloop_is_used_where_it_is(loop, monkeypatch):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    found = []

    async def main():
        found.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    run(main())
    assert [loop] == found


def test_calls_of_other_threads_run_on_the_loop():
    """Each is followed by the checks that it queued. Once the loop is closed, there is nothing left to do."""
    calls = []

    async def main():
        on_loop = OnLoop(lambda: calls.append(("after", threading.get_ident())))
        await asyncio.to_thread(on_loop.submit, lambda name: calls.append((name, threading.get_ident())), "call")
        await asyncio.sleep(0)
        return on_loop

    asyncio.run(main()).submit(calls.append, "late")
    assert [("call", threading.get_ident()), ("after", threading.get_ident())] == calls
