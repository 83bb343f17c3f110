"""The explorer is worth what it finds: mistakes planted in the core, each of which it must find."""

import pytest

from tests.explore.explorer import Explorer, Failure, plan_of, text_of
from tests.explore.mutants import KAFKAS, MUTANTS
from tests.explore.scenarios import SCENARIOS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name):
    """The scenario meant for a mistake shows it, and shows it again when the schedule is replayed from its text."""
    mutant = MUTANTS[name]
    explorer = Explorer(mutant.edition())
    scenario = SCENARIOS[mutant.scenario]
    with pytest.raises(Failure) as caught:
        explorer.explore(scenario, mutant.bound, limit=20_000)
    failure = caught.value
    again = explorer.run_once(scenario, plan_of(text_of(failure.plan)))
    assert failure.problem == again.problem


def test_kafkas_history_is_planted():
    """The six mistakes that Kafka had to be cured of are among those planted."""
    assert 6 == len(KAFKAS)


def test_a_failing_schedule_is_told_as_a_numbered_interleaving():
    """A story numbers the turns, names thread, line and what it is about to do, and ends with what went wrong."""
    mutant = MUTANTS["no-pending-flag"]
    explorer = Explorer(mutant.edition())
    scenario = SCENARIOS[mutant.scenario]
    with pytest.raises(Failure) as caught:
        explorer.explore(scenario, mutant.bound)
    story = explorer.story(scenario, caught.value.plan)
    assert "  1. event-0\n" in story
    assert "  2. event-1\n" in story
    assert "purgatory/_core/operation.py" in story
    assert story.endswith("=> an event was missed")
