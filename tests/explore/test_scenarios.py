"""Every scenario, exhaustively up to a bound, and by seed beyond it."""

import os

import pytest

from tests.explore.explorer import Explorer, Failure
from tests.explore.scenarios import SCENARIOS

#: Schedules a scenario in the ordinary run; `python -m tests.explore --bound 3` has no limit.
LIMIT = int(os.environ.get("EXPLORE_LIMIT", "600"))


@pytest.fixture(scope="module")
def explorer():
    return Explorer()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_with_few_preemptions_keeps_the_promises(explorer, name):
    """Every schedule with at most one preemption, and the first ones with two, end as they should."""
    try:
        found = explorer.explore(SCENARIOS[name], 2, limit=LIMIT)
    except Failure as failure:
        pytest.fail(explorer.story(SCENARIOS[name], failure.plan), pytrace=False)
    assert found.schedules > 10


@pytest.mark.parametrize("name", SCENARIOS)
def test_schedules_drawn_by_a_seed_keep_the_promises(explorer, name):
    """Schedules with up to five preemptions, drawn by a seed, end as they should."""
    try:
        explorer.sample(SCENARIOS[name], seed=20_26, runs=40, preemptions=5)
    except Failure as failure:
        pytest.fail(explorer.story(SCENARIOS[name], failure.plan), pytrace=False)
