"""Waits that expire although their predicate is true: reported, unless the check was only late."""

import asyncio
import contextlib
import enum
import functools
import threading

import pytest

from purgatory import DelayedOperationPurgatory, Observer, Outcome
from purgatory._core.missed import MOMENT_MS, MOST_NOTED
from purgatory.aio import AsyncPurgatory
from tests.support import PATIENCE_S, eventually, park, raising
from timer import MockTimer

DEADLINE_MS = 5_000


class OnThread:
    """Threads that wait on ``state``, on a clock that is moved by hand."""

    def __init__(self, timer):
        self.timer, self.state = timer, []
        self.check_in = self.make()
        self.core = getattr(self.check_in, "purgatory", self.check_in)

    def make(self):
        """The purgatory to check in."""
        return DelayedOperationPurgatory("polls", timer=self.timer, reaper_enabled=False)

    async def expire(self, *keys, predicate=None, change=lambda: None, method="wait_for"):
        """Let a wait expire. ``change`` is made just before."""
        answers, waiting = [], self.core.parked
        call = functools.partial(getattr(self.core, method), predicate or self.holds, keys=keys, timeout_ms=DEADLINE_MS)

        def wait():
            with contextlib.suppress(TimeoutError):
                answers.append(call())

        thread = threading.Thread(target=wait)
        thread.start()
        assert eventually(lambda: waiting + 1 == self.core.parked)
        change()
        self.timer.advance_clock(DEADLINE_MS)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        return answers

    def holds(self):
        return bool(self.state)

    def happen(self):
        """Change the state, and forget the check."""
        self.state.append("event")

    async def shut_down(self):
        self.core.shutdown()


class OnLoop(OnThread):
    """Tasks that wait, in a purgatory of their loop."""

    def make(self):
        return AsyncPurgatory("polls", timer=self.timer)

    async def expire(self, *keys, predicate=None, change=lambda: None, method="wait_for"):
        call = getattr(self.check_in, method)
        task = asyncio.ensure_future(call(predicate or self.holds, keys=keys, timeout_ms=DEADLINE_MS))
        await asyncio.sleep(0)
        change()
        self.timer.advance_clock(DEADLINE_MS)
        with contextlib.suppress(TimeoutError):
            return [await task]
        return []

    async def shut_down(self):
        await self.check_in.shutdown()
        self.core.shutdown()


class OverThreads(OnLoop):
    """Tasks that wait in a purgatory of threads."""

    def make(self):
        return AsyncPurgatory.over(OnThread.make(self))


@contextlib.asynccontextmanager
async def opened(kind):
    with MockTimer() as timer:
        waits = kind(timer)
        try:
            yield waits
        finally:
            await waits.shut_down()


@pytest.fixture(params=[OnThread, OnLoop, OverThreads])
def waits(request):
    return opened(request.param)


def reported(logs):
    return [line for line in logs if line["event"] == "expired_but_true"]


@pytest.mark.guarantee("a missed check is reported")
async def test_wait_that_expires_although_its_predicate_is_true_is_reported(waits, logs):
    """The outcome stays EXPIRED. A second later there is one warning with the keys, and the number."""
    assert [Outcome.EXPIRED] == await waits.expire(7, ("orders", 0), change=waits.happen)
    assert [] == reported(logs)
    waits.timer.advance_clock(MOMENT_MS)
    [line] = reported(logs)
    assert ("warning", "polls", "Until", (7, ("orders", 0))) == (
        *(line[name] for name in ("log_level", "purgatory", "operation", "keys")),
    )
    assert "check_and_complete()" in line["advice"]
    assert [] == line["similar_keys"]
    assert 1 == waits.check_in.missed_checks == waits.core.snapshot().missed_checks


async def test_wait_whose_predicate_is_false_is_not_reported(waits, logs):
    """Most waits that expire have missed nothing. They leave nothing in the timer."""
    assert [Outcome.EXPIRED] == await waits.expire("k")
    assert 0 == waits.timer.size
    waits.timer.advance_clock(MOMENT_MS)
    assert [] == reported(logs)
    assert 0 == waits.core.missed_checks


