"""The settings and fixtures of every test, as a plugin of pytest. The tests of the broker example load it, too."""

import gc
import math
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import structlog

import purgatory
import timer
from purgatory._core.log import throttle
from tests.support.threads import eventually
from timer import MockTimer

#: How long an example takes is the machine's affair, and says nothing of what is tested.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is for every small change: it neither takes long nor needs Spark."""
    return not any(item.iter_markers("slow")) and not any(item.iter_markers("spark"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of ``make check``: the quick ones of the units."""
    if "tests/unit/" in item.nodeid and is_quick(item):
        item.add_marker("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the other implementation lets one do. Files with slow tests are first.

    Whichever process is free takes the next file. With quick files last, no process ends long before another.
    """
    other = "interpreted" if purgatory.COMPILED or timer.COMPILED else "native"
    left_out = [item for item in items if item.get_closest_marker(other)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    long = {item.path for item in items if not is_quick(item)}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Leave out all that is there before the first test of every later collection: many tests collect garbage."""
    gc.collect()
    if hasattr(gc, "freeze"):  # PyPy has none
        gc.freeze()


@pytest.fixture
def mock_timer() -> Iterator[MockTimer]:
    """The real wheel, on a clock that is moved by hand."""
    with MockTimer() as timer:
        yield timer


@pytest.fixture(autouse=True)
def structlog_as_before() -> Iterator[None]:
    """Forget the structlog configuration that a test leaves. The library logs elsewhere once there is one."""
    configured = structlog.is_configured()
    yield
    if not configured:
        structlog.reset_defaults()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What the library logs, as a list of dicts. A line of one cause comes once a test, however long the test takes."""
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as captured:
        patch.setattr(throttle, "_causes", {})
        patch.setattr(throttle, "_period_s", math.inf)
        yield captured


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Fail the test if it leaves a thread behind, other than the watchdog, which stays for the whole process."""
    before = set(threading.enumerate())

    def left() -> list[threading.Thread]:
        return [thread for thread in set(threading.enumerate()) - before if thread.name != "purgatory-watchdog"]

    yield
    assert eventually(lambda: not left()), left()
