import threading

import pytest
import structlog

import purgatory
from tests.support import eventually
from timer import MockTimer


def pytest_collection_modifyitems(config, items):
    """Against a compiled core, leave out what only an interpreted one lets one do."""
    if purgatory.COMPILED:
        left_out = [item for item in items if item.get_closest_marker("interpreted")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def mock_timer():
    """The real wheel, on a clock that is moved by hand."""
    with MockTimer() as timer:
        yield timer


@pytest.fixture
def logs():
    """What the library logs, as a list of dicts."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
def no_threads_left():
    """Fail the test if it leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    assert eventually(lambda: not set(threading.enumerate()) - before), set(threading.enumerate()) - before
