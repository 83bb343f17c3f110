"""Timers that are dropped without a shutdown: their thread ends once nothing is pending, with a warning."""

import gc
import threading

import pytest

from tests.support import PATIENCE_S, Ping, added, eventually
from timer import Driver, SystemTimer, SystemTimerReaper, Timer

pytestmark = pytest.mark.usefixtures("no_threads_left")


def ends(thread):
    """Whether a thread ends. The collector runs until then, because the thread may not rest yet."""

    def has_ended():
        gc.collect()
        return not thread.is_alive()

    return eventually(has_ended)


def rests(timer):
    return eventually(lambda: timer._resting)


def new_reaper():
    return SystemTimerReaper("grim", SystemTimer("dropped"))


def test_reaper_of_a_dropped_timer_ends(warned):
    """The thread of a timer that nothing refers to ends, and a warning names the timer."""
    reaper = new_reaper()
    thread = reaper.driver.thread
    assert rests(reaper.timer)
    del reaper
    assert ends(thread)
    assert ["unclosed timer 'dropped': call its shutdown(), or use it in a with statement"] == warned()


def test_task_of_a_dropped_timer_is_run_first(warned):
    """While a task is pending, the thread stays. It ends after the task has run."""
    reaper = new_reaper()
    thread, task = reaper.driver.thread, added(reaper, Ping(100))
    del reaper
    gc.collect()
    assert [] == warned()
    assert task.ran.wait(PATIENCE_S)
    assert ends(thread)
    assert 1 == len(warned())


def test_timer_that_is_dropped_with_its_first_task_runs_it(warned, monkeypatch):
    """A task that wakes a resting thread keeps the timer, even if the thread has not run since."""
    reaper = new_reaper()
    driver, woken = reaper.driver, threading.Event()
    assert rests(reaper.timer)
    monkeypatch.setattr(driver, "_wake", woken.set)  # the thread sleeps on, until the release below
    reaper.timer._resting[:] = [driver._wake_for]
    task = added(reaper, Ping(50))
    del reaper
    assert woken.is_set()
    gc.collect()
    driver._sleep.release()
    assert task.ran.wait(PATIENCE_S)
    assert ends(driver.thread)
    assert 1 == len(warned())


def test_timer_that_is_referenced_is_driven_on(warned):
    """A timer that the program holds is driven, although its reaper was dropped."""
    with SystemTimer("held") as timer:
        thread = SystemTimerReaper("grim", timer).driver.thread
        assert rests(timer)
        gc.collect()
        assert added(timer, Ping(1)).ran.wait(PATIENCE_S)
        assert thread.is_alive()
    assert eventually(lambda: not thread.is_alive())
    assert [] == warned()


@pytest.mark.parametrize("pending", [False, True])
def test_reaper_that_was_shut_down_warns_of_nothing(warned, pending):
    """A shutdown ends a thread that rests, and one that waits for a task."""
    reaper = new_reaper()
    if pending:
        reaper.add(Ping(100_000))
    else:
        assert rests(reaper.timer)
    reaper.shutdown()
    del reaper
    gc.collect()
    assert [] == warned()


def test_each_driver_of_a_resting_timer_is_woken():
    """Two drivers that rest both end by their stop."""
    timer = SystemTimer("two")
    first, second = Driver("first", timer), Driver("second", timer)
    assert eventually(lambda: 2 == len(timer._resting))
    second.stop(PATIENCE_S)
    first.stop(PATIENCE_S)
    assert not (first.thread.is_alive() or second.thread.is_alive())
    timer.shutdown()


def test_interrupted_add_wakes_the_driver(monkeypatch):
    """An interrupt after a bucket was made does not leave the driver asleep past the bucket's time."""
    with SystemTimerReaper("grim", SystemTimer("struck")) as reaper:
        wheel = reaper.timer._wheel
        make = wheel.bucket_for

        def interrupted(*times):
            make(*times)
            raise KeyboardInterrupt

        assert rests(reaper.timer)
        with monkeypatch.context() as patch:
            patch.setattr(wheel, "bucket_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reaper.add(Ping(300))
            task = Ping(300)
            patch.setattr(wheel, "bucket_for", lambda *times: (make(*times)[0], False))  # it is there already
            reaper.add(task)

        assert task.ran.wait(PATIENCE_S)


class Own(Timer):
    """A timer of the program's own, in which nothing can be. It counts how often it is driven."""

    __slots__ = ("advanced",)  # without weak references
    size = 0

    def __init__(self, advanced):
        self.advanced = advanced

    def add(self, task):
        raise NotImplementedError

    def advance_clock(self, timeout_ms):
        self.advanced.release()
        return False

    def shutdown(self):
        return []


class WithReferences(Own):
    """The same. It can be referenced weakly, but does not say whether it is empty."""


@pytest.mark.parametrize("kind", [Own, WithReferences])
def test_timer_of_the_programs_own_class_is_driven_on(warned, kind):
    """The thread holds a timer of another class, even if nothing else does, and drives it until it is stopped."""
    advanced = threading.Semaphore(0)
    driver = Driver("own", kind(advanced))
    gc.collect()
    assert all(advanced.acquire(timeout=PATIENCE_S) for _ in range(10))
    driver.stop(PATIENCE_S)
    assert not driver.thread.is_alive()
    assert [] == warned()
