"""Observers: notified of each operation that comes and goes."""

import pytest

from purgatory import DelayedOperationPurgatory, Outcome, PurgatoryFull
from tests.support import park, satisfy
from tests.support.operations import WAYS_OUT


class Notes:
    """Records each notification."""

    def __init__(self, fail=False):
        self.seen = []
        self.fail = fail

    def parked(self, operation):
        self.seen.append(("parked", operation))
        if self.fail:
            raise OSError("observer")

    def finished(self, operation, outcome, error):
        self.seen.append((outcome, operation, error, tuple(operation.history)))
        if self.fail:
            raise OSError("observer")


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def watched(mock_timer, notes):
    with DelayedOperationPurgatory("test", timer=mock_timer, observers=[notes]) as purgatory:
        yield purgatory


def test_outcomes_are_words():
    """The outcomes have the names that logs, metrics and journals use."""
    assert ["immediate", "satisfied", "expired", "cancelled", "forced"] == [outcome.value for outcome in Outcome]


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


def test_observer_learns_what_a_hook_raised(watched, notes):
    """The error of a hook comes with the outcome."""
    error = OSError("no disk")

    def fail(_):
        raise error

    operation = park(watched, complete=fail)
    operation.force_complete()
    park(watched, delay_ms=5, expire=fail)
    watched.timer.advance_clock(5)

    assert [error, error] == [note[2] for note in notes.seen if note[0] != "parked"]


def test_cancel_for_key_and_shutdown_are_told(mock_timer, notes):
    """Observers are notified of operations that are cancelled by key or settled by a shutdown."""
    with DelayedOperationPurgatory("test", timer=mock_timer, observers=[notes]) as purgatory:
        park(purgatory, "a")
        park(purgatory, "b")
        purgatory.cancel_for_key("a")

    assert [Outcome.CANCELLED, Outcome.EXPIRED] == [note[0] for note in notes.seen if note[0] != "parked"]


def test_refused_operation_is_not_told(mock_timer, notes):
    """An operation that was never parked is not reported."""
    with DelayedOperationPurgatory("test", timer=mock_timer, max_parked=1, observers=[notes]) as purgatory:
        park(purgatory)
        with pytest.raises(PurgatoryFull):
            park(purgatory)

        assert 1 == len(notes.seen)


@pytest.mark.guarantee("hooks that raise")
def test_observer_that_raises_is_contained(mock_timer, logs):
    """An error of an observer stops neither the operation nor the other observers. It is counted and logged."""
    failing, good = Notes(fail=True), Notes()
    with DelayedOperationPurgatory("contained", timer=mock_timer, observers=[failing, good]) as purgatory:
        operation = park(purgatory)

        assert 1 == satisfy(purgatory, "k", operation)
        assert (2, 2) == (len(failing.seen), len(good.seen))
        assert {"observer": 2} == purgatory.snapshot().callback_errors
    assert "observer_failed" in [entry["event"] for entry in logs]


def test_observers_come_and_go(purgatory, notes):
    """An observer may be attached, once however often, and detached, while the purgatory works."""
    park(purgatory)
    purgatory.attach(notes)
    purgatory.attach(notes)
    operation = park(purgatory)
    purgatory.detach(notes)
    operation.force_complete()

    assert [("parked", operation)] == notes.seen
