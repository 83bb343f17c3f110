"""``purgatory.testing``: the library's support for its users' tests."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from purgatory import InvalidSetting, Outcome
from purgatory.gates import GateTimeout
from purgatory.testing import CheckMissed, HookRaised, LeftParked, Purgatories
from tests.support import park
from tests.support.loops import Async
from timer import MockTimer

ROOT = Path(__file__).resolve().parents[2]

#: A user's test suite, in which one test leaves an operation parked.
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

#: One whose tests await, in their own loop and in that of a plugin.
ASYNC_SUITE = """
import asyncio

import pytest

async def leave_one(purgatories):
    polls = purgatories.make_async("polls")
    left = asyncio.ensure_future(polls.wait_for(lambda: False, keys=["ann"], timeout_ms=30_000))
    await purgatories.settled()
    await purgatories.advance_async(10_000)
    assert not left.done()

async def cancel_some(purgatories):
    polls = purgatories.make_async("polls")
    wait = lambda: polls.wait_for(lambda: False, keys=["ann"], timeout_ms=30_000)
    poll = asyncio.ensure_future(wait())
    await purgatories.settled()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            await asyncio.sleep(0)
            group.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.01))

def test_run_forgets(purgatories):
    asyncio.run(leave_one(purgatories))

def test_run_cancels(purgatories):
    asyncio.run(cancel_some(purgatories))

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_plugin_forgets(purgatories):
    await leave_one(purgatories)

@pytest.mark.anyio
async def test_plugin_cancels(purgatories):
    await cancel_some(purgatories)
"""


@pytest.mark.slow
def test_suite_of_somebody(tmp_path):
    """Named as a plugin, the fixture is there. A test that leaves an operation parked fails, and the error names it."""
    said = run_suite(tmp_path, SUITE)

    assert "2 passed, 1 error" in said
    assert "LeftParked: 1 left parked at the end of the test" in said
    assert "Session under 'bob' in 'sessions', due in 20000 ms" in said


@pytest.mark.slow
def test_suite_that_awaits(tmp_path):
    """An operation that is still awaited when a test's loop is closed is named. Whom the test has cancelled itself is
    not.
    """
    said = run_suite(tmp_path, ASYNC_SUITE)

    assert "4 passed, 2 errors" in said
    assert 2 == said.count("Until under 'ann' in 'polls', awaited when its loop was closed, due in 20000 ms"), said
    assert {"test_run_forgets", "test_plugin_forgets"} == {
        line.partition("::")[2].split()[0] for line in said.splitlines() if line.startswith("ERROR")
    }


def run_suite(folder, suite, conftest='pytest_plugins = ["purgatory.testing"]', *options):
    """The output of pytest for a user's suite at a terminal. In a CI it prints more."""
    outside = {name: value for name, value in os.environ.items() if name not in {"CI", "BUILD_NUMBER"}}
    (folder / "conftest.py").write_text(f"{conftest}\n", encoding="utf-8")
    (folder / "test_sessions.py").write_text(suite, encoding="utf-8")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest; sys.exit(pytest.main({list(options)}))"
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=outside, capture_output=True, text=True, check=False, timeout=60
    ).stdout


UNUSED = """
import sys

def test_without_the_fixture():
    assert not {"purgatory", "timer"} & set(sys.modules)

def test_with_the_fixture(purgatories):
    purgatories.make("a")
"""


@pytest.mark.parametrize("conftest", ["", 'pytest_plugins = ["purgatory.testing"]'])
@pytest.mark.slow
def test_plugin_imports_the_library_when_it_is_used(tmp_path, conftest):
    """A suite without the fixture imports no module of the library, unless it names the plugin itself."""
    said = run_suite(tmp_path, UNUSED, conftest, "-p", "pytest_purgatory")

    assert ("1 failed, 1 passed" if conftest else "2 passed") in said, said


def test_purgatories_share_a_clock(purgatories):
    """Time passes for all of them at once, and no further than it is moved."""
    first, second = park(purgatories.make("a"), delay_ms=10), park(purgatories.make("b"), delay_ms=11)
    assert purgatories.advance(10)
    assert (Outcome.EXPIRED, None) == (first.outcome, second.outcome)
    assert purgatories.advance(1)
    assert Outcome.EXPIRED is second.outcome


