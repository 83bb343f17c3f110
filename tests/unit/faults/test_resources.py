"""Executors that refuse, threads that can't be had, clocks that stand still or jump."""

import threading
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from tests.support import Ping, Waiting, add_all, added, eventually, in_thread, park_all, park_one
from timer import InlineExecutor, ManualClock, MockTimer, SystemTimer, SystemTimerReaper, check_invariants


class Refusing:
    """An executor that takes nothing."""

    def __init__(self, error):
        self.error = error

    def submit(self, fn, *args):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("shut down"), ValueError("full"), OSError("no thread")])
def test_what_an_executor_refuses_expires_all_the_same(error):
    """Whatever the executor raises, the batch is run by the driver, and the driver goes on."""
    with (
        SystemTimerReaper("reaper", SystemTimer(executor=Refusing(error))) as timer,
        DelayedOperationPurgatory("faults", timer=timer) as purgatory,
    ):
        operations = park_all(purgatory, [Waiting(delay_ms) for delay_ms in (5, 5, 30)])
        assert eventually(lambda: all(operation.history == ["complete", "expire"] for operation in operations))
        assert 0 == timer.driver.restarts


def test_no_thread_for_the_executor_expires_all_the_same(monkeypatch):
    """The timer's own executor can't start its thread: the driver runs the batch."""
    with DelayedOperationPurgatory("faults") as purgatory:
        start = threading.Thread.start

        def fail(thread):
            if "executor" in thread.name:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", fail)
        operation = park_one(purgatory, Waiting(5))
        assert eventually(lambda: operation.history == ["complete", "expire"])


_start = threading.Thread.start


def start_all_but_retriers(thread):
    """As ``Thread.start`` where no thread can be had for a retrier."""
    if "retrier" in thread.name:
        raise RuntimeError("can't start new thread")
    _start(thread)


def test_no_thread_for_the_retrier_is_made_up_for_later(monkeypatch, mock_timer):
    """A check misses the user's lock while no thread is to be had: the next that comes by finishes it."""
    lock = threading.RLock()
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False) as purgatory:
        operation, next_one = park_all(purgatory, [Waiting(lock=lock), Waiting(lock=lock)])
        operation.ready = True
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_all_but_retriers)
            with lock:
                in_thread(purgatory.check_and_complete, "k")
        assert not operation.is_completed
        with lock:
            in_thread(purgatory.check_and_complete, "k")
        assert eventually(lambda: operation.is_completed)


def test_the_retrier_logs_without_its_lock(monkeypatch, mock_timer):
    """A log handler may check the purgatory that reports that its retrier cannot start."""
    lock, logged = threading.RLock(), []
    with DelayedOperationPurgatory("logged once", timer=mock_timer, reaper_enabled=False) as purgatory:
        park_one(purgatory, Waiting(lock=lock))

        def back(event, **fields):
            logged.append((event, purgatory.check_and_complete("k")))

        monkeypatch.setattr("purgatory._threads.retrier.log", SimpleNamespace(error=back))
        monkeypatch.setattr(threading.Thread, "start", start_all_but_retriers)
        with lock:
            in_thread(purgatory.check_and_complete, "k")
        assert [("retrier_not_started", 0)] == logged


def test_a_retrier_that_nothing_can_run_is_not_logged_at_every_check(monkeypatch):
    """There is no thread for it, and no room in the timer: two lines a second say so."""
    lock, logged = threading.Lock(), []
    with (
        SystemTimer(max_pending=1) as timer,
        DelayedOperationPurgatory("logged rarely", timer=timer, reaper_enabled=False) as purgatory,
    ):
        purgatory.try_complete_else_watch(Waiting(lock=lock), ["k"])
        log = SimpleNamespace(error=lambda event, **fields: logged.append(event))
        monkeypatch.setattr("purgatory._threads.retrier.log", log)
        monkeypatch.setattr(threading.Thread, "start", start_all_but_retriers)
        with lock:
            for _ in range(100):
                purgatory.check_and_complete("k")

    assert 2 <= len(logged) < 50


