"""The short version of the tally, and that each thing it looks for is counted if it is there."""

import sys

import pytest

from purgatory import DelayedOperationPurgatory
from tests.simulation.tally import DAY_MS, Request, Tally, tally


@pytest.fixture
def often():
    """A switch interval at which threads meet often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(50e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_a_tally_finds_nothing():
    """A fifth of a million operations, each ended once, none early, and the purgatory's totals say the same."""
    found = tally(200_000, seed=3)
    assert found.is_clean, found
    assert 200_000 == found.operations == found.answered + found.taken_out
    assert found.expired > 1_000
    assert found.taken_out > 1_000


@pytest.fixture
def ended():
    """An operation that was answered as it should be."""
    with DelayedOperationPurgatory("one") as purgatory:
        request = Request(DAY_MS)
        purgatory.try_complete_else_watch(request, ["k"])
        request.force_complete()
        yield request


@pytest.mark.parametrize(
    ("spoil", "counted"),
    [
        ({}, {}),
        ({"answers": 0}, {"lost": 1, "answered": 0}),
        ({"answers": 2}, {"doubled": 1}),
        ({"early": 1}, {"early": 1}),
        ({"expirations": 1}, {"adrift": 1}),
    ],
)
def test_what_is_wrong_is_counted(ended, spoil, counted):
    """Lost, doubled, early and an expiry that is none: each shows."""
    for name, value in spoil.items():
        setattr(ended, name, value)
    found = Tally()
    found.count([ended])
    assert Tally(**{"operations": 1, "answered": 1} | counted) == found
    assert found.is_clean == (not spoil)


def test_who_never_ended_is_lost():
    """An operation without an outcome counts as lost."""
    found = Tally()
    found.count([Request(DAY_MS)])
    assert (1, 0) == (found.lost, found.answered)


def test_a_missed_event_is_seen(monkeypatch):
    """With a purgatory that drops the checks of one key, operations have no outcome in the end."""
    real = DelayedOperationPurgatory.check_and_complete
    monkeypatch.setattr(
        DelayedOperationPurgatory,
        "check_and_complete",
        lambda self, key, limit=None: 0 if key == 3 else real(self, key, limit=limit),
    )
    found = tally(4_000, threads=2, each=2_000, patience_s=0.2)
    assert not found.is_clean
    assert found.lost
