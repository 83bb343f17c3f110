"""MockTimer: time passes in ``advance_clock``, by exactly that much."""

import threading

import pytest

from tests.support import Ping, add_all, added, in_thread
from timer import TimerConfigError


def test_advance_says_whether_anything_ran(mock_timer):
    """The answer is True if a task ran, and False else: also if all that came due was moved or cancelled."""
    task, cancelled = add_all(mock_timer, [Ping(30), Ping(25)])
    cancelled.cancel()
    assert [False, False, False, True, False] == [mock_timer.advance_clock(ms) for ms in (0, 22, 7, 1, 100)]
    assert [task] == task.log


def test_task_runs_on_the_callers_thread(mock_timer):
    """The thread that moves the time runs the tasks. The timer says that it is driven, so it gets no reaper."""
    ran_on = []
    mock_timer.add(Ping(1, do=lambda: ran_on.append(threading.get_ident())))
    mover = in_thread(lambda: [mock_timer.advance_clock(1), threading.get_ident()][1])
    assert [mover] == ran_on
    assert mock_timer.is_driven


def test_nothing_runs_in_add(mock_timer):
    """A task that is due when it is added runs in the next ``advance_clock``, be it by nothing."""
    task = added(mock_timer, Ping(0))
    assert [] == task.log
    assert mock_timer.advance_clock(0)
    assert [task] == task.log


def test_task_added_by_a_task_counts_from_now(mock_timer):
    """A task that a task adds is due after its delay from the clock's position, and runs at once if the delay is 0."""
    now, later = Ping(0), Ping(5)
    mock_timer.add(Ping(10, do=lambda: add_all(mock_timer, [now, later])))
    mock_timer.advance_clock(20)
    assert ([now], []) == (now.log, later.log)
    mock_timer.advance_clock(5)
    assert [later] == later.log


def test_time_moves_by_exactly_so_much(mock_timer):
    """Time moves by what was said, fractions included, and never back. No task runs before its time."""
    start_ns = mock_timer.now_ns()
    task = added(mock_timer, Ping(1))
    assert not mock_timer.advance_clock(0.25)
    assert 250_000 == mock_timer.now_ns() - start_ns
    assert mock_timer.advance_clock(0.75)
    with pytest.raises(TimerConfigError):
        mock_timer.advance_clock(-1)
    assert 1_000_000 == mock_timer.now_ns() - start_ns
    assert [task] == task.log