@pytest.mark.parametrize(
    ("kind", "leave"),
    [
        ("make", park),
        ("make_threshold", lambda made: made.wait(3, 1000)),
        ("make_futures", lambda made: made.try_complete_else_watch(1000, [Future()], print)),
    ],
)
def test_who_is_left_is_named(kind, leave):
    """An operation that still waits at the end, in any kind of purgatory, is an error, and is removed."""
    with pytest.raises(LeftParked) as raised, Purgatories() as purgatories:
        leave(getattr(purgatories, kind)("left"))

    (operation,) = raised.value.operations
    assert Outcome.CANCELLED is operation.outcome


def test_who_was_reschedule_is_due_later():
    """The time that is left is that of the deadline as it was moved last."""
    with pytest.raises(LeftParked, match=r"Waiting under 'k' in 'test', due in 7000 ms"), Purgatories() as purgatories:
        operation = park(purgatories.make(), delay_ms=1_000)
        purgatories.advance(500)
        assert operation.extend(10_000)
        purgatories.advance(3_000)


def wrong(_):
    """A hook that finds something wrong."""
    assert 1 == 2


def test_hook_that_raises_fails_the_test():
    """A hook's error is contained, and fails the test, unless the test takes it. An assertion in a hook counts."""
    with (
        pytest.raises(HookRaised, match=r"on_complete in 'asserts' \(1 times\)") as raised,
        Purgatories() as purgatories,
    ):
        asserts = purgatories.make("asserts")
        park(asserts, complete=wrong).force_complete()
        assert {("asserts", "on_complete"): 1} == purgatories.take_errors()
        purgatories.check()
        park(asserts, complete=wrong).force_complete()

    assert {("asserts", "on_complete"): 1} == raised.value.errors
    assert isinstance(raised.value.__cause__, AssertionError)


async def test_caller_that_waits_at_a_gate_is_left(purgatories):
    """A gate runs on the clock of the test, and a caller that still waits at the end is an error."""
    gate = purgatories.make_gate("model", max_waiting=1)
    with pytest.raises(LeftParked, match="'model'"), Purgatories() as others, gate.enter(timeout_ms=0):
        late = asyncio.create_task(gate.enter(timeout_ms=1_000).__aenter__())
        await asyncio.sleep(0)
        assert await purgatories.advance_async(1_000)
        with pytest.raises(GateTimeout):
            await late
        other = others.make_gate("model")
        other.enter(timeout_ms=0).__enter__()
        left = asyncio.create_task(other.enter(timeout_ms=1_000).__aenter__())
        await asyncio.sleep(0)
    await asyncio.gather(left, return_exceptions=True)


def test_settings_are_taken(purgatories):
    """The factories take the settings of their class, but no other clock."""
    assert 7 == purgatories.make(max_parked=7).capacity
    assert 3 == purgatories.make_futures(broker_id=3).purgatory.broker_id
    for make in (purgatories.make, purgatories.make_async, purgatories.make_futures, purgatories.make_gate):
        with pytest.raises(InvalidSetting, match="timer must be left out"):
            make("x", timer=MockTimer())


def test_purgatory_that_was_shut_down_leaves_nobody(purgatories):
    """A test that shuts its purgatory down itself may have left operations in it until then."""
    made = purgatories.make()
    park(made)
    made.shutdown()
    purgatories.check()


def test_error_of_the_test_stands():
    """A test that fails on its own account isn't blamed for what it left."""
    with pytest.raises(ZeroDivisionError), Purgatories() as purgatories:
        park(purgatories.make())
        raise ZeroDivisionError


def test_futures_call_back_at_once(purgatories):
    """A set of futures calls back on the thread that completes the last of them, before ``set_result`` returns."""
    answers, heard = [Future(), Future()], []
    purgatories.make_futures().try_complete_else_watch(1000, answers, heard.append)
    answers[0].set_result(1)
    assert [] == heard
    answers[1].set_result(2)
    assert [tuple(answers)] == heard


