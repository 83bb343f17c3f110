import pytest
from prometheus_client import CollectorRegistry

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import unregister


@pytest.fixture
def registry():
    """A registry of the test's own, left empty."""
    made = CollectorRegistry()
    yield made
    unregister(made)


@pytest.fixture
def value(registry):
    """The value of a series on the page, by its name without the prefix, and its labels."""
    return lambda name, **labels: registry.get_sample_value(f"purgatory_{name}", labels)


@pytest.fixture
def fetch(mock_timer):
    """A purgatory on a clock that is moved by hand."""
    with DelayedOperationPurgatory("fetch", timer=mock_timer, max_parked=10) as fetch:
        yield fetch
