import gc
import time
import warnings
import weakref
from types import SimpleNamespace

import pytest

import purgatory

#: The library's own fixtures for tests, ``purgatories``, those of every test, and those of tests that are coroutines.
pytest_plugins = ["purgatory.testing", "tests.support.fixtures", "tests.support.loops", "tests.support.traces"]


@pytest.fixture(scope="module", autouse=True)
def no_purgatory_left(request):
    """Fail at the end of a file of tests that leaves a purgatory open: the console would show it to later tests."""
    before = weakref.WeakSet(purgatory.live())
    yield
    if request.session.testsfailed:  # what a failed test has made, its traceback keeps
        return
    if purgatory.live():
        gc.collect()
    assert not [left.name for left in purgatory.live() if left not in before]


@pytest.fixture
def shut_down_after():
    """Shut down what the test leaves open: a program on a page has its purgatory for as long as it runs."""
    before = set(purgatory.live())
    yield
    for left in set(purgatory.live()) - before:
        left.shutdown()


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
def warned():
    """The texts of the warnings so far of things that were dropped without a shutdown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(each.message) for each in caught if each.category is ResourceWarning]
