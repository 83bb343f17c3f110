"""Clocks: monotonic nanoseconds, real or moved by hand."""

import sys
import time

import pytest

from tests.support import run_threads
from timer import ManualClock, SystemTimer, TimerConfigError, TimerError
from timer._task import NS_PER_MS


def test_default_clock_is_monotonic_nanoseconds():
    """The default clock is the monotonic one of the system."""
    before = time.monotonic_ns()
    assert before <= SystemTimer().now_ns() <= time.monotonic_ns()


def test_manual_clock_advances_by_exactly_that_much():
    """It stands still until it is moved. Milliseconds, and fractions of them, are added as nanoseconds."""
    clock = ManualClock(17)
    assert [17, 17] == [clock(), clock()]
    clock.advance(2)
    clock.advance(0.25)
    assert 2_250_017 == clock()


@pytest.mark.parametrize("ms", [-1, -0.001, float("nan"), float("inf"), sys.float_info.max])
def test_manual_clock_does_not_go_back(ms):
    """Moving back, or by what is no number, is rejected and changes nothing."""
    clock = ManualClock(5)
    with pytest.raises(TimerConfigError, match="does not go back") as caught:
        clock.advance(ms)
    assert {TimerError, ValueError} <= set(type(caught.value).mro())
    assert 5 == clock()


def test_manual_clock_counts_every_step():
    """Steps of several threads add up."""
    clock = ManualClock()
    run_threads(*[lambda: [clock.advance(1) for _ in range(500)]] * 4)
    assert 2000 * NS_PER_MS == clock()
