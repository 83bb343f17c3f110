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

#: The tests that share a session of Spark, those among them that start JVMs of their own, and one that lies elsewhere.
SESSION = "tests/pipeline/"
OWN_JVM = {f"{SESSION}test_{name}.py" for name in ("cluster", "connect", "declarative")}
ELSEWHERE = "examples/tests/test_fromkafka.py"
#: Many tests of some seconds that share nothing.
APART = "tests/explore/test_scenarios.py"


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is for every small change: it neither takes long nor needs Spark."""
    return not any(item.iter_markers("slow")) and not any(item.iter_markers("spark"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of ``make check``: the quick ones of the units."""
    if "tests/unit/" in item.nodeid and is_quick(item):
        item.add_marker("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the other implementation lets one do, and order the rest for processes beside each other.

    Whichever process is free takes the next file. Spark's are first, then the other files with slow tests, so that no
    process ends long before another. What can be given out test by test fills the end.
    """
    other = "interpreted" if purgatory.COMPILED or timer.COMPILED else "native"
    left_out = [item for item in items if item.get_closest_marker(other)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    long = {item.path for item in items if not is_quick(item)}

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        return item.nodeid.startswith(APART), item.path not in long, not item.nodeid.startswith(SESSION)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist need not be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file of tests to one process, and those that share a session of Spark to the same.

    A session is slow until its JVM has loaded and compiled what it runs. Several would do so again and again.
    """
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415

    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope  # noqa: SLF001  # what differs between the schedulers of xdist by file and by group

    def split(nodeid: str) -> str:
        file = str(file_of(nodeid))
        if file == APART:
            return nodeid
        return SESSION if file == ELSEWHERE or (file.startswith(SESSION) and file not in OWN_JVM) else file

    scheduler._split_scope = split  # noqa: SLF001
    return scheduler


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
