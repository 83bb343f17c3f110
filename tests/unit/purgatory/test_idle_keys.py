"""Nothing stays of operations that left: no operation, no entry, and a limited number of idle keys."""

import contextlib
import gc
import itertools
import weakref

import pytest

from purgatory import COMPILED, PurgatoryClosed
from purgatory._core.shards import Shard
from tests.support import cpython_only, park, park_many
from tests.support.operations import WAYS_OUT
from tests.unit.purgatory.tools import Key

WAYS = {**WAYS_OUT, "cancelled by key": lambda purgatory, operation: purgatory.cancel_for_key(operation.keys[0])}


def come_and_go(purgatory, keys):
    """Park an operation under each of the keys in turn, which leaves at once."""
    for key in keys:
        park(purgatory, key).force_complete()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.guarantee("nothing is left behind")
def test_finished_operation_is_under_no_key(purgatory, way):
    """The thread that completes an operation removes it from all its keys, at once, though none is ever checked."""
    operation = park(purgatory, "busy", "quiet")
    WAYS[way](purgatory, operation)
    gone = weakref.ref(operation)
    del operation
    gc.collect()
    assert gone() is None

    waiting = park(purgatory, "quiet", "other")
    assert (2, [waiting]) == (purgatory.watched, purgatory.operations_for_key("quiet"))
    assert (0, 1, 1) == tuple(map(purgatory.watching, ("busy", "quiet", "other")))


def test_purge_says_how_many_keys_it_forgot(purgatory):
    """A purge forgets the idle keys, and leaves every key in use alone."""
    come_and_go(purgatory, range(10))
    operations = [park(purgatory, "k", 100 + number) for number in range(20)]
    for operation in operations[::2]:
        operation.cancel()

    assert (11, 20) == (purgatory.snapshot().keys, purgatory.snapshot().idle_keys)
    assert [20, 0] == [purgatory.purge() for _ in range(2)]
    assert (0, 20) == (purgatory.snapshot().idle_keys, purgatory.snapshot().forgotten_keys)
    assert operations[1::2] == purgatory.operations_for_key("k")
    assert (20, 11) == (purgatory.watched, purgatory.known_keys)


def test_key_that_falls_idle_again_is_noted_again(purgatory):
    """A key that was wanted between two purges is forgotten by the second, if it is idle then."""
    park(purgatory, "k").force_complete()
    operation = park(purgatory, "k")
    assert 0 == purgatory.purge()
    operation.force_complete()

    assert 1 == purgatory.purge()


@pytest.mark.guarantee("nothing is left behind")
def test_purge_interval_of_zero_keeps_nothing(make):
    """With an interval of zero a key is forgotten as soon as it is idle."""
    purgatory = make(purge_interval=0)
    park(purgatory, "a", "b", "c").force_complete()

    assert (0, 3) == (purgatory.snapshot().idle_keys, purgatory.snapshot().forgotten_keys)


def test_as_many_keys_may_be_idle_as_are_in_use(make):
    """Keys that take turns are not made again each time: the more are in use, the more may be idle."""
    purgatory = make(purge_interval=10)
    for number in range(3_000):
        park(purgatory, number)
    for _ in range(3):
        come_and_go(purgatory, range(5_000, 7_000))

    snapshot = purgatory.snapshot()
    assert (3_000, 2_000) == (snapshot.keys, snapshot.idle_keys)
    assert 10 > snapshot.forgotten_keys
    for number in range(3_000):
        purgatory.cancel_for_key(number)
    come_and_go(purgatory, range(10_000, 12_000))
    assert 600 > purgatory.snapshot().idle_keys


@pytest.mark.guarantee("nothing is left behind")
def test_one_call_forgets_at_most_two_keys(make):
    """No more keys are idle than ``purge_interval``. A thread whose key is one too many looks at two others at most."""
    purgatory, forgotten = make(purge_interval=1_000), [0]
    come_and_go(purgatory, range(1_000))
    for number in range(1_000, 1_100):
        come_and_go(purgatory, [number])
        forgotten.append(purgatory.snapshot().forgotten_keys)
        assert 1_000 == purgatory.snapshot().idle_keys
    assert max(after - before for before, after in itertools.pairwise(forgotten)) <= 2


@pytest.mark.skipif(COMPILED, reason="no Python code notes a key in C")
def test_late_note_of_a_forgotten_key_takes_nobody_with_it(purgatory):
    """A late thread notes a key that was forgotten. A new operation under the same key stays."""
    before = park(purgatory, "k")
    forgotten = purgatory._shards.find("k")
    before.cancel()
    purgatory.purge()
    newcomer = park(purgatory, "k")
    purgatory._idle_keys.append(forgotten)
    purgatory.purge()

    assert [newcomer] == purgatory.operations_for_key("k")


@cpython_only
def test_key_that_finds_no_stack_to_be_forgotten_on_stays_noted(purgatory):
    """A purge on a stack that is used up forgets what it can, and the next one the rest."""

    def deep():
        try:
            deep()
        finally:
            with contextlib.suppress(RecursionError):
                purgatory.purge()

    for number in range(50):
        park(purgatory, f"key {number}", ("pair", number), Key(number)).cancel()
        with pytest.raises(RecursionError):
            deep()
    purgatory.purge()

    assert 0 == purgatory.known_keys
    assert (0, 150) == (purgatory.snapshot().idle_keys, purgatory.snapshot().forgotten_keys)


@pytest.mark.skipif(COMPILED, reason="in C, no thread comes between a look at the entries and what follows from it")
def test_key_whose_last_operation_left_while_it_was_looked_at_is_forgotten_later(purgatory, monkeypatch):
    """An operation is parked under an idle key that is being forgotten, and leaves before that is given up."""
    come_and_go(purgatory, ["k"])
    remove = Shard.remove_if_empty

    def park_first(shard, watchers):
        (last,) = park_many(purgatory, 1)
        is_forgotten = remove(shard, watchers)
        last.force_complete()
        return is_forgotten

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "remove_if_empty", park_first)
        assert 0 == purgatory.purge()

    assert (1, 1) == (purgatory.known_keys, purgatory.purge())
    assert 0 == purgatory.known_keys


def test_a_forgotten_key_is_not_noted_again(make):
    """A parked operation that a shutdown cancels removes itself twice. The second time, its forgotten keys stay out."""
    purgatory = make(reaper_enabled=False, purge_interval=1)
    with pytest.raises(PurgatoryClosed):
        park(purgatory, "first", "second", look=lambda _: purgatory.shutdown())
    assert (1, 1) == (purgatory.known_keys, purgatory.queued_keys)