def test_the_timer_stands_in_for_a_retrier_that_cannot_start(monkeypatch, mock_timer):
    """A check misses the user's lock while no thread is to be had: the timer makes it up, as often as it takes."""
    lock = threading.RLock()
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False) as purgatory:
        operation = park_one(purgatory, Waiting(lock=lock))
        operation.ready = True
        monkeypatch.setattr(threading.Thread, "start", start_all_but_retriers)
        with lock:
            in_thread(purgatory.check_and_complete, "k")
            in_thread(purgatory.check_and_complete, "k")
            assert 2 == mock_timer.size  # the operation, and one round for all that is missed
            in_thread(mock_timer.advance_clock, 20)
            assert not operation.is_completed
        mock_timer.advance_clock(20)

        assert operation.is_completed
        assert 0 == mock_timer.size
        assert [] == purgatory._retrier.waiting()


def test_no_thread_for_the_reaper_is_told_to_the_caller(monkeypatch):
    """A purgatory that can't have its reaper isn't made."""

    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        DelayedOperationPurgatory("faults")


def test_a_clock_that_stands_still_expires_nothing_and_loses_nothing():
    """As long as the clock stands, nothing is due. When it goes on, every due task runs once."""
    clock = ManualClock()
    timer = SystemTimer(clock=clock, executor=InlineExecutor())
    ping = added(timer, Ping(5, clock=clock))
    for _ in range(100):
        timer.advance_clock(0)
    assert not ping.ran_ns
    clock.advance(5)
    timer.advance_clock(0)
    assert 1 == len(ping.ran_ns)


def test_a_clock_that_jumps_ahead_runs_everything_once_in_order_of_deadline():
    """A year passes between two looks."""
    timer = MockTimer()
    log = []
    pings = add_all(timer, [Ping(delay_ms, log) for delay_ms in (1, 86_400_000, 20, 400, 8_000, 3_600_000)])
    timer.advance_clock(366 * 86_400_000)
    assert sorted(pings, key=lambda ping: ping.delay_ms) == log
    check_invariants(timer)


def test_a_clock_that_steps_back_runs_nothing_early_and_nothing_twice():
    """A clock that breaks its promise: tasks wait until it has caught up, and the structure stays whole."""
    now = [10_000_000_000]
    timer = SystemTimer(clock=lambda: now[0], executor=InlineExecutor())
    first = added(timer, Ping(100, clock=lambda: now[0]))
    now[0] += 90_000_000
    timer.advance_clock(0)
    now[0] -= 5_000_000_000
    second = added(timer, Ping(10, clock=lambda: now[0]))
    timer.advance_clock(0)
    assert not first.ran_ns
    now[0] += 10_000_000_000
    timer.advance_clock(0)
    timer.advance_clock(0)
    assert [1, 1] == [len(first.ran_ns), len(second.ran_ns)]
    assert 0 == timer.size
    check_invariants(timer)


def test_a_jump_of_a_thousand_years_is_only_late():
    """Lateness beyond what is counted by powers of two goes into the last of them."""
    timer = MockTimer()
    ping = added(timer, Ping(1))
    timer.advance_clock(1_000 * 366 * 86_400_000)
    assert 1 == len(ping.ran_ns)
    assert 1 == sum(timer.statistics().late_ns)


def test_a_full_timer_leaves_the_purgatory_as_it_was():
    """A timer with ``max_pending`` rejects: the operation is out, uncompleted, and the counters add up."""
    timer = MockTimer(max_pending=1)
    with DelayedOperationPurgatory("faults", timer=timer) as purgatory:
        purgatory.try_complete_else_watch(Waiting(), ["k"])
        refused = Waiting()
        with pytest.raises(RuntimeError, match="is full"):
            purgatory.try_complete_else_watch(refused, ["k", "l"])
        assert refused.outcome is Outcome.CANCELLED
        assert 1 == purgatory.parked == timer.size
        purgatory.purge()
        assert 1 == purgatory.watched
