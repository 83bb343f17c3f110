"""A hook that holds up an event loop is reported, as one that holds up a thread is."""

import threading

import pytest

from purgatory import slow_callback_ms
from purgatory.aio import AsyncPurgatory
from tests.support import HAS_GLOBAL_LOCK, Waiting, beside, eventually
from tests.support.loops import Async


@pytest.fixture
def blocked(run, logs):
    """Run an async function whose hook blocks in ``go.wait``, until the log has it. Gives what was logged."""
    go = threading.Event()
    slow_callback_ms(40)

    def reported():
        return [entry for entry in logs if entry["event"] == "callback_slow"]

    def started(main):
        with beside(lambda: (eventually(reported), go.set())):
            run(lambda: main(go))
        return reported()

    yield started
    slow_callback_ms(1000)


class Doing(Async):
    """Its coroutine hook does something where it should await."""

    def __init__(self, do):
        super().__init__(1)
        self.do = do

    async def on_complete(self):
        self.do()


@pytest.mark.parametrize(
    ("kind", "hook", "block"),
    [
        ("Waiting", "on_complete", lambda purgatory, wait: purgatory.park(Waiting(1, complete=wait), ["k"])),
        ("Waiting", "on_expiration", lambda purgatory, wait: purgatory.park(Waiting(1, expire=wait), ["k"])),
        ("Until", "try_complete", lambda purgatory, wait: purgatory.wait_for(wait, keys=["k"], timeout_ms=1)),
        ("Doing", "on_complete", lambda purgatory, wait: purgatory.park(Doing(wait), ["k"])),
    ],
)
def test_hook_that_blocks_the_loop_is_logged(blocked, kind, hook, block):
    """In a service with nothing but a loop, a hook, a coroutine hook or a predicate that blocks it is logged.

    The entry has the purgatory, the operation with its keys, and the stack.
    """

    async def main(go):
        async with AsyncPurgatory("loop") as purgatory:
            await block(purgatory, lambda *_: go.wait(20))

    (entry,) = blocked(main)
    keys = () if kind == "Until" else ("k",)  # its first check comes before it is parked
    assert ("loop", kind, keys, hook) == tuple(entry[name] for name in ("purgatory", "operation", "keys", "hook"))
    assert ("go.wait(20)" in entry["stack"]) is HAS_GLOBAL_LOCK


async def test_watch_ends_with_the_purgatory(run, no_threads_left):
    """A loop's purgatory that is shut down leaves no thread of the watch."""
    async with AsyncPurgatory("loop"):
        assert any(thread.name == "purgatory-watchdog" for thread in threading.enumerate())
