"""The purgatory's two implementations, compared: random histories, and the same record from both."""

import pytest

from tests.property.histories.compare import Comparison
from tests.property.histories.generate import Generator

SEEDS = 60


@pytest.mark.native
def test_editions_agree():
    """Whatever is called, in whatever order, both implementations answer, report, log and count the same."""
    with Comparison() as comparison:
        for seed in range(SEEDS):
            difference = comparison.difference(Generator(seed).history())
            if difference is not None:
                pytest.fail(f"seed {seed}:\n{comparison.reduced(difference)}")
