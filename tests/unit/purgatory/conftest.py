import contextlib
import sys

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Hang


@pytest.fixture
def make(mock_timer):
    """Make a purgatory called "test" with these settings, whose time is moved with ``mock_timer``."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            DelayedOperationPurgatory(**{"name": "test", "timer": mock_timer, **settings})
        )


@pytest.fixture
def purgatory(make):
    return make()


@pytest.fixture
def small(make):
    """A purgatory with one place."""
    return make(name="small", max_parked=1)


@pytest.fixture
def threaded():
    """A purgatory with a timer and a reaper of its own."""
    with DelayedOperationPurgatory("threaded") as purgatory:
        yield purgatory


@pytest.fixture
def hang():
    return Hang()


@pytest.fixture
def interrupted_where():
    """Make a call, with an interrupt in the first frame and at the first event of a trace that are chosen."""

    def call(chosen, function, *args):
        def strike(frame, event, _):
            if chosen(frame, event):
                raise KeyboardInterrupt  # which ends the trace
            return strike

        before = sys.gettrace()
        sys.settrace(strike)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                function(*args)
        finally:
            sys.settrace(before)

    return call
