import pytest
from prometheus_client import CollectorRegistry

from purgatory.metrics import unregister


@pytest.fixture
def registry():
    """A registry of the test's own, left empty."""
    made = CollectorRegistry()
    yield made
    unregister(made)