@pytest.mark.guarantee("a missed check is reported")
@pytest.mark.parametrize("key", ["a", "b"])
@pytest.mark.parametrize("limit", [None, 1])
async def test_check_just_after_the_deadline_is_no_mistake(waits, logs, key, limit):
    """If one of the keys is checked within a second, the check was late, and not forgotten."""
    await waits.expire("a", "b", change=waits.happen)
    waits.timer.advance_clock(MOMENT_MS - 1)
    assert 0 == waits.check_in.check_and_complete(key, limit)
    waits.timer.advance_clock(MOMENT_MS)
    assert [] == reported(logs)
    assert 0 == waits.core.missed_checks


async def test_late_check_of_many_keys_is_no_mistake(waits, logs):
    """A check of many keys counts like a check of one."""
    await waits.expire("a", change=waits.happen)
    assert 0 == waits.check_in.check_and_complete_all(["x", "a"])
    waits.timer.advance_clock(MOMENT_MS)
    assert [] == reported(logs)


async def test_late_check_that_other_operations_take_is_no_mistake(waits, logs):
    """A check with a limit ends at an older operation under the key, and was a check of that key."""
    older = park(waits.core, "a")
    await waits.expire("a", change=waits.happen)
    older.ready = True
    assert 1 == waits.check_in.check_and_complete("a", 1)
    waits.timer.advance_clock(MOMENT_MS)
    assert [] == reported(logs)


async def test_late_check_that_a_newcomer_takes_is_no_mistake(waits, logs):
    """An operation that comes after the deadline, and leaves by the late check, hides no check."""
    await waits.expire("a", change=waits.happen)
    newcomer = park(waits.core, "a")
    newcomer.ready = True
    assert 1 == waits.check_in.check_and_complete("a")
    waits.timer.advance_clock(MOMENT_MS)
    assert [] == reported(logs)


async def test_check_before_the_event_does_not_excuse_it(waits, logs):
    """That the key was checked while nothing waited, or while the predicate was false, says nothing."""
    waits.check_in.check_and_complete("a")
    await waits.expire("b")
    await waits.expire("a", change=lambda: (waits.check_in.check_and_complete("a"), waits.happen()))
    waits.timer.advance_clock(MOMENT_MS)
    assert 1 == len(reported(logs))


@pytest.mark.guarantee("a missed check is reported")
@pytest.mark.parametrize(
    ("key", "similar"),
    [(7, "7"), ("7", 7), ("a", ("a",)), (("a",), "a"), (b"a", "a"), (("orders", 0), ("orders", "0"))],
)
async def test_key_that_looks_alike_is_named(waits, logs, key, similar):
    """A check of another key that prints alike is the commonest mistake. The warning names that key."""
    await waits.expire("first")
    await waits.expire(
        key,
        change=lambda: (
            waits.happen(),
            waits.check_in.check_and_complete("x"),
            waits.check_in.check_and_complete(similar),
        ),
    )
    waits.timer.advance_clock(MOMENT_MS)
    [line] = reported(logs)
    assert [similar] == line["similar_keys"]


async def test_check_of_many_keys_notes_each_key(waits, logs):
    """A key of many that looks alike is named as well, also if operations wait under others of them."""
    await waits.expire("first")
    park(waits.core, "x")
    await waits.expire(7, change=lambda: (waits.happen(), waits.check_in.check_and_complete_all(["x", "7"])))
    waits.timer.advance_clock(MOMENT_MS)
    assert [["7"]] == [line["similar_keys"] for line in reported(logs)]


async def test_only_the_last_keys_are_remembered(waits, logs):
    """A purgatory remembers 16 checks that found nothing."""
    await waits.expire("first")
    for other in ["7", *range(1_000, 1_000 + MOST_NOTED)]:
        waits.check_in.check_and_complete(other)
    await waits.expire(7, change=waits.happen)
    waits.timer.advance_clock(MOMENT_MS)
    assert [[]] == [line["similar_keys"] for line in reported(logs)]


async def test_keys_are_noted_only_for_waits_of_wait_for(waits):
    """Without a wait of ``wait_for``, a check that finds nothing notes nothing. So a purgatory keeps no key alive."""
    waits.check_in.check_and_complete("x")
    await waits.expire("k", predicate=lambda: None, method="wait_for_result")
    assert waits.core._note_unwatched is None


