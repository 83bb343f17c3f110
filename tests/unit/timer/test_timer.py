"""SystemTimer: its behaviour beyond the contract of all timers."""

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import attrs
import pytest

from tests.support import PATIENCE_S, Ping, add_all, added, beside, eventually, in_thread, raising
from tests.support.tasks import Collecting, by_hand, fail, let_pass
from timer import (
    InlineExecutor,
    ManualClock,
    SystemTimer,
    SystemTimerReaper,
    TimerClosed,
    TimerConfigError,
    TimerTaskList,
)
from timer._testing import check_invariants

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def timer():
    with by_hand() as timer:
        yield timer


@pytest.fixture
def look(timer):
    """Let milliseconds pass, then have the timer look at its clock."""
    return partial(let_pass, timer)


@pytest.fixture
def executor():
    return Collecting()


@pytest.fixture
def collecting(executor):
    """A timer whose batches wait until the executor is told to run them."""
    with by_hand(executor=executor) as timer:
        yield timer


def test_pending_task_that_another_timer_rejects_stays_where_it_was(timer, look):
    """A task is taken out of one timer only if the other one accepts it."""
    task = added(timer, Ping(5))
    other = by_hand()
    other.shutdown()
    with pytest.raises(TimerClosed):
        other.add(task)
    assert (True, 1) == (task.is_pending, timer.size)
    look(5)
    assert [task] == task.log


# -- never early


@pytest.mark.parametrize("offset_ns", [0, 1, 499_999, 999_999])
@pytest.mark.parametrize("tick_ms", [1, 10])
@pytest.mark.guarantee("never early")
def test_not_a_nanosecond_early(offset_ns, tick_ms):
    """A task added anywhere inside a tick doesn't run a nanosecond before its whole delay has passed."""
    now = [10**9]
    timer = SystemTimer(tick_ms=tick_ms, clock=lambda: now[0], executor=InlineExecutor())
    now[0] += offset_ns
    task = added(timer, Ping(5, clock=lambda: now[0]))
    now[0] += 4_999_999
    timer.advance_clock(0)
    assert [] == task.log
    now[0] += 1 + tick_ms * 1_000_000
    timer.advance_clock(0)
    assert [task] == task.log
    assert 5_000_000 + tick_ms * 1_000_000 + 1 > task.ran_ns[0] - 10**9 - offset_ns - 1


def test_order_of_arrival_holds_across_threads(timer, look):
    """Tasks of one deadline run in the order in which they came, whichever threads added them, one after the other."""
    log = []
    tasks = [Ping(5, log=log) for _ in range(24)]
    threads = [ThreadPoolExecutor(1) for _ in range(3)]
    for number, task in enumerate(tasks):
        threads[number * 7 % 3].submit(timer.add, task).result()
    for thread in threads:
        thread.shutdown()
    look(5)
    assert tasks == log


@pytest.mark.guarantee("never early")
def test_early_wakeup_runs_nothing(clock):
    """A waiter that wakes before its time looks at the clock again, and goes back to sleep."""
    timer = by_hand(clock=clock)
    task = added(timer, Ping(5))
    with beside(lambda: timer.advance_clock(60_000)):
        for _ in range(20):
            timer.wake()
        assert [] == task.log
        clock.advance(5)
        timer.wake()
    assert [task] == task.log


# -- advance_clock


def test_advance_waits_for_what_comes_due():
    """A waiting call returns when something has expired, not at the end of the timeout."""
    with SystemTimer(executor=InlineExecutor()) as timer:
        task = added(timer, Ping(5))
        assert in_thread(timer.advance_clock, 60_000)
        assert [task] == task.log


def test_advance_ends_with_the_timer():
    """A call that waits in a timer that is shut down returns False."""
    timer, answers = SystemTimer(), []
    with beside(lambda: answers.append(timer.advance_clock(60_000))):
        timer.shutdown()
    assert [False] == answers


# -- executors


def test_no_thread_before_the_first_task_is_due(clock):
    """A timer makes its thread when it is first needed. A look at which nothing is due answers False."""
    with SystemTimer("idle", clock=clock) as timer:
        timer.add(Ping(5))
        assert not timer.advance_clock(0)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("idle")]


def test_task_moved_after_its_bucket_was_handed_over(collecting, executor):
    """A task that is added again while it waits for the executor runs by its new deadline only."""
    task = added(collecting, Ping(5))
    let_pass(collecting, 5)
    collecting.add(task)
    assert 1 == executor.run()
    assert ([], 1) == (task.log, collecting.size)
    let_pass(collecting, 5)
    executor.run()
    assert [task] == task.log


