"""Snapshots: how a purgatory stands, as a frozen value."""

import attrs
import pytest

from purgatory import InvalidSetting, Outcome, PurgatorySnapshot, Totals
from purgatory._core import shards as _shards
from tests.support import park
from tests.support.operations import WAYS_OUT
from timer import MockTimer


def test_empty_purgatory(make):
    """A new purgatory's snapshot has its settings, is empty, stays so whatever comes, and can't be changed."""
    purgatory = make(name="fetch", broker_id=7, max_parked=5)
    snapshot = purgatory.snapshot()
    assert "'fetch': 0 parked" in repr(purgatory)
    park(purgatory, "k")

    assert isinstance(snapshot, PurgatorySnapshot)
    settings = {"name": "fetch", "broker_id": 7, "capacity": 5}
    assert settings == {name: getattr(purgatory, name) for name in settings}
    empty = {**settings, "oldest_age_ms": None, "closed": False, "largest_keys": ()}
    empty |= dict.fromkeys(("parked", "watched", "keys", "delayed", "idle_keys"), 0)
    assert empty == {name: getattr(snapshot, name) for name in empty}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        snapshot.parked = 5


def test_snapshot_tells_what_waits(purgatory, mock_timer):
    """Parked, watched, keys, delayed, the age of the oldest, the largest keys, where in the wheel they are."""
    park(purgatory, "a", "b")
    mock_timer.advance_clock(250)
    park(purgatory, "a", delay_ms=5)
    park(purgatory, "a", "c")
    mock_timer.advance_clock(2)
    snapshot = purgatory.snapshot(largest=1)

    assert (3, 5, 3, 3) == (snapshot.parked, snapshot.watched, snapshot.keys, snapshot.delayed)
    assert 252.0 == snapshot.oldest_age_ms
    assert (("a", 3),) == snapshot.largest_keys
    assert 3 == sum(snapshot.wheel_occupancy)
    assert 1 == snapshot.wheel_occupancy[0]


@pytest.mark.guarantee("counters are exact")
def test_totals_count_every_outcome(purgatory):
    """Every operation that came is counted, and every one that left by how it left."""
    park(purgatory, "k", ready=True)
    for leave in WAYS_OUT.values():
        leave(purgatory, park(purgatory, "k"))
    park(purgatory, "k")
    totals = purgatory.totals()

    assert isinstance(totals, Totals)
    assert [1] * 5 == [getattr(totals, outcome.value) for outcome in Outcome]
    assert (6, 5, 4, 1) == (totals.started, totals.parked, totals.completed, purgatory.parked)
    assert totals == purgatory.snapshot().totals


def test_snapshot_visits_keys_in_stretches(make, mock_timer, monkeypatch):
    """The keys of one shard are visited a few at a time. The figures are those of all of them, the largest first."""
    monkeypatch.setattr(_shards, "CHUNK", 3)
    purgatory = make(shards=1)
    for number in range(10):
        park(purgatory, number, *[f"shared {each}" for each in range(number % 4)])
    mock_timer.advance_clock(7)
    purgatory.cancel_for_key(5)

    assert [3, 3, 3, 3, 1] == [len(chunk) for chunk in purgatory._shards.keys_in_chunks()]
    snapshot = purgatory.snapshot(largest=3)
    assert (9, 12, 1, 21) == (snapshot.parked, snapshot.keys, snapshot.idle_keys, snapshot.watched)
    assert (("shared 0", 6), ("shared 1", 4), ("shared 2", 2)) == snapshot.largest_keys
    assert 7 == snapshot.oldest_age_ms
    assert [0, 12] == [len(purgatory.snapshot(largest=most).largest_keys) for most in (0, 100)]
    with pytest.raises(InvalidSetting):
        purgatory.snapshot(largest=-1)


@pytest.mark.parametrize("delay_ms", [10**12, None])
def test_oldest_operation_may_have_the_longest_delay(purgatory, mock_timer, delay_ms):
    """The age of an operation is known whether it has a far deadline or none."""
    park(purgatory, "k", delay_ms=delay_ms)
    mock_timer.advance_clock(3)
    park(purgatory, "k", "j")

    assert 3 == purgatory.snapshot().oldest_age_ms
    purgatory.cancel_for_key("k")
    assert None is purgatory.snapshot().oldest_age_ms


def test_operation_whose_timer_sets_no_deadline_has_no_age(make):
    """A user's timer may keep its deadlines elsewhere. Then it is not known how long an operation has waited."""
    elsewhere = type("Elsewhere", (MockTimer,), {"add": lambda *_: None})
    purgatory = make(timer=elsewhere(), reaper_enabled=False)
    park(purgatory, "k")

    assert None is purgatory.snapshot().oldest_age_ms
