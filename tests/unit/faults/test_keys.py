"""Keys with a mind of their own, and keys with a crowd."""

import threading
import time

import pytest

from purgatory import DelayedOperationPurgatory, Outcome, UnhashableKey
from tests.support import Waiting, in_thread

CROWD = 200_000


class Hostile:
    """A key whose hash and equality do as they are told."""

    def __init__(self, value=0):
        self.value = value
        self.hash_error = self.eq_error = None

    def __hash__(self):
        if self.hash_error is not None:
            raise self.hash_error
        return self.value

    def __eq__(self, other):
        if self.eq_error is not None:
            raise self.eq_error
        return self is other


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory(
        "faults", timer=mock_timer, reaper_enabled=False, shards=1, purge_interval=0
    ) as purgatory:
        yield purgatory


def test_a_key_without_a_hash_is_refused_before_anything_happens(purgatory):
    """The operation is untouched, and may be parked under better keys."""
    operation = Waiting()
    with pytest.raises(UnhashableKey):
        purgatory.try_complete_else_watch(operation, ["k", []])
    assert 0 == operation.checks == purgatory.watched
    assert not purgatory.try_complete_else_watch(operation, ["k"])


def test_an_equality_that_raises_while_parking_leaves_nothing_behind(purgatory, mock_timer):
    """The second key's comparison raises: the operation is out of the first key, too."""
    bad = Hostile()
    purgatory.try_complete_else_watch(Waiting(), [bad])
    bad.eq_error = ArithmeticError("no")
    operation = Waiting()
    with pytest.raises(ArithmeticError):
        purgatory.try_complete_else_watch(operation, ["k", Hostile()])
    bad.eq_error = None
    assert operation.outcome is Outcome.CANCELLED
    purgatory.purge()
    assert 1 == purgatory.watched == purgatory.parked == mock_timer.size


@pytest.mark.parametrize("how", ["hash_error", "eq_error"])
def test_a_key_gone_bad_stops_no_operation(purgatory, how):
    """Its hash or equality begins to raise while operations wait: each still completes once, through other keys."""
    key = Hostile()
    operations = [Waiting() for _ in range(4)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, [key, "k"])
    setattr(key, how, ArithmeticError("no"))
    operations[0].ready = True
    assert 1 == purgatory.check_and_complete("k")
    assert operations[1].force_complete()
    assert operations[2].cancel()
    purgatory.purge()
    assert [["complete"], ["complete"], [], []] == [operation.history for operation in operations]
    assert 1 == purgatory.parked
    purgatory.advance_clock(60_000)
    assert ["complete", "expire"] == operations[3].history


def test_a_key_whose_hash_changes_hangs_nobody(purgatory):
    """It can't be found any more; completing what waits under it, and parking under it again, still work."""
    key = Hostile(1)
    first = Waiting()
    purgatory.try_complete_else_watch(first, [key, "k"])
    key.value = 2
    first.ready = True
    assert 1 == in_thread(lambda: purgatory.check_and_complete("k"))
    in_thread(purgatory.purge)
    key.value = 1
    second = Waiting()
    assert not in_thread(lambda: purgatory.try_complete_else_watch(second, [key]))
    second.ready = True
    assert 1 == in_thread(lambda: purgatory.check_and_complete(key))


def test_a_hash_that_calls_the_purgatory_is_served(purgatory):
    """A key's ``__hash__`` may look into the purgatory that is asking for it."""
    seen = []

    class Nosy:
        def __hash__(self):
            seen.append(purgatory.parked)
            purgatory.check_and_complete("k")
            return 7

        def __eq__(self, other):
            purgatory.check_and_complete("k")
            return isinstance(other, Nosy)

    for _ in range(2):
        assert not in_thread(lambda: purgatory.try_complete_else_watch(Waiting(), [Nosy(), "x"]))
    assert 2 == len(in_thread(lambda: purgatory.cancel_for_key(Nosy())))
    in_thread(purgatory.purge)
    assert seen
    assert 0 == purgatory.watched


def test_a_crowd_under_one_key_is_left_by_one_without_asking_the_others(purgatory, mock_timer):
    """With 200,000 operations under a key, completing one takes no longer than with ten."""
    for _ in range(CROWD):
        purgatory.try_complete_else_watch(Waiting(), ["k"])
    one = Waiting()
    purgatory.try_complete_else_watch(one, ["k", "l"])
    one.ready = True
    started = time.perf_counter()
    assert 1 == purgatory.check_and_complete("l")
    assert time.perf_counter() - started < 0.05
    assert CROWD == purgatory.parked == mock_timer.size == len(purgatory.operations_for_key("k"))

    started = time.perf_counter()
    assert CROWD == len(purgatory.cancel_for_key("k"))
    assert time.perf_counter() - started < 20
    assert 0 == purgatory.parked == mock_timer.size


def test_a_crowd_expires_while_others_are_served(no_threads_left):
    """Fifty thousand operations under one key fall due at once: each expires once, and another key is not held up."""
    count = 50_000
    with DelayedOperationPurgatory("faults") as purgatory:
        operations = [Waiting(2_000) for _ in range(count)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["k"])
        slowest = 0.0
        give_up = time.monotonic() + 60
        while purgatory.parked and time.monotonic() < give_up:
            one = Waiting()
            started = time.perf_counter()
            purgatory.try_complete_else_watch(one, ["other"])
            one.ready = True
            assert 1 == purgatory.check_and_complete("other")
            slowest = max(slowest, time.perf_counter() - started)
            threading.Event().wait(0.005)
    assert [["complete", "expire"]] * count == [operation.history for operation in operations]
    assert slowest < 5
