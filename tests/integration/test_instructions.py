"""Instructions per operation do not rise above the noted figures. docs/benchmarks.md has the command to count them."""

import os

import pytest

from tests.benchmarks.instructions import CASES, MOST_ABOVE, NOTED, count, missing, noted

pytestmark = [pytest.mark.native, pytest.mark.slow]


@pytest.fixture(scope="module")
def counted():
    """The instructions of each case that has a noted figure somewhere."""
    why = missing()
    if why is not None and os.environ.get("CI") != "true":
        pytest.skip(why)
    return count({case for figures in NOTED.values() for case in figures})


def test_every_case_is_counted(counted):
    """Each case runs under callgrind, and its operations cost more than nothing."""
    assert counted.keys() <= CASES.keys()
    assert all(100 < instructions < 100_000 for instructions in counted.values()), counted


@pytest.mark.parametrize("case", ["cycle", "three-keys", "timer", "future"])
def test_an_operation_costs_no_more_instructions_than_noted(counted, case):
    """No operation costs over 4 % more instructions than is noted for this interpreter and architecture."""
    figures = noted()
    if figures is None:
        pytest.skip(f"no figures are noted for this interpreter and architecture; {case}: {counted[case]:,}")
    assert counted[case] <= figures[case] * (1 + MOST_ABOVE), f"{case}: {counted[case]:,}, noted {figures[case]:,}"