@pytest.mark.guarantee("never early")
def test_rescheduled_task_while_its_batch_runs_is_not_run_early(clock):
    """A task that is extended into a coarse bucket isn't run when that one is taken out ahead of time to be emptied."""
    timer = by_hand(clock=clock, wheel_size=4)
    others = [Ping(100) for _ in range(600)]  # more than are moved at a time
    second = Ping(5, clock=clock)

    def meanwhile():
        assert timer.reschedule(second, 100)
        add_all(timer, others)
        clock.advance(90)
        with timer._lock:  # as a driver that has just begun to empty the bucket leaves it
            bucket = second._task_bucket
            timer._wheel.collect(timer._wheel.tick_at(clock()))
            assert bucket.closed
            assert second in bucket

    add_all(timer, [Ping(5, do=meanwhile), second])
    let_pass(timer, 5)
    let_pass(timer, 100)

    assert [second] == second.log
    assert second.deadline_ns <= second.ran_ns[0]


def test_batch_may_be_run_a_few_tasks_at_a_time(collecting, executor):
    """All that is due at a look is one call of ``submit``. Its batch may be called for some tasks at a time.

    It says whether there may be more, and counts on. A task that has not run yet can still be cancelled.
    """
    tasks = add_all(collecting, [Ping(delay_ms) for delay_ms in (3, 1, 2, 1, 25)])
    assert let_pass(collecting, 30)
    assert (0, 5) == (collecting.size, collecting.statistics().handed_over)
    ((run, _),) = executor.batches
    told = []
    for _ in range(3):
        more = run(2)
        statistics = collecting.statistics()
        told.append((more, statistics.handed_over, statistics.fired))
        tasks[4].cancel()
    assert [(True, 3, 2), (True, 1, 4), (False, 0, 4)] == told
    assert [1, 1, 1, 1, 0] == [len(task.log) for task in tasks]


@pytest.mark.parametrize("most", [-1, 2**70, 1.5, "all"])
def test_tasks_of_a_batch_called_with_a_wrong_number_run_later(collecting, executor, most):
    """A batch that an executor calls with a wrong number raises, and its tasks are due again."""
    task = added(collecting, Ping(1))
    let_pass(collecting, 1)
    run, _ = executor.batches.pop()
    with pytest.raises((TypeError, ValueError)):
        run(most)
    assert (0, 1) == (collecting.statistics().handed_over, collecting.size)
    collecting.advance_clock(0)
    executor.run()
    assert [task] == task.log


def test_given_executor_is_not_shut_down():
    """An executor that was given is its owner's to shut down."""
    with ThreadPoolExecutor(1) as executor:
        timer = SystemTimer(executor=executor)
        timer.add(Ping(0))
        timer.shutdown()
        assert 5 == executor.submit(int, 5).result(5)


@pytest.mark.parametrize("error", [RuntimeError("shut down"), queue.Full(), OSError("no thread")])
def test_refusing_executor_loses_nothing(error):
    """If the executor rejects a batch, it is run where it came due: late is better than lost."""
    timer = by_hand(executor=SimpleNamespace(submit=raising(error)))
    tasks = add_all(timer, [Ping(0), Ping(5)])
    let_pass(timer, 5)
    assert [[task] for task in tasks] == [task.log for task in tasks]


def test_exit_in_a_task_stops_nobody(clock):
    """A task that calls ``sys.exit`` on the executor's thread ends neither that thread nor its batch."""
    reported = []
    with SystemTimer(clock=clock, on_error=lambda task, error: reported.append(type(error))) as timer:
        tasks = add_all(timer, [Ping(5, do=sys.exit), Ping(5), Ping(6)])
        let_pass(timer, 6)
        assert all(task.ran.wait(PATIENCE_S) for task in tasks[1:])
    assert [SystemExit] == reported


def test_interrupt_reaches_the_caller_of_an_inline_timer(timer, look):
    """Ctrl-C on the main thread goes through a task to the driving call. The rest of the batch runs a tick later."""
    tasks = add_all(timer, [Ping(5, do=raising(KeyboardInterrupt)), Ping(5)])
    with pytest.raises(KeyboardInterrupt):
        look(5)
    look(1)
    assert [tasks[1]] == tasks[1].log


