import threading

import pytest
import structlog

from tests.support import eventually
from timer import MockTimer


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
