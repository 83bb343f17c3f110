"""``purgatory.testing``: what those who use the library write their tests with."""

import asyncio
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from purgatory import Outcome
from purgatory.aio import AsyncOperation
from purgatory.testing import LeftParked, Purgatories
from tests.support import Waiting

ROOT = Path(__file__).resolve().parents[2]

#: A test suite of somebody's, in which one test leaves an operation parked.
SUITE = """
from purgatory import DelayedOperation, Outcome

class Session(DelayedOperation):
    def try_complete(self):
        return False

def test_that_answers(purgatories):
    sessions = purgatories.make("sessions")
    sessions.try_complete_else_watch(session := Session(30_000), ["ann"])
    assert purgatories.advance(30_000)
    assert session.outcome is Outcome.EXPIRED

def test_that_forgets(purgatories):
    purgatories.make("sessions").try_complete_else_watch(Session(30_000), ["bob"])
    purgatories.advance(10_000)
"""


def test_suite_of_somebody(tmp_path):
    """Named as a plugin, the fixture is there; a test that leaves somebody parked fails and is told whom."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["purgatory.testing"]\n', encoding="utf-8")
    (tmp_path / "test_sessions.py").write_text(SUITE, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest; sys.exit(pytest.main())",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "2 passed, 1 error" in done.stdout
    assert "LeftParked: 1 left parked at the end of the test" in done.stdout
    assert "Session under 'bob' in 'sessions', due in 20000 ms" in done.stdout


def test_purgatories_share_a_clock():
    """Time passes for all of them at once, and no further than it is moved."""
    with Purgatories() as purgatories:
        first, second = Waiting(10), Waiting(11)
        purgatories.make("a").try_complete_else_watch(first, ["k"])
        purgatories.make("b").try_complete_else_watch(second, ["k"])

        assert purgatories.advance(10)
        assert (Outcome.EXPIRED, None) == (first.outcome, second.outcome)
        assert purgatories.advance(1)
        assert Outcome.EXPIRED is second.outcome


@pytest.mark.parametrize("kind", ["make", "make_threshold", "make_futures"])
def test_who_is_left_is_named(kind):
    """Whoever still waits at the end, in any kind of purgatory, is an error, and is taken out."""
    with pytest.raises(LeftParked) as raised, Purgatories() as purgatories:
        made = getattr(purgatories, kind)("left")
        if kind == "make":
            made.try_complete_else_watch(Waiting(), ["k"])
        elif kind == "make_threshold":
            made.wait(3, 1000)
        else:
            made.try_complete_else_watch(1000, [Future()], print)

    (operation,) = raised.value.operations
    assert Outcome.CANCELLED is operation.outcome


def test_purgatory_that_was_shut_down_leaves_nobody():
    """A test that shuts its purgatory down itself may have left operations in it until then."""
    with Purgatories() as purgatories:
        made = purgatories.make()
        made.try_complete_else_watch(Waiting(), ["k"])
        made.shutdown()


def test_error_of_the_test_stands():
    """A test that fails on its own account isn't blamed for what it left."""
    with pytest.raises(ZeroDivisionError), Purgatories() as purgatories:
        purgatories.make().try_complete_else_watch(Waiting(), ["k"])
        raise ZeroDivisionError


def test_futures_call_back_at_once():
    """A set of futures calls back on the thread that completes the last of them, before ``set_result`` returns."""
    with Purgatories() as purgatories:
        answers, heard = [Future(), Future()], []
        purgatories.make_futures().try_complete_else_watch(1000, answers, heard.append)
        answers[0].set_result(1)
        assert [] == heard
        answers[1].set_result(2)
        assert [tuple(answers)] == heard


def test_threshold_times_out_by_hand():
    """A threshold's wait ends by the clock that the test moves."""
    with Purgatories() as purgatories:
        third = purgatories.make_threshold(value=1).wait(3, 500)
        assert not third.done()
        purgatories.advance(500)
        assert isinstance(third.exception(), TimeoutError)


class Slow(AsyncOperation):
    """Its coroutine hook takes some turns of the loop."""

    told = False

    def try_complete(self):
        return False

    async def on_complete(self):
        for _ in range(7):
            await asyncio.sleep(0)
        self.told = True


def test_time_passes_on_a_loop(run_it):
    """On a loop, moving the clock returns when those who expired have their answer, coroutine hooks included."""

    async def main():
        async with Purgatories() as purgatories:
            polls = purgatories.make_async("polls")
            poll = asyncio.ensure_future(polls.wait_for(lambda: False, keys=["k"], timeout_ms=30_000))
            slow = asyncio.ensure_future(polls.park(operation := Slow(30_000), ["k"]))
            await purgatories.settled()
            assert 2 == polls.parked == polls.waiting
            assert not await purgatories.advance_async(29_999)
            assert await purgatories.advance_async(1)
            assert operation.told
            assert 0 == polls.waiting
            assert Outcome.EXPIRED is await poll is await slow

    run_it(main)


def test_who_awaits_at_the_end_is_named(run_it):
    """A task that still awaits at the end is an error; it gets ``CANCELLED``."""

    async def main():
        with pytest.raises(LeftParked):
            async with Purgatories() as purgatories:
                polls = purgatories.make_async("polls")
                poll = asyncio.ensure_future(polls.wait_for(lambda: False, keys=["k"], timeout_ms=30_000))
                await purgatories.settled()
        assert Outcome.CANCELLED is await poll

    run_it(main)


@pytest.fixture
def run_it():
    """Run a coroutine function, bounded."""
    return lambda main: asyncio.run(asyncio.wait_for(main(), 30))