def test_unhandled_error_goes_to_the_threads_hook(timer, monkeypatch):
    """Without ``on_error`` what a task raises is reported as what a thread raises is."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    timer.add(Ping(0, do=fail))
    timer.advance_clock(0)
    assert [(OSError, "no disk")] == [(args.exc_type, str(args.exc_value)) for args in reported]


@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_no_task_runs_with_the_timers_lock_held(timer, look):
    """A task may use its timer in every way, from other threads too."""
    answers = []

    def use():
        answers.append(in_thread(lambda: [timer.add(Ping(50)), timer.size, timer.pending(), timer.statistics()][1]))

    add_all(timer, [Ping(5, do=use), Ping(0, do=use)])
    look(5)
    assert [1, 2] == answers


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("executor", object()),
        ("clock", 5),
        ("clock", lambda: 5 * 10**18),
        ("clock", lambda: -(2**70)),
        ("tick_ms", 10**13),
    ],
)
def test_settings_are_checked(setting, value):
    """A setting that cannot work is rejected, by name."""
    with pytest.raises(TimerConfigError, match=setting):
        SystemTimer(**{setting: value})


# -- cascading


def cascading(number):
    """A timer with so many tasks in one large bucket, and a thread that moves it."""
    timer = by_hand(wheel_size=4)
    tasks = add_all(timer, [Ping(9 + one % 3) for one in range(number)])
    timer._clock.advance(8)
    mover = threading.Thread(target=timer.advance_clock, args=(0,), daemon=True)
    mover.start()
    return timer, tasks, mover


def test_cascade_lets_others_in():
    """A large bucket is moved in slices. Adding and cancelling go on in between, and nothing is lost."""
    timer, tasks, mover = cascading(2_000)
    cancelled = [task for task in tasks[1_000:1_500] if task.cancel()]
    sizes = [timer.size]
    for task in tasks[500:700]:
        timer.add(task)
        sizes.append(timer.size)
    mover.join(PATIENCE_S)
    assert 500 == len(cancelled)
    assert {1_500} == set(sizes)
    check_invariants(timer)
    let_pass(timer, 20)
    assert 1_500 == sum(len(task.log) for task in tasks)
    assert [] == [task for task in cancelled if task.log]


@pytest.mark.interpreted
def test_task_cancelled_and_added_again_while_a_cascade_moves_it(monkeypatch):
    """Re-arming a task at the moment that a cascade moves it leaves it in the wheel exactly once."""
    timer = by_hand(wheel_size=4)
    task, _ = add_all(timer, [Ping(9), Ping(10)])
    helper = []

    def take_out(bucket, key):
        if key is task and bucket.level == 1 and not helper:
            helper.append(threading.Thread(target=lambda: [task.cancel(), timer.add(task)], daemon=True))
            helper[0].start()
            helper[0].join(0.05)
        dict.__delitem__(bucket, key)

    monkeypatch.setattr(TimerTaskList, "__delitem__", take_out, raising=False)
    let_pass(timer, 8)
    helper[0].join(PATIENCE_S)
    monkeypatch.undo()

    assert 2 == timer.size
    check_invariants(timer)


def test_shutdown_in_the_middle_of_a_cascade():
    """Tasks that a cascade was about to move are among the leftovers."""
    timer, tasks, mover = cascading(3_000)
    left = timer.shutdown()
    mover.join(PATIENCE_S)
    assert 3_000 == len({*left, *[task for task in tasks if task.log]})
    assert not any(task.is_pending for task in tasks)


# -- looking in


def test_next_deadline(timer, look):
    """The next deadline is known to the millisecond while it is near, and not later than it when it is far."""
    assert timer.next_deadline_ms() is None
    timer.add(Ping(1_000))
    assert 0 < timer.next_deadline_ms() <= 1_000
    task = added(timer, Ping(7))
    assert 7 == timer.next_deadline_ms()
    look(3)
    assert 4 == timer.next_deadline_ms()
    task.cancel()
    assert 100 < timer.next_deadline_ms() <= 997


def test_statistics_are_a_frozen_value(look, timer):
    """Statistics count pending, run and failed tasks, and don't change any more. The list of the pending is a copy."""
    timer._dispatcher._on_error = lambda *_: None
    add_all(timer, [Ping(2), Ping(2, do=fail), *(Ping(delay_ms) for delay_ms in (500, 90, 9_000))])
    look(2)
    statistics, listed = timer.statistics(), timer.pending()
    assert ("timer", 3, 2, 1) == (statistics.name, statistics.pending, statistics.fired, statistics.failed)
    assert 3 == sum(statistics.occupancy)
    assert statistics.next_deadline_ms > 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        statistics.pending = 0
    assert [90, 500, 9_000] == [task.delay_ms for task in listed], "by deadline"
    listed.clear()
    assert 3 == timer.size


@pytest.mark.parametrize("epoch_ns", [0, 1_800_000_000_000_000_000], ids=["from 0", "from 1970"])
@pytest.mark.guarantee("never early")
def test_lateness_is_measured(epoch_ns):
    """Each run is counted by how late it was, in powers of two of nanoseconds. A negative delay is not late."""
    timer = by_hand(clock=ManualClock(epoch_ns))
    add_all(timer, [Ping(2), Ping(10), Ping(-1_000)])
    timer.advance_clock(0)
    let_pass(timer, 10)
    statistics = timer.statistics()
    assert 8_000_000 == statistics.late_sum_ns == statistics.late_max_ns
    assert 3 == sum(statistics.late_ns)
    assert (2, 1) == (statistics.late_ns[0], statistics.late_ns[(8_000_000).bit_length()])


