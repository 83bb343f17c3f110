"""Every scenario, exhaustively up to a bound, and by seed beyond it.

One preemption is enough for each of the planted mistakes (``test_mutants``). ``make explore`` has two,
and ``python -m tests.explore --struck`` has them for interrupts.
"""

import os
import random

import pytest

from tests.explore.explorer import Explorer, Failure
from tests.explore.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def explorer():
    return Explorer()


@pytest.fixture(autouse=True)
def one_processor():
    """Stay on one processor. Threads that take turns wake each other faster there: a fifth less time."""
    if not hasattr(os, "sched_setaffinity"):  # neither macOS nor Windows has it
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {random.choice(sorted(allowed))})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_with_few_preemptions_keeps_the_promises(explorer, name):
    """Every schedule with at most one preemption ends as it should."""
    try:
        found = explorer.explore(SCENARIOS[name], 1)
    except Failure as failure:
        pytest.fail(explorer.story(SCENARIOS[name], failure.plan), pytrace=False)
    assert found.schedules > 10


@pytest.mark.parametrize("name", SCENARIOS)
def test_schedules_drawn_by_a_seed_keep_the_promises(explorer, name):
    """Schedules with up to five preemptions, drawn by a seed, end as they should."""
    try:
        explorer.sample(SCENARIOS[name], seed=20_26, runs=100, preemptions=5)
    except Failure as failure:
        pytest.fail(explorer.story(SCENARIOS[name], failure.plan), pytrace=False)


# CPython reports and drops an exception that comes while it closes a generator which a check has left early.
@pytest.mark.filterwarnings("ignore:.*<generator object .*:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_thread_that_is_struck_anywhere_takes_nothing_with_it(explorer, name):
    """Each thread that parks or checks is struck by an exception, once a run, at each place where one may come."""
    try:
        explorer.explore_struck(SCENARIOS[name], 0)
    except Failure as failure:
        pytest.fail(explorer.story(SCENARIOS[name], failure.plan, failure.strike), pytrace=False)
