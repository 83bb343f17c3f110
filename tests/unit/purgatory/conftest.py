import pytest

from purgatory import DelayedOperationPurgatory


@pytest.fixture
def purgatory(mock_timer):
    """A purgatory whose time is moved by hand: ``mock_timer.advance_clock``."""
    with DelayedOperationPurgatory("test", timer=mock_timer) as purgatory:
        yield purgatory


@pytest.fixture
def small(mock_timer):
    """A purgatory with one place, whose time is moved by hand."""
    with DelayedOperationPurgatory("small", timer=mock_timer, max_parked=1) as purgatory:
        yield purgatory


@pytest.fixture
def threaded():
    """A purgatory with a timer and a reaper of its own."""
    with DelayedOperationPurgatory("threaded") as purgatory:
        yield purgatory
