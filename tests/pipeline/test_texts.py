"""Figures as the pages show them."""

import random
from fractions import Fraction

import pytest

from purgatory.pipeline._pages.texts import count_text, digits, duration_text, share_text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((0, "0"), (950, "950"), (12_400, "12.4k"), (3_100_000, "3.1M"), (2.5, "2.5"), (9_999, "9,999")),
        *((9_999.6, "10k"), (999_499, "999k"), (999_700, "1M"), (999_700_000, "1G"), (2**62, "4.61E")),
        *((9.96, "10"), (99.96, "100"), (0.0001, "0.0001"), (0.000_012_3, "0.000012"), (-12_400, "-12.4k")),
    ],
)
def test_counts_for_people(value, expected):
    """Large numbers are shortened, by the unit of the shown number."""
    assert expected == count_text(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((0, "0 ms"), (0.3, "0.3 ms"), (420, "420 ms"), (1_500, "1.5 s"), (150_000, "2.5 min"), (7_200_000, "2 h")),
        *((999.4, "999 ms"), (999.6, "1 s"), (119_960, "2 min"), (7_199_999, "2 h"), (3_600_000 * 1_500, "62.5 days")),
        *((0.000_04, "0.00004 ms"), (86_400_000, "24 h"), (10**14, "1,160,000 days")),
    ],
)
def test_durations_for_people(value, expected):
    """A wait is given in the unit that one would use."""
    assert expected == duration_text(value)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        *((0, "0%"), (1, "100%"), (0.125, "12.5%"), (0.999, "99.9%"), (1e-7, "0.00001%"), (2, "200%")),
        *((0.9997, "99.97%"), (2_999 / 3_000, "99.97%"), (0.999_99, "99.999%"), (1 - 1e-8, "99.999999%")),
    ],
)
def test_shares_for_people(share, expected):
    """A share of none is 0%, one of all is 100%, and no other is either."""
    assert expected == share_text(share)


def test_what_is_shown_is_what_there_is():
    """Over numbers of every size: no exponent, and off by no more than three digits leave out."""
    rng = random.Random(4)
    for _ in range(5_000):
        value = rng.random() * 10 ** rng.randrange(-9, 15)
        shown = digits(value)
        assert "e" not in shown + count_text(value) + duration_text(value) + share_text(value)
        assert abs(Fraction(shown.replace(",", "")) / Fraction(value) - 1) < Fraction(6, 1000)
