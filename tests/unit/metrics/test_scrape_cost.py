"""The cost of a scrape and of a snapshot, in calls, because times vary."""

import gc
import itertools
import sys

import pytest
from prometheus_client import generate_latest

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import register
from tests.support import park
from timer import MockTimer


def calls(work):
    """How many functions are called, of Python and of C. The collector, which may have callbacks, does not run."""
    count = 0

    def note(_, event, __):
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.fixture
def filled():
    """Make purgatories with operations that wait under these keys."""
    with MockTimer() as timer:
        made = []

        def fill(keys):
            purgatory = DelayedOperationPurgatory("p", timer=timer, shards=16)
            made.append(purgatory)
            for key in keys:
                park(purgatory, key)
            return purgatory

        yield fill
        for purgatory in made:
            purgatory.shutdown("cancel")


@pytest.mark.parametrize("keys", [range(2_000), [0] * 2_000], ids=["own keys", "one key"])
def test_scrape_costs_the_same_whatever_is_parked(filled, keys, registry, value):
    """A scrape of 2,000 operations calls as many functions as one of a single operation per shard."""
    gc.collect()  # a scrape would find the purgatories of other tests
    register(registry)
    purgatory = filled(range(16))
    generate_latest(registry)  # the first prepares what later ones reuse
    single = calls(lambda: generate_latest(registry))
    for key in keys:
        park(purgatory, key)

    assert 2_016 == value("parked_operations", purgatory="p")
    assert abs(single - calls(lambda: generate_latest(registry))) <= 20


def test_snapshot_walks_keys_and_not_operations(filled):
    """A snapshot of 2,000 operations under ten keys costs what one of ten operations costs."""
    few, many = filled(range(10)), filled(number % 10 for number in range(2_000))

    assert calls(few.snapshot) == calls(many.snapshot)
    assert (2_000, 10, 2_000) == (many.snapshot().parked, many.snapshot().keys, many.snapshot().watched)


def test_snapshot_finds_the_oldest_behind_operations_that_leave(filled):
    """The first operation of a key may be on its way out: then one of those behind it is the oldest."""
    purgatory, ages = filled(()), []
    for delay_ms in (5, 60_000):
        park(purgatory, delay_ms=delay_ms, complete=lambda _: ages.append(purgatory.snapshot().oldest_age_ms))
    purgatory.timer.advance_clock(5)

    assert [5.0] == ages


def test_operations_can_be_taken_in_parts(filled):
    """The first operations of many are given without a walk over all, and each operation is given once."""
    purgatory = filled(range(2_000))
    for keys in itertools.permutations(range(3)):
        park(purgatory, *keys)
    everything = calls(purgatory.operations)

    assert calls(lambda: list(itertools.islice(purgatory.iter_operations(), 50))) < everything / 4
    found = list(purgatory.iter_operations())
    assert 2_006 == len(found) == len(set(found))
    assert set(found) == set(purgatory.operations())
