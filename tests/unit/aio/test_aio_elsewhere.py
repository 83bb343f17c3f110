"""Other worlds: anyio over asyncio works as it is. On trio one bridges as the documentation shows."""

import asyncio
import importlib.util
import json
import re
import threading
from pathlib import Path

import anyio
import pytest
import trio

from purgatory import DelayedOperationPurgatory, Outcome
from tests.support import Waiting
from tests.support.loops import purgatory_on, until

RECIPES = Path(__file__).resolve().parents[3] / "docs" / "recipes"


@pytest.fixture(scope="module")
def page():
    """Run the code of the recipes, what needs FastAPI only where it is installed. Returns its names."""
    known = {}
    for page in (RECIPES / "trio.md", RECIPES / "websockets.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if "# stream.py" in block:  # a service of its own, which tests/integration/test_streams.py runs
                continue
            if "fastapi" not in block or importlib.util.find_spec("fastapi") is not None:
                exec(compile(block, str(page), "exec"), known)
    return known


@pytest.mark.parametrize("driver", ["loop", "threads"])
def test_anyio_scope_takes_the_operation_out(driver):
    """In anyio's scopes and task groups on asyncio, waiting and cancelling work as they are."""

    async def main():
        async with purgatory_on(driver) as purgatory:
            operation = Waiting()
            with anyio.move_on_after(0.02) as scope:
                await purgatory.park(operation, ["k"])
            assert scope.cancelled_caught
            assert Outcome.CANCELLED is operation.outcome
            state, outcomes = [], []

            async def wait():
                outcomes.append(await purgatory.wait_for(lambda: state, keys=["k"], timeout_ms=60_000))

            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    group.start_soon(wait)
                    while not purgatory.purgatory.parked:  # noqa: ASYNC110  # there is no event
                        await anyio.sleep(0.001)
                    state.append(1)
                    purgatory.check_and_complete("k")
            assert [Outcome.SATISFIED] == outcomes

    anyio.run(main)


def test_the_page_s_bridge_to_trio(page):
    """The bridge that the page shows: satisfied from a thread, expired by the reaper, taken out when cancelled."""
    state = []

    class Arrival(page["Bridged"]):
        def try_complete(self):
            return bool(state) and self.force_complete()

    async def main():
        with DelayedOperationPurgatory("trio") as purgatory, trio.fail_after(30):
            assert Outcome.EXPIRED is await page["park"](purgatory, Arrival(5), ["k"])
            operation = Arrival(60_000)
            with trio.move_on_after(0.02):
                await page["park"](purgatory, operation, ["k"])
            assert Outcome.CANCELLED is operation.outcome

            def event():
                state.append(1)
                purgatory.check_and_complete("k")

            operation = Arrival(60_000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(page["park"], purgatory, operation, ["k"])
                while not operation.keys:  # noqa: ASYNC110  # there is no event
                    await trio.sleep(0.001)
                threading.Thread(target=event).start()
            assert Outcome.SATISFIED is operation.outcome

    trio.run(main)


class Player:
    """The other end of a WebSocket of the page's lobby."""

    def __init__(self, app, name):
        self.messages, self.answers = asyncio.Queue(), asyncio.Queue()
        self.messages.put_nowait({"type": "websocket.connect"})
        scope = {"type": "websocket", "path": f"/lobby/{name}", "headers": [], "query_string": b""}
        self.endpoint = asyncio.ensure_future(app(scope, self.messages.get, self.answers.put))

    async def answer(self):
        """What the lobby has sent, when the endpoint has ended."""
        await self.endpoint
        accept, answer, close = [self.answers.get_nowait() for _ in range(self.answers.qsize())]
        assert ("websocket.accept", "websocket.close") == (accept["type"], close["type"])
        return json.loads(answer["text"])


async def test_the_page_s_websocket_ends_a_wait(page):
    """A match answers both players of the page's lobby. A message, or a client that goes, ends the player's wait."""
    pytest.importorskip("fastapi")
    lobby = page["lobby"]
    ann, bob, cid, dan = players = [Player(page["app"], name) for name in ("ann", "bob", "cid", "dan")]
    await until(lambda: len(players) == lobby.parked)
    page["pair"](*lobby.operations_for_key("ann"), *lobby.operations_for_key("bob"), "m1")
    matched = {"outcome": "satisfied", "match": "m1", "stopping": False}
    assert [matched, matched] == [await ann.answer(), await bob.answer()]

    cid.messages.put_nowait({"type": "websocket.receive", "text": "leave"})
    dan.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    left = {"outcome": "cancelled", "match": None, "stopping": False}
    assert [left, left] == [await cid.answer(), await dan.answer()]
    await lobby.shutdown()
    assert 0 == lobby.parked
