"""The closed form of the timing wheel, against the library's."""

import random

import numpy as np
import pytest

from purgatory.pipeline._summaries.wheels import levels_and_reinsertions
from timer import MockTimer, TimerTask


class Task(TimerTask):
    def run(self):
        """Nothing."""


def follow(now, delay, wait, size):
    """The levels of the library's timer, and how often it moves a task of this delay to another level."""
    timer = MockTimer(wheel_size=size)
    timer.advance_clock(now)
    timer.add(Task(delay))
    again, left = 0, wait
    while 1 in (found := timer.statistics()).occupancy:
        level = found.occupancy.index(1)
        moves_in = round(found.next_deadline_ms) - (size**level if level else 0)  # a coarse bucket, one span ahead
        if moves_in > left:
            break
        timer.advance_clock(moves_in)
        left -= moves_in
        again += level > 0
    return len(timer.statistics().occupancy), again


@pytest.mark.parametrize("size", [2, 3, 10, 20, 128])
def test_levels_and_reinsertions_are_those_of_a_wheel(size):
    """Whatever arrival, delay and answer, the closed form counts what the wheel does."""
    rng = random.Random(size)
    for _ in range(400):
        now, delay = rng.randrange(10**9), rng.choice((0, 1, 5, 19, 20, 399, 400, 7_999, rng.randrange(10**7)))
        wait = rng.randrange(delay + 1)
        entry = (np.array([now + delay]), np.array([now]), np.array([now + wait]))
        assert follow(now, delay, wait, size) == levels_and_reinsertions(*entry, size)


def test_sums_are_those_of_the_entries():
    """Many entries at once need the most levels of any, and are put again as often as all together."""
    rng = np.random.default_rng(5)
    start = rng.integers(0, 10**12, 300)
    delay = rng.integers(0, 10**6, 300)
    wait = (delay * rng.random(300)).astype(np.int64)
    each = [follow(*map(int, entry), 20) for entry in zip(start, delay, wait, strict=True)]
    found = levels_and_reinsertions(start + delay, start, start + wait, 20)
    assert (max(levels for levels, _ in each), sum(again for _, again in each)) == found