async def test_task_that_was_just_created_expires_by_hand():
    """``advance_async`` lets a task that was just created park before the clock moves, also one inside other tasks."""

    async def nested(purgatory, depth):
        if depth == 0:
            return await purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=1_000)
        return await asyncio.create_task(nested(purgatory, depth - 1))

    async with Purgatories() as purgatories:
        purgatory = purgatories.make_async()
        for depth in range(5):
            waiting = asyncio.create_task(nested(purgatory, depth))
            assert await purgatories.advance_async(1_000)
            assert Outcome.EXPIRED is await waiting


async def test_task_that_never_rests_does_not_hold_up_the_clock():
    """A task that never awaits anything gets some turns, and then the clock moves all the same."""

    async def spin():
        while True:  # noqa: ASYNC110  # it is to spin
            await asyncio.sleep(0)

    async with Purgatories() as purgatories:
        spinning = asyncio.create_task(spin())
        assert not await purgatories.advance_async(1_000)
        spinning.cancel()


def test_threshold_times_out_by_hand(purgatories):
    """A threshold's wait ends by the clock that the test moves."""
    third = purgatories.make_threshold(value=1).wait(3, 500)
    assert not third.done()
    purgatories.advance(500)
    assert isinstance(third.exception(), TimeoutError)


async def test_time_passes_on_a_loop():
    """On a loop, moving the clock returns when every expired operation has its answer, coroutine hooks included."""

    async def some_turns():
        for _ in range(7):
            await asyncio.sleep(0)

    async with Purgatories() as purgatories:
        polls, operation = purgatories.make_async("polls"), Async(30_000, complete=some_turns)
        poll = asyncio.ensure_future(polls.wait_for(lambda: False, keys=["k"], timeout_ms=30_000))
        slow = asyncio.ensure_future(polls.park(operation, ["k"]))
        await purgatories.settled()
        assert 2 == polls.parked == polls.waiting
        assert not await purgatories.advance_async(29_999)
        assert await purgatories.advance_async(1)
        assert "expire" == operation.history[-1]
        assert 0 == polls.waiting
        assert Outcome.EXPIRED is await poll is await slow


async def test_who_awaits_at_the_end_is_named():
    """A task that still awaits at the end is an error. It gets ``CANCELLED``."""
    with pytest.raises(LeftParked):
        async with Purgatories() as purgatories:
            polls = purgatories.make_async("polls")
            poll = asyncio.ensure_future(polls.wait_for(lambda: False, keys=["k"], timeout_ms=30_000))
            await purgatories.settled()
    assert Outcome.CANCELLED is await poll


async def wait_in_vain(purgatories, keys, checked=()):
    """Let a wait expire although its predicate is true, with checks of these keys before its deadline."""
    polls = purgatories.make_async("polls")
    happened = []
    first = asyncio.ensure_future(polls.wait_for(lambda: happened, keys=keys, timeout_ms=5_000))
    await purgatories.settled()
    happened.append("event")
    for key in checked:
        polls.check_and_complete(key)
    await purgatories.advance_async(5_000)
    assert Outcome.EXPIRED is await first
    return polls


@pytest.mark.guarantee("a missed check is reported")
async def test_missed_check_fails_a_test():
    """The error names the keys, and the key that was checked instead. No time has to pass."""
    with pytest.raises(CheckMissed, match=r"1 missed in 'polls': Until under 7 expired .*; '7' was checked") as caught:
        async with Purgatories() as purgatories:
            await wait_in_vain(purgatories, [7], ["7"])
    assert (7,) == caught.value.keys


async def test_missed_check_fails_a_test_that_shuts_down():
    """The suspicion is decided by the shutdown of a test, which no second follows."""
    with pytest.raises(CheckMissed):
        async with Purgatories() as purgatories:
            polls = await wait_in_vain(purgatories, ["k"])
            await polls.shutdown()


async def test_check_after_the_deadline_passes_a_test(purgatories):
    """The check was late, as it may be in production."""
    polls = await wait_in_vain(purgatories, ["k"])
    polls.check_and_complete("k")


async def test_missed_checks_can_be_expected(purgatories):
    """Those that the test has taken do not fail it."""
    await wait_in_vain(purgatories, ["k"])
    assert 1 == purgatories.take_missed_checks()
    assert 0 == purgatories.take_missed_checks()
