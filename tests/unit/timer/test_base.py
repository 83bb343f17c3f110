"""The defaults of every timer, also of one that defines only the required methods."""

import time

import pytest

from tests.support import Ping, added
from tests.support.tasks import OwnTimer
from timer import SystemTimer, SystemTimerReaper, Timer, TimerClosed


@pytest.fixture
def plain():
    with OwnTimer() as timer:
        yield timer


def test_timer_that_says_nothing_of_itself(plain):
    """It is its own innermost timer, bears its class's name, goes by the system's clock, and is not driven."""
    assert {"add", "advance_clock", "size", "shutdown"} == Timer.__abstractmethods__
    assert plain is plain.inner
    assert ("OwnTimer", None, None) == (plain.name, plain.driver, plain.statistics())
    assert (False, False) == (plain.is_driven, plain.is_closed)
    assert plain.wake() is None
    before_ns = time.monotonic_ns()
    assert before_ns <= plain.now_ns() <= time.monotonic_ns()


def test_task_is_reschedule_by_any_timer(plain):
    """A timer that doesn't say how is asked to add the task again, with the new delay from now."""
    task = Ping(50)
    plain.advance_clock(1)
    started_ns = plain.under.now_ns()
    plain.add(task)
    plain.advance_clock(20)
    assert plain.reschedule(task, 70)
    assert (50, 0, 90_000_000) == (task.delay_ms, task.added_ns - started_ns, task.deadline_ns - started_ns)
    assert not plain.advance_clock(69)
    assert plain.advance_clock(1)
    assert not plain.reschedule(task, 5)


def test_delay_survives_a_timer_that_refuses(plain):
    """A task that is to be extended in a timer that was shut down meanwhile keeps its delay."""
    task = added(plain, Ping(50))
    plain.under._closed = True  # as it is for a moment, before a shutdown takes the tasks out
    with pytest.raises(TimerClosed):
        plain.reschedule(task, 70)
    assert 50 == task.delay_ms
    assert not task.is_pending


def test_reaper_answers_for_what_it_drives(no_threads_left):
    """A reaper's name, clock, figures and innermost timer are the driven timer's, and it is closed if that timer is."""
    timer = SystemTimer("pings")
    with SystemTimerReaper("grim", timer) as reaper:
        task = added(reaper, Ping(60_000))
        assert isinstance(reaper, Timer)
        assert timer is reaper.inner
        assert ("pings", 1, 1) == (reaper.name, reaper.size, reaper.statistics().pending)
        assert abs(timer.now_ns() - reaper.now_ns()) < 10**10
        assert reaper.driver is timer.driver
        assert (True, True, False) == (timer.is_driven, reaper.is_driven, reaper.is_closed)
        assert reaper.reschedule(task, 90_000)
        timer.shutdown()
        assert reaper.is_closed
    assert (True, True) == (timer.is_closed, reaper.is_closed)
