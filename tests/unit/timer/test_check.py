"""The checker of invariants: it passes a sound timer and finds what is broken in it."""

import pytest

from tests.support import Ping, add_all
from tests.support.tasks import by_hand
from timer._testing import check_invariants


def lose_bucket(timer):
    bucket = timer._wheel.waiting()[0]
    slots = timer._wheel.levels[bucket.level]
    slots[slots.index(bucket)] = None


def misplace(timer):
    first, *_, last = sorted(timer._wheel.waiting(), key=lambda bucket: bucket.first)
    first.take(next(iter(last)), last)


def double(timer):
    first, *_, last = timer._wheel.waiting()
    first[next(iter(last))] = None


def misdate(timer):
    timer.pending()[0]._task_deadline_ns += 10**12


def rush_hand(timer):
    timer._wheel.hand += 3


@pytest.mark.parametrize(
    "damage",
    [
        *(lose_bucket, misplace, misdate, rush_hand),
        pytest.param(lambda timer: timer._wheel.waiting()[0].close(), id="close_bucket"),
        pytest.param(lambda timer: setattr(timer.pending()[0], "_task_bucket", None), marks=pytest.mark.interpreted),
        pytest.param(double, marks=pytest.mark.interpreted),
    ],
)
def test_damage_is_found(damage):
    """A timer that was used through its interface passes. Whatever part contradicts another, the checker says so."""
    timer = by_hand(wheel_size=4)
    add_all(timer, [Ping(delay_ms) for delay_ms in (1, 2, 2, 9, 40, 200)])
    check_invariants(timer)
    damage(timer)
    with pytest.raises(AssertionError, match="."):
        check_invariants(timer)
