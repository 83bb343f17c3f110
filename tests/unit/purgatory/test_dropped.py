"""Purgatories that are dropped without a shutdown: their thread ends once nothing waits, with a warning."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future

import pytest

from purgatory import DelayedFuturePurgatory, DelayedOperationPurgatory, ThresholdPurgatory
from purgatory._purgatory.live import live
from purgatory.aio import AsyncPurgatory
from tests.support import PATIENCE_S, Waiting, eventually
from timer import SystemTimer, _timer

pytestmark = pytest.mark.usefixtures("no_threads_left")

KINDS = {
    "operations": DelayedOperationPurgatory,
    "futures": DelayedFuturePurgatory,
    "threshold": ThresholdPurgatory,
}


def reapers():
    return [thread for thread in threading.enumerate() if thread.name.endswith("-reaper")]


def ended():
    gc.collect()
    return not reapers()


def wait_in(purgatory, timeout_ms):
    """Let something wait in a purgatory of any kind."""
    if isinstance(purgatory, DelayedFuturePurgatory):
        purgatory.try_complete_else_watch(timeout_ms, [Future()], lambda futures: None)
    elif isinstance(purgatory, DelayedOperationPurgatory):
        purgatory.try_complete_else_watch(Waiting(timeout_ms), ["k"])
    else:
        purgatory.wait(7, timeout_ms)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.guarantee("a dropped purgatory ends")
def test_thread_of_a_dropped_purgatory_ends(kind, warned):
    """If nothing waits and nothing refers to the purgatory, its thread ends, and a warning names the purgatory."""
    KINDS[kind](f"dropped {kind}")

    assert eventually(ended)
    assert [f"unclosed purgatory 'dropped {kind}': call its shutdown(), or use it in a with statement"] == warned()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.guarantee("a dropped purgatory ends")
def test_what_waits_in_a_dropped_purgatory_expires_first(kind, warned):
    """While something waits, the purgatory and its thread stay. Then both go."""
    wait_in(KINDS[kind]("dropped"), 200)
    gc.collect()
    assert ["dropped"] == [purgatory.name for purgatory in live()]
    assert 1 == len(reapers())
    assert [] == warned()

    assert eventually(ended)
    assert [] == live()
    assert 1 == len(warned())


def test_operation_that_completes_ends_the_stay(warned, monkeypatch):
    """An operation that the program completes in time lets the purgatory go before its deadline."""
    monkeypatch.setattr(_timer, "LONGEST_SLEEP_NS", 50_000_000)
    purgatory = DelayedOperationPurgatory("dropped")
    operation = Waiting(600_000)
    purgatory.try_complete_else_watch(operation, ["k"])
    del purgatory
    gc.collect()
    assert 1 == len(live())
    operation.force_complete()
    del operation

    assert eventually(ended)
    assert 1 == len(warned())


def test_many_dropped_purgatories_leave_no_thread(warned):
    """As many as are dropped end."""
    for number in range(50):
        purgatory = DelayedOperationPurgatory(f"dropped {number}")
        purgatory.try_complete_else_watch(Waiting(number % 2), ["k"])
    del purgatory

    assert eventually(ended)
    assert 50 == len(warned())


def test_purgatory_that_was_shut_down_warns_of_nothing(warned):
    """A shutdown is what the warning asks for."""
    with DelayedOperationPurgatory("closed") as purgatory:
        purgatory.try_complete_else_watch(Waiting(600_000), ["k"])
    del purgatory
    gc.collect()

    assert [] == warned()


def test_purgatory_on_a_timer_of_the_programs_drives_it_on(warned):
    """A purgatory that drives the program's timer may be dropped: the thread drives the timer as long as it is held."""
    with SystemTimer("shared") as timer:
        DelayedOperationPurgatory("dropped", timer=timer)
        gc.collect()
        staying = DelayedOperationPurgatory("staying", timer=timer, reaper_enabled=False)
        operation = Waiting(20)
        staying.try_complete_else_watch(operation, ["k"])

        assert eventually(lambda: operation.is_completed)
        staying.shutdown()
    assert eventually(ended)
    assert [] == warned()


def test_dropped_async_purgatory_leaves_nothing(warned):
    """An ``AsyncPurgatory`` has no thread of its own. Dropped, it is collected with what waits in it."""

    async def main():
        purgatory = AsyncPurgatory("dropped")
        assert not await purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=1)

    asyncio.run(main())
    gc.collect()

    assert [] == live()
    assert [] == reapers()
    assert [] == warned()


def test_exit_warns_of_no_purgatory_that_is_referenced():
    """At the end of the interpreter, a purgatory that a module still holds is not warned of."""
    program = """
        from purgatory import DelayedFuturePurgatory, DelayedOperationPurgatory
        from concurrent.futures import Future
        idle = DelayedOperationPurgatory("idle")
        busy = DelayedFuturePurgatory("busy")
        busy.try_complete_else_watch(600_000, [Future()], print)
    """
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert "" == done.stderr
