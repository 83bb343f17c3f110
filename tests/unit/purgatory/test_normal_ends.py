"""Ends that a type calls normal: how it says so, and how they are counted."""

from concurrent.futures import Future

import pytest

from purgatory import (
    DelayedFuturePurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidSetting,
    Outcome,
    ThresholdPurgatory,
)
from tests.support import Waiting, park_all, satisfy
from timer import MockTimer


class Poll(Waiting):
    normal_ends = frozenset({Outcome.EXPIRED})


class Lease(Waiting):
    normal_ends = frozenset({Outcome.EXPIRED, Outcome.CANCELLED})


def counted(purgatory):
    totals = purgatory.totals()
    return totals.expired, totals.expired_normally, totals.cancelled, totals.cancelled_normally


def test_normal_ends_are_inherited():
    """By default no end is normal. A subclass has the normal ends of its base class, and may say otherwise."""

    class Longer(Poll):
        pass

    class Strict(Poll):
        normal_ends = ()

    assert frozenset() == DelayedOperation.normal_ends == Waiting.normal_ends
    assert frozenset({Outcome.EXPIRED}) == Longer.normal_ends
    assert frozenset() == Strict.normal_ends


def test_mixin_says_which_ends_are_normal():
    """A mixin that is not an operation says it for the types that derive from it."""

    class Expires:
        normal_ends = [Outcome.EXPIRED]

    class Mixed(Expires, Waiting):
        pass

    assert frozenset({Outcome.EXPIRED}) == Mixed.normal_ends


@pytest.mark.parametrize("ends", [{Outcome.EXPIRED}, [Outcome.EXPIRED], (Outcome.EXPIRED, Outcome.EXPIRED)])
def test_normal_ends_are_frozen(ends):
    """Any collection will do. The class has a frozen set."""
    kind = type("Frozen", (Waiting,), {"normal_ends": ends})

    assert frozenset({Outcome.EXPIRED}) == kind.normal_ends
    assert isinstance(kind.normal_ends, frozenset)


@pytest.mark.parametrize("ends", ["expired", Outcome.EXPIRED, {Outcome.SATISFIED}, ["expired"], None, True, property()])
def test_wrong_normal_ends_are_rejected(ends):
    """A class with anything else is not made. The error names the class and the value."""
    with pytest.raises(InvalidSetting, match=r"Wrong.normal_ends must be a collection of Outcome.EXPIRED") as raised:
        type("Wrong", (Waiting,), {"normal_ends": ends})

    assert ends is raised.value.value
    assert str(raised.value).endswith("; write {Outcome.EXPIRED}")


def test_normal_ends_are_counted_apart():
    """Of the expired and the cancelled operations, those are counted whose type calls that end normal."""
    timer = MockTimer()
    with DelayedOperationPurgatory("p", timer=timer) as purgatory:
        for kind in (Waiting, Poll, Poll, Lease):
            purgatory.try_complete_else_watch(kind(5), ["late"])
            purgatory.try_complete_else_watch(kind(500), ["gone"])
        purgatory.cancel_for_key("gone")
        timer.advance_clock(5)

        assert (4, 3, 4, 1) == counted(purgatory)


def test_other_ends_are_not_counted_as_normal():
    """An operation that is answered, at once or later, or forced, is no normal end: it needs none."""
    with DelayedOperationPurgatory("p", timer=MockTimer()) as purgatory:
        purgatory.try_complete_else_watch(Lease(ready=True), ["k"])
        answered, forced = park_all(purgatory, [Lease(), Lease()])
        satisfy(purgatory, "k", answered)
        forced.force_complete()

        assert (0, 0, 0, 0) == counted(purgatory)


def test_shutdown_ends_polls_normally():
    """A poll that a shutdown expires ends as it would have ended at its deadline."""
    with DelayedOperationPurgatory("p", timer=MockTimer()) as purgatory:
        purgatory.try_complete_else_watch(Poll(), ["k"])

    assert (1, 1, 0, 0) == counted(purgatory)


def test_thresholds_take_normal_ends():
    """``ThresholdPurgatory`` says for all of its waits which ends are normal."""
    timer = MockTimer()
    with ThresholdPurgatory("t", timer=timer, normal_ends={Outcome.EXPIRED}) as thresholds:
        late = thresholds.wait(3, 5)
        timer.advance_clock(5)

        assert isinstance(late.exception(0), TimeoutError)
        assert (1, 1, 0, 0) == counted(thresholds.purgatory)


def test_futures_take_normal_ends():
    """``DelayedFuturePurgatory`` says for all of its sets which ends are normal. The type keeps its name."""
    timer = MockTimer()
    with DelayedFuturePurgatory("f", timer=timer, normal_ends=[Outcome.CANCELLED]) as futures:
        operation = futures.try_complete_else_watch(5, [Future()], lambda _: None)
        operation.cancel()

        assert "DelayedFuture" == type(operation).__name__
        assert (0, 0, 1, 1) == counted(futures.purgatory)


@pytest.mark.parametrize("made", [ThresholdPurgatory, DelayedFuturePurgatory])
def test_ready_made_purgatories_reject_wrong_normal_ends(made):
    """The error names the argument, and nothing was started."""
    with pytest.raises(InvalidSetting, match="normal_ends must be a collection of"):
        made("x", normal_ends="expired")
