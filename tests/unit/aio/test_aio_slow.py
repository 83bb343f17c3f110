"""A hook that holds up an event loop is reported, as one that holds up a thread is."""

import threading

import pytest

from purgatory import slow_callback_ms
from purgatory.aio import AsyncPurgatory
from tests.support import HAS_GLOBAL_LOCK, Waiting, eventually
from tests.support.loops import Async


@pytest.fixture
def blocked(run, logs):
    """Run an async function whose hook blocks in ``go.wait``, until the log has it. Gives what was logged."""
    go = threading.Event()
    slow_callback_ms(40)

    def reported():
        return [entry for entry in logs if entry["event"] == "callback_slow"]

    def let_go():
        eventually(reported)
        go.set()

    def started(main):
        thread = threading.Thread(target=let_go)
        thread.start()
        run(lambda: main(go))
        thread.join()
        return reported()

    yield started
    slow_callback_ms(1000)


@pytest.mark.parametrize(("hook", "asked"), [("on_complete", "complete"), ("on_expiration", "expire")])
def test_hook_that_blocks_the_loop_is_logged(blocked, hook, asked):
    """In a service with nothing but a loop, a hook that blocks it is logged with purgatory, keys and stack."""

    async def main(go):
        async with AsyncPurgatory("loop") as purgatory:
            await purgatory.park(Waiting(1, **{asked: lambda _: go.wait(20)}), ["k"])

    (entry,) = blocked(main)
    assert ("loop", ("k",), hook) == tuple(entry[field] for field in ("purgatory", "keys", "hook"))
    assert ("go.wait(20)" in entry["stack"]) is HAS_GLOBAL_LOCK


def test_predicate_that_blocks_the_loop_is_logged(blocked):
    """A predicate of ``wait_for`` that blocks is seen as the check that it is."""

    async def main(go):
        async with AsyncPurgatory("loop") as purgatory:
            await purgatory.wait_for(lambda: go.wait(20), keys=["k"], timeout_ms=1)

    (entry,) = blocked(main)
    assert "try_complete" == entry["hook"]


def test_coroutine_hook_that_doesnt_await_is_logged(blocked):
    """A coroutine hook that blocks in the middle of its work is seen."""

    async def main(go):
        async def block():
            go.wait(20)

        async with AsyncPurgatory("loop") as purgatory:
            await purgatory.park(Async(ready=True, complete=block), ["k"])

    (entry,) = blocked(main)
    assert ("Async", "on_complete") == (entry["operation"], entry["hook"])


async def test_watch_ends_with_the_purgatory(run, no_threads_left):
    """A loop's purgatory that is shut down leaves no thread of the watch."""
    async with AsyncPurgatory("loop"):
        assert any(thread.name == "purgatory-watchdog" for thread in threading.enumerate())
