"""The short version of the soak."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.soak import CAPACITY, Quantiles, slope, soak

#: A minute, most of it asleep. A leak of 200 bytes per operation fails it, and an operation with its keys has more. An
#: hour is ``make soak SECONDS=10800``, or ``python -m tests.simulation.soak``.
SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_a_soak_loses_and_doubles_nothing_and_stays_the_same_size():
    """Mixed load at the edge of capacity: the books balance, no thread is left, memory stays where it was."""
    # In a process of its own: what other tests have left in this one comes and goes by tens of megabytes.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        report = alone.submit(soak, SECONDS, rate=400).result()
    assert report.is_clean, report
    assert report.operations > SECONDS * 100
    assert report.most_parked <= CAPACITY
    # In a run this short, noise of a megabyte is a slope: only growth with every operation is an error.
    grown_bytes = max(0.0, report.rss_end_mib - report.rss_start_mib) * 2**20
    assert grown_bytes < 20 * report.operations + 4 * 2**20, report


def test_slope_of_points():
    """Least squares on a line is the line's own slope."""
    assert 2.0 == slope([(0, 1), (1, 3), (2, 5)])
    assert 0.0 == slope([(0, 1)])


def test_quantiles_round_up_to_a_tenth_of_a_millisecond():
    """Lateness is counted by tenths, and reported by the upper end."""
    quantiles = Quantiles()
    quantiles.take([50_000] * 99 + [7_000_000])
    assert [0.1, 7.1] == quantiles.of(0.5, 1)
