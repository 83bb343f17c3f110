import gc
import math
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import structlog

import purgatory
import timer
from purgatory._core.log import throttle
from tests.support import eventually
from timer import MockTimer

UNITS = Path(__file__).parent / "unit"

#: The library's own fixtures for tests, ``purgatories``, and those of tests that are coroutines.
pytest_plugins = ["purgatory.testing", "tests.support.loops"]

#: How long an example takes is the machine's affair, and says nothing of what is tested.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


def pytest_itemcollected(item):
    """Mark the tests of `make check`: the quick ones of the units."""
    if UNITS in item.path.parents and not any(item.iter_markers("slow")) and not any(item.iter_markers("spark")):
        item.add_marker("quick")


def pytest_collection_modifyitems(config, items):
    """Leave out what only the other implementation lets one do. Files with slow tests are first.

    Whichever process is free takes the next file. With quick files last, no process ends long before another.
    """
    other = "interpreted" if purgatory.COMPILED or timer.COMPILED else "native"
    left_out = [item for item in items if item.get_closest_marker(other)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish():
    """Leave out all that is there before the first test of every later collection: many tests collect garbage."""
    gc.collect()
    if hasattr(gc, "freeze"):  # PyPy has none
        gc.freeze()


@pytest.fixture
def mock_timer():
    """The real wheel, on a clock that is moved by hand."""
    with MockTimer() as timer:
        yield timer


@pytest.fixture(autouse=True)
def structlog_as_before():
    """Forget the structlog configuration that a test leaves. The library logs elsewhere once there is one."""
    configured = structlog.is_configured()
    yield
    if not configured:
        structlog.reset_defaults()


@pytest.fixture
def logs():
    """What the library logs, as a list of dicts. A line of one cause comes once a test, however long the test takes."""
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as captured:
        patch.setattr(throttle, "_causes", {})
        patch.setattr(throttle, "_period_s", math.inf)
        yield captured


@pytest.fixture
def shutdown_clock(monkeypatch):
    """The clock of shutdowns: ``skip_s`` is added to the real time, ``reads`` counts the calls."""
    clock = SimpleNamespace(skip_s=0.0, reads=0)

    def monotonic():
        clock.reads += 1
        return time.monotonic() + clock.skip_s

    monkeypatch.setattr("purgatory._core.shutdown.time", SimpleNamespace(monotonic=monotonic))
    return clock


@pytest.fixture
def no_threads_left():
    """Fail the test if it leaves a thread behind, other than the watchdog, which stays for the whole process."""
    before = set(threading.enumerate())

    def left():
        return [thread for thread in set(threading.enumerate()) - before if thread.name != "purgatory-watchdog"]

    yield
    assert eventually(lambda: not left()), left()


@pytest.fixture
def warned():
    """The texts of the warnings so far of things that were dropped without a shutdown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(each.message) for each in caught if each.category is ResourceWarning]
