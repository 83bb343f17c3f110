"""Purging: finished operations are let go of at once, their entries in the lists soon."""

import gc
import weakref

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Waiting, eventually


def park(purgatory, *keys, **settings):
    operation = Waiting(**settings)
    purgatory.try_complete_else_watch(operation, keys)
    return operation


def satisfy(purgatory, operation):
    operation.ready = True
    purgatory.check_and_complete("busy")


def expire(purgatory, operation):
    purgatory.timer.advance_clock(60_000)


def force(purgatory, operation):
    operation.force_complete()


def cancel(purgatory, operation):
    operation.cancel()


def cancel_key(purgatory, operation):
    purgatory.cancel_for_key("busy")


@pytest.mark.parametrize("leave", [satisfy, expire, force, cancel, cancel_key], ids=lambda f: f.__name__)
def test_finished_operation_is_not_kept_alive_by_a_quiet_key(purgatory, leave):
    """An operation that is done is garbage at once, although it was parked under a key that nobody checks."""
    operation = park(purgatory, "busy", "quiet")
    leave(purgatory, operation)
    gone = weakref.ref(operation)
    del operation
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("leave", [satisfy, expire, force, cancel, cancel_key], ids=lambda f: f.__name__)
def test_purge_drops_the_entries_of_the_finished(purgatory, leave):
    """After a purge only the entries of those who wait are in the lists, and the empty keys are gone."""
    waiting = park(purgatory, "quiet", "other")
    leave(purgatory, park(purgatory, "busy", "quiet", delay_ms=500))
    if leave is expire:
        waiting = park(purgatory, "quiet", "other")
    purgatory.purge()
    snapshot = purgatory.snapshot()

    assert (2, 2, 0) == (snapshot.watched, snapshot.keys, snapshot.purge_debt)
    assert [waiting] == purgatory.operations_for_key("quiet")
    assert 0 == purgatory.purge()


def test_purge_says_how_many_it_dropped(purgatory):
    """The answer is the number of entries."""
    for number in range(10):
        park(purgatory, number, "quiet").force_complete()

    assert 20 == purgatory.watched
    assert 20 == purgatory.purge()
    assert 0 == purgatory.watched


def test_purge_starts_by_itself(mock_timer):
    """Once more than ``purge_interval`` entries of finished operations are in the lists, they are dropped."""
    with DelayedOperationPurgatory("test", timer=mock_timer, purge_interval=10) as purgatory:
        waiting = [park(purgatory, "quiet") for _ in range(5)]
        watched = []
        for number in range(100):
            operation = park(purgatory, number, "quiet")
            operation.ready = True
            purgatory.check_and_complete(number)
            watched.append(purgatory.watched)

        assert 5 + 11 >= max(watched)
        assert 5 + 5 <= max(watched)
        assert waiting == purgatory.operations_for_key("quiet")


def test_purge_interval_of_zero_keeps_nothing(mock_timer):
    """With an interval of zero every entry is dropped as soon as its operation is done."""
    with DelayedOperationPurgatory("test", timer=mock_timer, purge_interval=0) as purgatory:
        park(purgatory, "a", "b", "c").force_complete()

        assert 0 == purgatory.watched


def test_large_purge_is_done_in_slices(threaded):
    """While a large purge is under way, what falls due expires in time."""
    operations = [park(threaded, number, "quiet") for number in range(20_000)]
    for operation in operations:
        operation.force_complete()
    late = park(threaded, "k", delay_ms=5)
    threaded.purge()

    assert eventually(lambda: late.history == ["complete", "expire"])
    threaded.purge()
    assert 0 == threaded.watched


def test_purge_that_starts_by_itself_drops_a_slice(mock_timer):
    """Whoever finds that too much is left behind drops a bounded part of it, and goes on with their own work."""
    with DelayedOperationPurgatory("test", timer=mock_timer, purge_interval=4_000, reaper_enabled=False) as purgatory:
        for number in range(2_001):
            park(purgatory, number, "quiet").cancel()

        assert 2_000 < purgatory.watched < 4_000


def test_purge_leaves_who_waits(purgatory):
    """A purge of a list with many living entries drops the dead ones only."""
    operations = [park(purgatory, "k", number) for number in range(200)]
    for operation in operations[::2]:
        operation.cancel()
    purgatory.purge()

    assert operations[1::2] == purgatory.operations_for_key("k")
    assert 200 == purgatory.watched


def test_purge_debt_is_what_a_purge_would_drop(purgatory):
    """The snapshot tells how many entries of finished operations are in the lists."""
    park(purgatory, "a", "b", "c").force_complete()
    park(purgatory, "a")
    debt = purgatory.snapshot().purge_debt

    assert 3 == debt == purgatory.purge()
    park(purgatory, "k")
    purgatory.cancel_for_key("k")
    assert 0 == purgatory.snapshot().purge_debt


def test_advance_clock_purges_too(mock_timer):
    """A purgatory without a reaper clears away while its clock is advanced."""
    with DelayedOperationPurgatory("test", timer=mock_timer, purge_interval=5_000) as purgatory:
        for number in range(3_000):
            park(purgatory, number, "quiet").force_complete()
        purgatory.advance_clock(0)

        assert 5_000 >= purgatory.watched
