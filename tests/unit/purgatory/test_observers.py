"""Observers: notified of each operation that comes and goes."""

import pytest

from purgatory import Outcome, PurgatoryFull
from tests.support import Notes, park, raising, satisfy
from tests.support.operations import WAYS_OUT


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def watched(make, notes):
    return make(observers=[notes], max_parked=2)


def test_immediate_is_finished_but_not_parked(watched, notes):
    """An operation that completes at once never was parked."""
    operation = park(watched, ready=True)

    assert [(Outcome.IMMEDIATE, operation, None, ("complete",))] == notes.seen


@pytest.mark.parametrize("outcome", WAYS_OUT)
def test_finished_comes_once_after_the_hooks(watched, notes, outcome):
    """Whatever the outcome, observers are notified once, when the hooks have run."""
    operation = park(watched, "k", "j")
    WAYS_OUT[outcome](watched, operation)
    hooks = {Outcome.CANCELLED: (), Outcome.EXPIRED: ("complete", "expire")}.get(outcome, ("complete",))

    assert [("parked", operation), (outcome, operation, None, hooks)] == notes.seen


def test_observer_learns_what_a_hook_raised(watched, notes, mock_timer):
    """The error of a hook comes with the outcome."""
    error = OSError("no disk")
    park(watched, complete=raising(error)).force_complete()
    park(watched, delay_ms=5, expire=raising(error))
    mock_timer.advance_clock(5)

    assert [error, error] == [note[2] for note in notes.seen if note[0] != "parked"]


def test_cancel_for_key_and_shutdown_are_told(watched, notes):
    """Observers are notified of operations that leave by key or by a shutdown, and of none that was rejected."""
    park(watched, "a")
    park(watched, "b")
    with pytest.raises(PurgatoryFull):
        park(watched, "b")
    assert 2 == len(notes.seen)
    watched.cancel_for_key("a")
    watched.shutdown()

    assert [(Outcome.CANCELLED, None), (Outcome.EXPIRED, None)] == notes.ends


@pytest.mark.guarantee("hooks that raise")
def test_observer_that_raises_is_contained(make, notes, logs):
    """An error of an observer stops neither the operation nor the other observers. It is counted and logged."""
    failing = type("Failing", (), {"parked": raising(OSError), "finished": raising(OSError)})()
    purgatory = make(observers=[failing, notes])
    operation = park(purgatory)

    assert 1 == satisfy(purgatory, "k", operation)
    assert 2 == len(notes.seen)
    assert {"observer": 2} == purgatory.snapshot().callback_errors
    assert ["observer_failed"] == [entry["event"] for entry in logs if "Failing" in entry.get("observer", "")]


def test_observers_come_and_go(purgatory, notes):
    """An observer may be attached, once however often, and detached, while the purgatory works."""
    park(purgatory)
    purgatory.attach(notes)
    purgatory.attach(notes)
    operation = park(purgatory)
    purgatory.detach(notes)
    operation.force_complete()

    assert [("parked", operation)] == notes.seen
