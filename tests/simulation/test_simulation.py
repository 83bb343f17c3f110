"""Seeded runs of a purgatory beside its model."""

import pytest

from tests.simulation.world import World

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seeded_run_goes_as_the_model_says(seed):
    """Exactly once, nothing lost, nothing early. Counters, lists and snapshot equal to the model's at every step."""
    figures = World(seed).run(400)
    assert 400 == figures.steps
    assert figures.operations > 20


def test_a_seed_repeats_itself():
    """The same seed gives the same run."""
    assert World(4).run(200) == World(4).run(200)
