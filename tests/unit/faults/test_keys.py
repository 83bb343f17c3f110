"""Keys with a mind of their own, and keys with a crowd."""

import gc
import sys
import threading
import time

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from tests.support.interpreters import cpython_only
from tests.support.operations import Waiting, park, park_all, park_many, park_one, raising, satisfy
from tests.support.threads import PATIENCE_S, Hang, beside, in_thread

CROWD = 1_000_000


class Hostile:
    """A key whose hash and equality the test sets."""

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


def keys_of(equality, **more):
    """A class of keys that have one hash and this equality."""
    return type("Own", (), {"__hash__": lambda _: 7, "__eq__": equality, **more})


#: Equal to whatever has the same hash, and to nothing, not even to itself.
Alike, Unlike = keys_of(lambda *_: True), keys_of(lambda *_: False)
#: Equality gives something that is neither true nor false, as an array's does, or raises.
Undecided = keys_of(lambda key, _: key, __bool__=raising(ValueError("ambiguous")))
Uncomparable = keys_of(raising(ValueError("no equality")))


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory(
        "faults", timer=mock_timer, reaper_enabled=False, shards=1, purge_interval=0
    ) as purgatory:
        yield purgatory


def assert_empty(purgatory):
    """After a purge nothing is left of any operation."""
    purgatory.purge()
    assert (0, 0, 0) == (purgatory.watched, purgatory.snapshot().keys, purgatory.timer.size)


@pytest.mark.parametrize("how", ["hash_error", "eq_error"])
def test_a_key_gone_bad_stops_no_operation(purgatory, how):
    """Its hash or equality begins to raise while operations wait: each still completes once, through other keys."""
    key = Hostile()
    operations = park_many(purgatory, 4, key, "k")
    setattr(key, how, ArithmeticError("no"))
    assert 1 == satisfy(purgatory, "k", operations[0])
    assert operations[1].force_complete()
    assert operations[2].cancel()
    purgatory.purge()
    assert 1 == purgatory.parked
    purgatory.advance_clock(60_000)
    assert [["complete"], ["complete"], [], ["complete", "expire"]] == [operation.history for operation in operations]


def test_a_key_whose_hash_changes_hangs_nobody(purgatory):
    """It can't be found any more. Completing what waits under it, and parking under it again, still work."""
    key = Hostile(1)
    first = park(purgatory, key, "k")
    key.value = 2
    assert 1 == in_thread(satisfy, purgatory, "k", first)
    in_thread(purgatory.purge)
    key.value = 1
    assert 1 == in_thread(satisfy, purgatory, key, in_thread(park, purgatory, key))


def test_a_hash_that_calls_the_purgatory_is_served(purgatory):
    """A key's ``__hash__`` may look into the purgatory that is asking for it."""
    seen = []

    def look(*_):
        seen.append(purgatory.parked)
        purgatory.check_and_complete("k")
        return 7

    nosy = keys_of(look, __hash__=look)
    first, *_ = in_thread(park_many, purgatory, 3, nosy(), "x")
    assert 1 == in_thread(satisfy, purgatory, nosy(), first)
    assert 2 == len(in_thread(lambda: purgatory.cancel_for_key(nosy())))
    in_thread(purgatory.purge)
    assert seen
    assert 0 == purgatory.watched


def test_keys_that_equal_everything_are_one_key(purgatory):
    """Whatever has their hash finds what waits under any of them. Several of them count once."""
    operations = park_many(purgatory, 3, Alike(), 7, Alike())
    assert 3 == purgatory.watched
    assert 3 == satisfy(purgatory, 7, *operations)
    assert_empty(purgatory)


