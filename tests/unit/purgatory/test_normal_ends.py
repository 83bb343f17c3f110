"""Ends that a type calls normal: how it says so, and how they are counted."""

from concurrent.futures import Future

import pytest

from purgatory import DelayedFuturePurgatory, DelayedOperation, InvalidSetting, Outcome, ThresholdPurgatory
from tests.support import Waiting, park_all, park_one, satisfy


class Poll(Waiting):
    normal_ends = frozenset({Outcome.EXPIRED})


class Lease(Waiting):
    normal_ends = frozenset({Outcome.EXPIRED, Outcome.CANCELLED})


def counted(purgatory):
    totals = purgatory.totals()
    return totals.expired, totals.expired_normally, totals.cancelled, totals.cancelled_normally


def kind(*bases, **attributes):
    return type("Made", bases, attributes)


@pytest.mark.parametrize(
    ("made", "ends"),
    [
        (DelayedOperation, set()),
        (kind(Poll), {Outcome.EXPIRED}),
        (kind(Poll, normal_ends=()), set()),
        (kind(kind(normal_ends=[Outcome.EXPIRED]), Waiting), {Outcome.EXPIRED}),
        (kind(Waiting, normal_ends=(Outcome.EXPIRED, Outcome.EXPIRED)), {Outcome.EXPIRED}),
    ],
    ids=["none by default", "inherited", "taken back", "of a mixin", "any collection"],
)
def test_type_says_which_ends_are_normal(made, ends):
    """A subclass has the normal ends of its bases, and may say otherwise. Any collection becomes a frozen set."""
    assert frozenset(ends) == made.normal_ends
    assert isinstance(made.normal_ends, frozenset)


@pytest.mark.parametrize("ends", ["expired", Outcome.EXPIRED, {Outcome.SATISFIED}, ["expired"], None, True, property()])
def test_wrong_normal_ends_are_rejected(ends):
    """A class with anything else is not made. The error names the class and the value."""
    with pytest.raises(InvalidSetting, match=r"Made.normal_ends must be a collection of Outcome.EXPIRED") as raised:
        kind(Waiting, normal_ends=ends)

    assert ends is raised.value.value
    assert str(raised.value).endswith("; write {Outcome.EXPIRED}")


def test_normal_ends_are_counted_apart(purgatory, mock_timer):
    """Of the expired and the cancelled operations, those are counted whose type calls that end normal.

    An operation that is answered, at once or later, or forced, needs no normal end. One that a shutdown expires ends as
    at its deadline.
    """
    for made in (Waiting, Poll, Poll, Lease):
        park_one(purgatory, made(5), "late")
        park_one(purgatory, made(500), "gone")
    purgatory.cancel_for_key("gone")
    mock_timer.advance_clock(5)
    assert (4, 3, 4, 1) == counted(purgatory)

    park_one(purgatory, Lease(ready=True))
    answered, forced, _ = park_all(purgatory, [Lease(), Lease(), Poll()])
    satisfy(purgatory, "k", answered)
    forced.force_complete()
    assert (4, 3, 4, 1) == counted(purgatory)
    purgatory.shutdown()
    assert (5, 4, 4, 1) == counted(purgatory)


def test_thresholds_take_normal_ends(mock_timer):
    """``ThresholdPurgatory`` says for all of its waits which ends are normal."""
    with ThresholdPurgatory("t", timer=mock_timer, normal_ends={Outcome.EXPIRED}) as thresholds:
        late = thresholds.wait(3, 5)
        mock_timer.advance_clock(5)

        assert isinstance(late.exception(0), TimeoutError)
        assert (1, 1, 0, 0) == counted(thresholds.purgatory)


def test_futures_take_normal_ends(mock_timer):
    """``DelayedFuturePurgatory`` says for all of its sets which ends are normal. The type keeps its name."""
    with DelayedFuturePurgatory("f", timer=mock_timer, normal_ends=[Outcome.CANCELLED]) as futures:
        operation = futures.try_complete_else_watch(5, [Future()], lambda _: None)
        operation.cancel()

        assert "DelayedFuture" == type(operation).__name__
        assert (0, 0, 1, 1) == counted(futures.purgatory)


@pytest.mark.parametrize("made", [ThresholdPurgatory, DelayedFuturePurgatory])
def test_ready_made_purgatories_reject_wrong_normal_ends(made):
    """The error names the argument, and nothing was started."""
    with pytest.raises(InvalidSetting, match="normal_ends must be a collection of"):
        made("x", normal_ends="expired")