async def test_find_of_a_wait_for_a_result_is_not_asked_again(waits, logs):
    """It may take what it finds."""
    calls = []
    await waits.expire("k", predicate=lambda: calls.append(1), method="wait_for_result")
    waits.timer.advance_clock(MOMENT_MS)
    assert 2 == len(calls)
    assert [] == reported(logs)


async def test_predicate_that_raises_after_the_deadline_changes_nothing(waits, logs):
    """The caller gets EXPIRED, and no error is counted."""
    predicate = iter([lambda: False, lambda: False, raising(ZeroDivisionError)])
    assert [Outcome.EXPIRED] == await waits.expire("k", predicate=lambda: next(predicate)())
    assert {} == waits.core.callback_errors


async def test_predicate_is_not_asked_at_a_shutdown(waits):
    """The state that it reads may be gone."""
    calls = []
    await waits.expire("k", predicate=lambda: calls.append(1), change=waits.core.shutdown)
    assert 2 == len(calls)


async def test_suspicion_ends_with_the_purgatory(waits, logs):
    """A shutdown does not wait for the moment to pass, and nothing is reported."""
    await waits.expire("k", change=waits.happen)
    await waits.shut_down()
    assert (0, 0, 0) == (waits.core.watched, waits.timer.size, waits.core.missed_checks)
    assert [] == reported(logs)


async def test_warning_is_throttled(waits, logs):
    """Each missed check is counted, also if its warning comes too soon after another one."""
    for number in (1, 2):
        waits.state.clear()
        await waits.expire("k", change=waits.happen)
        waits.timer.advance_clock(MOMENT_MS)
        assert (number, 1) == (waits.core.missed_checks, len(reported(logs)))


async def test_one_suspicion_at_a_time(mock_timer):
    """Of the waits that expire while another is under suspicion, none is examined."""
    async with AsyncPurgatory("polls", timer=mock_timer) as purgatory:
        happened = []
        tasks = [
            asyncio.ensure_future(purgatory.wait_for(lambda: happened, keys=[key], timeout_ms=DEADLINE_MS))
            for key in range(3)
        ]
        await asyncio.sleep(0)
        happened.append("event")
        mock_timer.advance_clock(DEADLINE_MS)
        assert 1 == mock_timer.size == purgatory.watched
        mock_timer.advance_clock(MOMENT_MS)
        assert (0, 1) == (purgatory.watched, purgatory.missed_checks)
        assert {Outcome.EXPIRED} == set(await asyncio.gather(*tasks))


class ChecksLate(Observer):
    """Makes the event, and its check, when a wait has left its keys and its predicate is not yet asked again."""

    def __init__(self, waits):
        self.waits = waits

    def leaving(self, _, /):
        self.waits.happen()
        self.waits.core.check_and_complete("k")


@pytest.mark.parametrize("kind", [OnThread, OverThreads])
async def test_check_by_another_thread_as_the_wait_leaves_is_no_mistake(kind, logs):
    """A check that finds the wait gone already is noted, so it is not reported as missing."""
    async with opened(kind) as waits:
        waits.core.attach(ChecksLate(waits))
        await waits.expire("k")
        waits.timer.advance_clock(MOMENT_MS)
        assert [] == reported(logs)


async def test_witness_is_not_counted_as_an_operation(waits):
    """What makes sure that no check came is under the key, but it is not parked and no list has it."""
    before = waits.core.totals()
    await waits.expire("k", change=waits.happen)
    assert [] == waits.core.operations() == waits.core.operations_for_key("k") == waits.core.cancel_for_key("k")
    assert (0, before.expired + 1) == (waits.core.parked, waits.core.totals().expired)
    waits.timer.advance_clock(MOMENT_MS)
    assert (0, before.expired + 1) == (waits.core.watched, waits.core.totals().expired)
    assert 0 == waits.core.totals().waiting


class Color(enum.Enum):
    RED = "red"

    def __str__(self):
        raise ZeroDivisionError


async def test_key_without_a_text_is_like_no_other(waits, logs):
    """A key's own ``__str__`` that raises costs only the hint."""
    await waits.expire("first")
    await waits.expire(Color.RED, change=lambda: (waits.happen(), waits.check_in.check_and_complete("red")))
    waits.timer.advance_clock(MOMENT_MS)
    assert [[]] == [line["similar_keys"] for line in reported(logs)]
