"""The reaper: a thread that drives a timer, sleeps until there is something to do, and comes back if it dies."""

import threading
import time

import pytest

from tests.support import PATIENCE_S, Ping, added, eventually, in_thread
from timer import Driver, MockTimer, SystemTimer, SystemTimerReaper, Timer, TimerClosed, TimerConfigError

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def reaper():
    with SystemTimerReaper("grim", SystemTimer("pings")) as reaper:
        yield reaper


def thread_names():
    return {thread.name for thread in threading.enumerate()}


class Counting(Timer):
    """A timer of a user's own class."""

    size, add = 7, pytest.fail

    def __init__(self):
        self.advanced = self.closed = 0

    def advance_clock(self, timeout_ms):
        self.advanced += 1
        time.sleep(0.001)
        return False

    def shutdown(self):
        self.closed += 1
        return ["left"]


def test_threads_are_named(reaper):
    """The thread bears the reaper's name, the executor's thread the timer's."""
    names = []
    task = added(reaper, Ping(1, do=lambda: names.append(threading.current_thread().name)))
    assert task.ran.wait(PATIENCE_S)
    assert "grim" in thread_names()
    assert names[0].startswith("pings-executor")


def test_shutdown_stops_the_thread_and_the_timer_once():
    """Closing the reaper closes the inner timer exactly once, however often it is called."""
    inner = Counting()
    reaper = SystemTimerReaper("grim", inner)
    assert [["left"], [], []] == [reaper.shutdown() for _ in range(3)]
    assert 1 == inner.closed
    assert reaper.driver is None
    assert "grim" not in thread_names()


def test_interrupted_shutdown_can_be_repeated(monkeypatch):
    """After an interrupt in the wait for the thread, the next call shuts down the timer and returns the tasks."""
    inner = Counting()
    reaper = SystemTimerReaper("grim", inner)
    stop = reaper.driver.stop

    def interrupted():
        stop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reaper.driver, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reaper.shutdown()

    assert reaper.is_closed
    with pytest.raises(TimerClosed):
        reaper.add(Ping(1))
    assert ["left"] == reaper.shutdown()
    assert 1 == inner.closed


def test_shutdown_is_prompt_while_the_reaper_sleeps(reaper):
    """A reaper that sleeps for a far task is woken to stop."""
    reaper.add(Ping(3_600_000))
    assert eventually(lambda: reaper.timer._changed._waiters)
    began = time.monotonic()
    reaper.shutdown()
    assert PATIENCE_S > time.monotonic() - began


def test_shutdown_from_a_task(reaper):
    """A task may shut down the timer that runs it."""
    task = added(reaper, Ping(1, do=lambda: reaper.shutdown()))
    assert task.ran.wait(PATIENCE_S)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(lambda _: None, id="without a task"),
        pytest.param(lambda reaper: reaper.add(Ping(3_600_000)), id="until a far task"),
        pytest.param(lambda reaper: reaper.advance_clock(5), id="after another call waited in the timer"),
    ],
)
def test_earlier_task_wakes_the_sleeper(reaper, before):
    """A reaper that sleeps wakes at once for a nearer task."""
    assert not before(reaper)
    time.sleep(0.02)
    assert added(reaper, Ping(5)).ran.wait(PATIENCE_S)


def test_no_work_is_done_for_empty_ticks():
    """A reaper that waits for a task a hundred ticks away asks the clock a few times, not a hundred."""
    asked = []

    def clock():
        asked.append(None)
        return time.monotonic_ns()

    with SystemTimerReaper("grim", SystemTimer(clock=clock)) as reaper:
        task = added(reaper, Ping(100))
        assert task.ran.wait(PATIENCE_S)
    assert 40 > len(asked)


def test_slow_task_does_not_hold_up_the_wheel(reaper):
    """While a task blocks the executor the reaper goes on taking out what comes due."""
    go = threading.Event()
    reaper.add(Ping(1, do=lambda: go.wait(PATIENCE_S)))
    quick = added(reaper, Ping(10))
    assert eventually(lambda: reaper.size == 0)
    assert [] == quick.log
    go.set()
    assert quick.ran.wait(PATIENCE_S)


@pytest.mark.parametrize("hook_fails", [False, True])
def test_driver_comes_back(monkeypatch, hook_fails):
    """A driver that is thrown out of its timer reports it and starts over, even if the hook for that raises, too."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))

    def hook(error, restarts):
        reported.append(type(error))
        raise error

    class Failing(Counting):
        fail = True

        def advance_clock(self, timeout_ms):
            if self.fail:
                self.fail = False
                raise MemoryError
            return super().advance_clock(timeout_ms)

    timer = Failing()
    driver = Driver("grim", timer, on_restart=hook if hook_fails else None)
    came_back = eventually(lambda: driver.restarts == 1)
    advanced, heartbeat_ns = timer.advanced, driver.heartbeat_ns
    goes_on = eventually(lambda: timer.advanced > advanced and driver.heartbeat_ns > heartbeat_ns)
    driver.stop()
    assert (True, True) == (came_back, goes_on)
    assert [MemoryError] == reported
    assert not driver.thread.is_alive()


def test_driver_stops_from_its_own_thread():
    """A driver that is stopped by what it runs does not wait for itself."""
    stopped, ready = [], threading.Event()

    class Stopping(Counting):
        def advance_clock(self, timeout_ms):
            ready.wait(PATIENCE_S)
            stopped.append(driver.stop())
            return False

    driver = Driver("grim", Stopping())
    ready.set()
    driver.thread.join(PATIENCE_S)
    assert [None] == stopped
    in_thread(driver.stop)


def test_driver_leaves_the_timer_be():
    """Stopping a driver does not shut down its timer. A timer that is shut down ends its driver."""
    with SystemTimer() as timer:
        stopped, driver = Driver("stopped", timer), Driver("grim", timer)
        for _ in range(2):
            stopped.stop()
        timer.add(Ping(10_000))
        assert (1, False, True) == (timer.size, stopped.thread.is_alive(), driver.thread.is_alive())
    driver.thread.join(PATIENCE_S)
    assert (False, 0) == (driver.thread.is_alive(), driver.restarts)


def test_reaper_takes_timers_that_nothing_drives(reaper):
    """An object that is not a timer, and one that is driven by hand or by another reaper, are rejected."""
    for timer in (None, "timer", object(), MockTimer(), reaper, reaper.timer):
        with pytest.raises(TimerConfigError, match="nothing drives"):
            SystemTimerReaper("grim", timer)
