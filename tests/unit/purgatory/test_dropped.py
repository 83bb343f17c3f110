"""Purgatories that are dropped without a shutdown: their thread ends once nothing waits, with a warning."""

import asyncio
import gc
import threading
from concurrent.futures import Future

import pytest

from purgatory import DelayedFuturePurgatory, DelayedOperationPurgatory, ThresholdPurgatory
from purgatory._core import live as registry
from purgatory.aio import AsyncPurgatory
from tests.support import eventually, output_of, park
from timer import SystemTimer, SystemTimerReaper, _timer

pytestmark = pytest.mark.usefixtures("no_threads_left")

#: How a purgatory of each kind is made, and how something waits in it.
KINDS = {
    "operations": (DelayedOperationPurgatory, lambda made, delay_ms: park(made, "k", delay_ms=delay_ms)),
    "futures": (
        DelayedFuturePurgatory,
        lambda made, delay_ms: made.try_complete_else_watch(delay_ms, [Future()], lambda futures: None),
    ),
    "threshold": (ThresholdPurgatory, lambda made, delay_ms: made.wait(7, delay_ms)),
}


@pytest.fixture
def live():
    """Lists the live purgatories, except those that other modules of tests keep."""
    others = registry.live()
    return lambda: [purgatory for purgatory in registry.live() if purgatory not in others]


def reapers():
    return [thread for thread in threading.enumerate() if thread.name.endswith("-reaper")]


def ended():
    gc.collect()
    return not reapers()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.guarantee("a dropped purgatory ends")
def test_thread_of_a_dropped_purgatory_ends(kind, warned):
    """If nothing waits and nothing refers to the purgatory, its thread ends, and a warning names the purgatory."""
    KINDS[kind][0](f"dropped {kind}")

    assert eventually(ended)
    assert [f"unclosed purgatory 'dropped {kind}': call its shutdown(), or use it in a with statement"] == warned()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.guarantee("a dropped purgatory ends")
def test_what_waits_in_a_dropped_purgatory_expires_first(live, kind, warned):
    """While something waits, the purgatory and its thread stay. Then both go."""
    make, wait_in = KINDS[kind]
    wait_in(make("dropped"), 200)
    gc.collect()
    assert ["dropped"] == [purgatory.name for purgatory in live()]
    assert (1, []) == (len(reapers()), warned())

    assert eventually(ended)
    assert ([], 1) == (live(), len(warned()))


@pytest.mark.guarantee("a dropped purgatory ends")
def test_operation_without_a_deadline_does_not_keep_a_dropped_purgatory(live, warned):
    """Nothing can complete an operation without a deadline that only a dropped purgatory refers to. Both go."""
    park(DelayedOperationPurgatory("dropped"), "k", delay_ms=None)

    assert eventually(ended)
    assert ([], 1) == (live(), len(warned()))


def test_thread_that_rests_beside_operations_without_a_deadline_is_woken():
    """A later operation with a deadline expires, although the thread slept for want of deadlines."""
    with DelayedOperationPurgatory("mixed") as purgatory:
        waiting = park(purgatory, "k", delay_ms=None)
        assert eventually(lambda: purgatory.timer._resting)
        timed = park(purgatory, "k", delay_ms=20)
        assert eventually(lambda: timed.is_completed)
        assert (True, 1) == (waiting.is_parked, purgatory.parked)


def test_operation_that_completes_ends_the_stay(live, warned, monkeypatch):
    """An operation that the program completes in time lets the purgatory go before its deadline."""
    monkeypatch.setattr(_timer, "LONGEST_SLEEP_NS", 50_000_000)
    operation = park(DelayedOperationPurgatory("dropped"), "k", delay_ms=600_000)
    gc.collect()
    assert 1 == len(live())
    operation.force_complete()
    del operation

    assert eventually(ended)
    assert 1 == len(warned())


def test_purgatory_that_was_shut_down_warns_of_nothing(warned):
    with DelayedOperationPurgatory("closed") as purgatory:
        park(purgatory, "k")
    del purgatory
    gc.collect()

    assert [] == warned()


def test_dropped_purgatory_leaves_a_given_timer_alone(warned):
    """A purgatory on a timer that the program holds may be dropped: the timer's own thread drives it on."""
    with SystemTimerReaper("reaper", SystemTimer("shared")) as timer:
        DelayedOperationPurgatory("dropped", timer=timer)
        gc.collect()
        with DelayedOperationPurgatory("staying", timer=timer) as staying:
            operation = park(staying, "k", delay_ms=20)
            assert eventually(lambda: operation.is_completed)
    assert eventually(ended)
    assert [] == warned()


def test_dropped_async_purgatory_leaves_nothing(live, warned):
    """An ``AsyncPurgatory`` has no thread of its own. Dropped, it is collected with what waits in it."""

    async def main():
        purgatory = AsyncPurgatory("dropped")
        assert not await purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=1)

    asyncio.run(main())
    gc.collect()

    assert ([], [], []) == (live(), reapers(), warned())


def test_exit_warns_of_no_purgatory_that_is_referenced():
    """At the end of the interpreter, a purgatory that a module still holds is not warned of."""
    program = """
        from purgatory import DelayedFuturePurgatory, DelayedOperationPurgatory
        from concurrent.futures import Future
        idle = DelayedOperationPurgatory("idle")
        busy = DelayedFuturePurgatory("busy")
        busy.try_complete_else_watch(600_000, [Future()], print)
    """
    assert ("", "") == output_of(program, "-W", "always")
