"""Executors that refuse, threads that can't be had, clocks that stand still or jump."""

import threading
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Ping, Waiting, add_all, added, eventually, in_thread, park, park_all, raising
from timer import InlineExecutor, MockTimer, SystemTimer, SystemTimerReaper
from timer._testing import check_invariants

NO_THREAD = RuntimeError("can't start new thread")


@pytest.fixture
def no_thread_for(monkeypatch):
    """Let no thread start whose name contains a word."""
    start = threading.Thread.start

    def refuse(word):
        monkeypatch.setattr(
            threading.Thread, "start", lambda thread: raising(NO_THREAD)() if word in thread.name else start(thread)
        )

    return refuse


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False) as purgatory:
        yield purgatory


def miss(purgatory, lock):
    """Check the key while another thread has the lock of its operations."""
    with lock:
        in_thread(purgatory.check_and_complete, "k")


def test_what_an_executor_refuses_expires_all_the_same():
    """Whatever the executor raises, the batch is run by the driver, and the driver goes on."""
    executor = SimpleNamespace(submit=raising(OSError("no thread")))
    with (
        SystemTimerReaper("reaper", SystemTimer(executor=executor)) as timer,
        DelayedOperationPurgatory("faults", timer=timer) as purgatory,
    ):
        operations = park_all(purgatory, [Waiting(delay_ms) for delay_ms in (5, 5, 30)])
        assert eventually(lambda: [["complete", "expire"]] * 3 == [operation.history for operation in operations])
        assert 0 == timer.driver.restarts


def test_no_thread_for_the_executor_expires_all_the_same(no_thread_for):
    """The timer's own executor can't start its thread: the driver runs the batch."""
    with DelayedOperationPurgatory("faults") as purgatory:
        no_thread_for("executor")
        operation = park(purgatory, delay_ms=5)
        assert eventually(lambda: operation.history == ["complete", "expire"])


def test_no_thread_for_the_retrier_is_made_up_for_later(monkeypatch, purgatory, no_thread_for):
    """A check misses the user's lock while no thread is to be had: the next that comes by finishes it."""
    lock = threading.RLock()
    operation, _ = (park(purgatory, lock=lock) for _ in range(2))
    operation.ready = True
    no_thread_for("retrier")
    miss(purgatory, lock)
    monkeypatch.undo()
    assert not operation.is_completed
    miss(purgatory, lock)
    assert eventually(lambda: operation.is_completed)


@pytest.mark.usefixtures("logs")  # which forgets that an earlier test logged the same
def test_the_retrier_logs_without_its_lock(monkeypatch, purgatory, no_thread_for):
    """A log handler may check the purgatory that reports that its retrier cannot start."""
    lock, logged = threading.RLock(), []
    park(purgatory, lock=lock)
    log = SimpleNamespace(error=lambda event, **_: logged.append((event, purgatory.check_and_complete("k"))))
    monkeypatch.setattr("purgatory._core.retrier.log", log)
    no_thread_for("retrier")
    miss(purgatory, lock)
    assert [("retrier_not_started", 0)] == logged


def test_a_retrier_that_nothing_can_run_is_not_logged_at_every_check(monkeypatch, no_thread_for):
    """There is no thread for it, and the timer takes no task: two lines a second say so."""
    lock, logged = threading.Lock(), []
    with (
        SystemTimer() as timer,
        DelayedOperationPurgatory("logged rarely", timer=timer, reaper_enabled=False) as purgatory,
    ):
        park(purgatory, lock=lock)
        log = SimpleNamespace(error=lambda event, **_: logged.append(event))
        monkeypatch.setattr("purgatory._core.retrier.log", log)
        no_thread_for("retrier")
        timer.shutdown()
        with lock:
            for _ in range(100):
                purgatory.check_and_complete("k")

    assert 2 <= len(logged) < 50


def test_the_timer_stands_in_for_a_retrier_that_cannot_start(purgatory, mock_timer, no_thread_for):
    """A check misses the user's lock while no thread is to be had: the timer makes it up, as often as it takes."""
    lock = threading.RLock()
    operation = park(purgatory, lock=lock)
    operation.ready = True
    no_thread_for("retrier")
    with lock:
        in_thread(purgatory.check_and_complete, "k")
        in_thread(purgatory.check_and_complete, "k")
        assert 2 == mock_timer.size  # the operation, and one round for all that is missed
        in_thread(mock_timer.advance_clock, 20)
        assert not operation.is_completed
    mock_timer.advance_clock(20)

    assert operation.is_completed
    assert (0, []) == (mock_timer.size, purgatory._retrier.waiting())


def test_no_thread_for_the_reaper_is_told_to_the_caller(no_thread_for):
    """A purgatory that can't have its reaper isn't made."""
    no_thread_for("")
    with pytest.raises(RuntimeError, match="new thread"):
        DelayedOperationPurgatory("faults")


def test_a_clock_that_jumps_ahead_runs_everything_once_in_order_of_deadline():
    """A thousand years pass between two looks. Lateness beyond all powers of two is counted in the last of them."""
    timer, log = MockTimer(), []
    pings = add_all(timer, [Ping(delay_ms, log) for delay_ms in (1, 86_400_000, 20, 400, 8_000, 3_600_000)])
    timer.advance_clock(10**12)
    assert sorted(pings, key=lambda ping: ping.delay_ms) == log
    late_ns = timer.statistics().late_ns
    assert 6 == sum(late_ns) == late_ns[(10**18).bit_length()]
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