def test_lateness_of_a_task_that_adds_itself_again():
    """A task that adds itself again while it runs counts as late by the deadline that it ran for."""
    timer = by_hand()
    task = Ping(2, do=lambda: timer.add(task))
    timer.add(task)
    let_pass(timer, 5)
    assert 3_000_000 == timer.statistics().late_sum_ns


@pytest.mark.parametrize(("delay_ms", "moved_ms"), [(1_000, -10_000), (-10_000, 5), (-10_000, -7)])
def test_lateness_counts_from_the_moved_deadline(collecting, executor, delay_ms, moved_ms):
    """A task that was rescheduled is late from its new deadline on, which is never before the moment of the call."""
    task = added(collecting, Ping(delay_ms))  # one that is due is in the executor's hands, and can still be moved
    assert collecting.reschedule(task, moved_ms)
    let_pass(collecting, max(0, moved_ms) + 3)
    while executor.run():
        pass
    assert 3_000_000 == collecting.statistics().late_sum_ns == collecting.statistics().late_max_ns


def test_counts_are_exact_when_all_has_run():
    """After real work on a real executor every task is counted once."""
    with SystemTimer() as timer:
        for number in range(500):
            timer.add(Ping(number % 20))
        while timer.size:
            timer.advance_clock(5)
        assert eventually(lambda: timer.statistics().fired == 500)
        assert 500 == sum(timer.statistics().late_ns)


def test_batch_goes_on_after_one_that_its_task_runs(timer, look):
    """A task that drives its own timer runs in a batch until it ends, also after the batch that it ran itself."""
    seen = []
    inner = Ping(5, do=lambda: seen.append(timer.statistics().running_since_ns))
    outer = added(timer, Ping(3, do=lambda: [timer.add(inner), look(5), inner.do()]))
    look(3)

    assert [outer.deadline_ns] * 2 == seen
    assert timer.statistics().running_since_ns is None


def test_batch_after_the_shutdown_starts_no_thread(clock):
    """Due tasks that the driver took before a shutdown, and hands over after it, run on the driver's thread."""
    timer = SystemTimer(clock=clock)
    hand_over, task = timer._dispatcher.hand_over, added(timer, Ping(0))

    def after_the_shutdown(buckets):
        timer.shutdown()
        hand_over(buckets)

    timer._dispatcher.hand_over = after_the_shutdown
    timer.advance_clock(0)
    assert task.ran.is_set()
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("timer-executor")]


def test_only_the_driver_runs_due_tasks(timer):
    """``add`` and ``reschedule`` run no task, not even one that is due: the next ``advance_clock`` does."""
    at_once, moved = Ping(0), added(timer, Ping(50))
    timer.add(at_once)
    assert timer.reschedule(moved, 0)
    assert ([], []) == (at_once.log, moved.log)
    assert timer.advance_clock(0)
    assert ([at_once], [moved]) == (at_once.log, moved.log)


def test_task_that_adds_itself_without_delay_does_not_nest(timer):
    """A task that retries at once, 5,000 times, runs each time after the call before has returned."""
    task, running, nested = Ping(0), [], []

    def again():
        nested.extend(running)
        running.append(task)
        if len(task.log) < 5_000:
            timer.add(task)
        running.clear()

    task.do = again
    timer.add(task)
    timer.advance_clock(0)
    assert (5_000, []) == (len(task.log), nested)


def test_negative_delay_does_not_overtake(timer):
    """A task with a negative delay runs after one that was added before it without delay."""
    log = []
    tasks = add_all(timer, [Ping(0, log), Ping(-5, log), Ping(0, log)])
    timer.advance_clock(0)
    assert tasks == log


def test_waiting_driver_wakes_for_a_task_that_is_due():
    """A driver that waits for a far deadline, or rests, expires a task that is added without delay."""
    with SystemTimerReaper("reaper", SystemTimer()) as timer:
        time.sleep(0.02)  # it rests
        assert added(timer, Ping(0)).ran.wait(PATIENCE_S)
        far = added(timer, Ping(3_600_000))
        time.sleep(0.02)  # it waits
        assert added(timer, Ping(0)).ran.wait(PATIENCE_S)
        assert timer.reschedule(far, 0)
        assert far.ran.wait(PATIENCE_S)


def test_statistics_wait_for_the_counts_of_a_batch(timer):
    """The number of tasks that ran and the histogram of their lateness are of one moment."""
    read = []
    reader = threading.Thread(target=lambda: read.append(timer.statistics()))
    with timer._dispatcher._lock:  # as the end of a batch does
        reader.start()
        reader.join(0.05)
        assert [] == read
    reader.join(PATIENCE_S)
    assert (0, 0) == (read[0].fired, sum(read[0].late_ns))