@pytest.mark.parametrize("keys", [(Unlike(), Unlike()), pytest.param((float("nan"), float("nan")), marks=cpython_only)])
def test_keys_that_equal_nothing_are_told_apart_by_identity(purgatory, keys):
    """Each is found by the very object that was parked under, and cleared away when no operation waits any more."""
    first, second = (park(purgatory, key) for key in keys)
    assert 1 == satisfy(purgatory, keys[0], first, second)
    assert [["complete"], []] == [first.history, second.history]
    assert [second] == purgatory.cancel_for_key(keys[1])
    assert_empty(purgatory)


@pytest.mark.parametrize("kind", [Undecided, Uncomparable])
def test_an_equality_without_an_answer_is_the_parkers_trouble(purgatory, kind):
    """The comparison with a present key raises: the parking call raises it, and the other operations go on waiting."""
    key, second = kind(), Waiting()
    first = park(purgatory, key)
    with pytest.raises(ValueError, match="ambiguous|no equality"):
        park_one(purgatory, second, "k", kind())
    assert Outcome.CANCELLED is second.outcome
    assert 1 == purgatory.parked == purgatory.timer.size
    assert 1 == satisfy(purgatory, key, first)
    assert_empty(purgatory)


def test_an_equality_that_takes_its_time_holds_up_no_other_shard(mock_timer):
    """While two keys are being compared, for as long as it takes, those of other shards are parked on and expire."""
    hang = Hang()
    slow = keys_of(lambda *_: [hang()])
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False, shards=8) as purgatory:
        park(purgatory, slow())
        late = Waiting()
        with beside(lambda: park_one(purgatory, late, slow())):
            assert hang.has_begun()
            satisfied, expiring = in_thread(park_all, purgatory, [Waiting(), Waiting(5)], 6)
            assert 1 == in_thread(satisfy, purgatory, 6, satisfied)
            in_thread(mock_timer.advance_clock, 5)
            assert ["complete", "expire"] == expiring.history
            hang.release()
        assert 2 == len(purgatory.cancel_for_key(7)) == len({late, *purgatory.operations()}) + 1


class Bare(DelayedOperation):
    """As small as an operation can be: there will be many."""

    __slots__ = ()
    left = [0]
    ready = False

    def try_complete(self):
        return self.ready and self.force_complete()

    def on_complete(self):
        self.left[0] += 1


@cpython_only
@pytest.mark.slow
def test_a_million_under_one_key(purgatory, mock_timer, monkeypatch):
    """One of a million leaves without asking the others. One check completes all. Nothing is left of them.

    In processor time, which does not depend on how busy the machine is.
    """
    monkeypatch.setattr(Bare, "left", [0])
    park(purgatory, ready=True)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(CROWD):
        park_one(purgatory, Bare(60_000))
    one = park(purgatory, "k", "l")
    one.ready = True
    gc.disable()  # its own walk over a million objects is not what is measured
    try:
        started = time.thread_time()
        assert 1 == purgatory.check_and_complete("l")
        assert time.thread_time() - started < 0.05
    finally:
        gc.enable()
    assert CROWD == purgatory.parked == mock_timer.size

    monkeypatch.setattr(Bare, "ready", True)
    started = time.thread_time()
    assert CROWD == purgatory.check_and_complete("k")
    assert time.thread_time() - started < 30
    assert [CROWD] == Bare.left
    assert 0 == purgatory.parked
    assert_empty(purgatory)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < CROWD / 1000


def test_a_crowd_expires_while_others_are_served(no_threads_left):
    """Fifty thousand operations under one key fall due at once: each expires once, and another key is served beside."""
    count = 50_000
    with DelayedOperationPurgatory("faults") as purgatory:
        operations = park_all(purgatory, [Waiting(2_000) for _ in range(count)])
        served = 0
        give_up = time.monotonic() + 2 * PATIENCE_S
        while (parked := purgatory.parked) and time.monotonic() < give_up:
            assert 1 == satisfy(purgatory, "other", park(purgatory, "other"))
            served += parked < count  # between the first and the last of them
            threading.Event().wait(0.001)
    assert [["complete", "expire"]] * count == [operation.history for operation in operations]
    assert served > 0
