"""
The contract of every timer: one suite for MockTimer and SystemTimer.

SystemTimer stands here four times: on a clock moved by hand, running inline and on its own executor's thread, and on
the system's clock, driven by the test and by a reaper.
"""

import gc
import math
import sys
import time
import weakref

import pytest

from tests.support import Ping, add_all, added, eventually, raising
from tests.support.tasks import fail
from timer import (
    DelayTypeError,
    DelayValueError,
    InvalidTask,
    TaskHeld,
    TimerClosed,
    TimerConfigError,
)
from timer._task import NS_PER_MS

pytestmark = pytest.mark.usefixtures("no_threads_left")


def test_zero_and_negative_delays_run_promptly(bench, timer):
    """Delays of zero or less, however small, mean already due: each runs once, at once."""
    tasks = add_all(timer, [Ping(delay_ms) for delay_ms in (-(10**15), -(10**9), *range(-5, 1))])
    bench.pass_ms(timer, 0)
    assert bench.ran(*tasks)
    assert [1] * 8 == [len(task.log) for task in tasks]
    assert 0 == timer.size


@pytest.mark.parametrize("delay_ms", [10**12, None])
def test_longest_delay_waits(bench, timer, delay_ms):
    """The longest delay and none at all: the task waits, the driver sleeps, and other tasks run."""
    far = added(timer, Ping(delay_ms))
    time.sleep(0.02)  # a driver, if there is one, finds nothing else to wait for
    task = added(timer, Ping(5))
    bench.pass_ms(timer, 6)
    assert bench.ran(task)
    assert (1, True) == (timer.size, far.is_pending)
    next_ms = timer.statistics().next_deadline_ms
    assert next_ms is None if delay_ms is None else next_ms > 10**11
    assert timer.driver is None or timer.driver.restarts == 0


def test_task_without_a_deadline_gets_one_and_loses_it(bench, timer):
    """None is no deadline: the task waits until it is rescheduled to one. With None the deadline is removed again."""
    task, other = add_all(timer, [Ping(None), Ping(60_000)])
    assert (None, None, True) == (task.delay_ms, task.deadline_ns, task.is_pending)
    assert timer.reschedule(other, None)
    assert (60_000, None, True) == (other.delay_ms, other.deadline_ns, other.is_pending)
    assert timer.reschedule(task, 5)
    assert task.deadline_ns is not None
    bench.pass_ms(timer, 6)
    assert bench.ran(task)
    assert other.cancel()
    assert (None, 0) == (other.deadline_ns, timer.size)


@pytest.mark.parametrize("delay_ms", [10**12 + 1, 10**400, sys.float_info.max, -math.inf])
def test_delay_beyond_the_limit_is_refused(timer, delay_ms):
    """More than 31 years is a mistake, and the error says what to pass for no deadline."""
    task = added(timer, Ping(50_000))
    deadline_ns = task.deadline_ns
    with pytest.raises(DelayValueError, match=r"up to 10\*\*12 .* pass None for no deadline") as caught:
        timer.reschedule(task, delay_ms)
    assert delay_ms == caught.value.delay
    with pytest.raises(DelayValueError):
        Ping(delay_ms)
    assert (True, deadline_ns) == (task.is_pending, task.deadline_ns)


@pytest.mark.parametrize(("tick_ms", "most_ms"), [(1, 500), (2, 40), (7, 40), (10, 40)])
def test_every_delay_runs_exactly_once(bench, tick_ms, most_ms):
    """In a wheel of 3 buckets, with a coarse tick too, each delay runs exactly once and none early. Others wait."""
    timer = bench.make(tick_ms=tick_ms, wheel_size=3)
    bench.pass_ms(timer, 3)  # somewhere inside a tick
    tasks = [Ping(delay_ms, clock=bench.clock) for delay_ms in range(most_ms) for _ in range(2)]
    later = added(timer, Ping(60_000))
    for task in reversed(tasks):
        timer.add(task)
    bench.pass_ms(timer, most_ms + tick_ms)
    assert bench.ran(*tasks)
    assert [1] * 2 * most_ms == [len(task.ran_ns) for task in tasks]
    assert [] == [task for task in tasks if task.ran_ns[0] < task.deadline_ns]
    assert ([], True, 1) == (later.log, later.is_pending, timer.size)


def test_due_tasks_run_in_order_of_deadline(bench):
    """Tasks that fall due together run earliest first."""
    timer = bench.make(wheel_size=3)
    log = []
    tasks = add_all(timer, [Ping(delay_ms, log) for delay_ms in (40, 3, 27, 9, 1, 18)])
    bench.pass_ms(timer, 40)
    assert bench.ran(*tasks)
    ticks = [task.added_ns // NS_PER_MS + task.delay_ms for task in log]  # this thread may stop between two
    assert sorted(ticks) == ticks
    assert {1, 3, 9, 18, 27, 40} == {task.delay_ms for task in log}


def test_size_counts_what_is_pending(bench, timer):
    """The size is raised by an add, drops at once with a cancel, and is zero when all have run."""
    tasks = [Ping(delay_ms) for delay_ms in (60_000, 60_000, 15_000, 10**9)]
    sizes = [timer.size, *((timer.add(task), timer.size)[1] for task in tasks)]
    sizes += [(task.cancel(), timer.size)[1] for task in tasks[2:]]
    assert [0, 1, 2, 3, 4, 3, 2] == sizes
    for task in tasks[:2]:
        timer.reschedule(task, 15)
    bench.pass_ms(timer, 15)
    assert bench.ran(*tasks[:2])
    assert 0 == timer.size


def test_cancelled_task_never_runs(bench, timer):
    """Cancelling is answered with True once, and the task does not run. The next add forgets it."""
    for _ in range(100):  # on a busy machine a task may run before it is cancelled
        task = added(timer, Ping(10))
        if is_cancelled := task.cancel():
            break
    assert [True, False] == [is_cancelled, task.cancel()]
    bench.pass_ms(timer, 20)
    assert [] == task.log
    timer.add(task)
    bench.pass_ms(timer, 10)
    assert bench.ran(task)
    assert 1 == len(task.log)


def test_running_task_is_neither_cancelled_nor_reschedule(bench, timer):
    """A task that is running, or has run, has come too far."""
    answers = []
    task = Ping(1, do=lambda: answers.append((task.cancel(), timer.reschedule(task, 1))))
    timer.add(task)
    bench.pass_ms(timer, 1)
    assert bench.ran(task)
    assert not task.cancel()
    assert [(False, False)] == answers


def test_adding_a_pending_task_moves_it(bench, timer):
    """A pending task that is added again is pending once, by its new deadline."""
    task = Ping(400, clock=bench.clock)  # long enough that a busy machine adds it again in time
    timer.add(task)
    bench.pass_ms(timer, 5)
    first = task.deadline_ns
    timer.add(task)
    assert 1 == timer.size
    assert task.deadline_ns >= first + 5_000_000
    bench.pass_ms(timer, 450)
    assert bench.ran(task)
    assert 1 == len(task.log)
    assert task.ran_ns[0] >= task.deadline_ns


def test_running_task_may_add_itself_again(bench, timer):
    """A task may add itself while it runs: that is how something repeats."""

    def again():
        if len(task.log) < 3:
            timer.add(task)

    task = added(timer, Ping(2, do=again))

    def has_run_three_times():
        bench.pass_ms(timer, 3)
        return len(task.log) == 3

    # On a clock of its own a run of milliseconds may come later than it should, and with it all that follow.
    assert eventually(has_run_three_times)
    bench.pass_ms(timer, 3)
    assert 3 == len(task.log)
    assert 0 == timer.size


@pytest.mark.guarantee("hooks that raise")
def test_task_that_raises_stops_no_other(bench, timer):
    """An error of a task is reported with the task, and the others of its batch run."""
    tasks = add_all(timer, [Ping(3), Ping(3, do=fail), Ping(3), Ping(4)])
    bench.pass_ms(timer, 4)
    assert bench.ran(tasks[0], tasks[2], tasks[3])
    assert [(tasks[1], "no disk")] == [(task, str(error)) for task, error in bench.errors]


def test_broken_error_handler_stops_nobody(bench, monkeypatch):
    """An ``on_error`` that raises stops no other task."""
    reported = []
    monkeypatch.setattr("threading.excepthook", reported.append)
    timer = bench.make(on_error=raising(LookupError("no handler")))
    tasks = add_all(timer, [Ping(1, do=fail), Ping(1), Ping(2)])
    bench.pass_ms(timer, 2)
    assert bench.ran(*tasks[1:])
    assert [LookupError] == [report.exc_type for report in reported]


def test_shutdown_returns_what_was_pending(bench, timer):
    """The leftovers come back earliest first, in no timer any more. A second shutdown has nothing to return."""
    tasks = add_all(timer, [Ping(delay_ms) for delay_ms in (300_000, 100_000, 10**9, 200_000)])
    assert [tasks[1], tasks[3], tasks[0], tasks[2]] == timer.shutdown()
    assert not any(timer.reschedule(task, 5) or task.is_pending or task.cancel() for task in tasks)
    assert (0, []) == (timer.size, timer.shutdown())


def test_what_was_due_is_run_or_returned(bench, timer):
    """A task that was already due when the timer was shut down is not lost."""
    task = added(timer, Ping(0))
    left = timer.shutdown()
    assert [task] == left or bench.ran(task)


@pytest.mark.parametrize("delay_ms", [0, 5, 10**9])
def test_closed_timer_takes_nothing(bench, delay_ms):
    """Leaving the block shuts the timer down. Adding to it then raises, and the task is left alone."""
    with bench.make() as timer:
        timer.add(Ping(5))  # its bucket must not let a newcomer in either
    task = Ping(delay_ms)
    with pytest.raises(TimerClosed, match="shut down"):
        timer.add(task)
    assert not task.is_pending
    assert 0 == timer.size


@pytest.mark.parametrize(
    ("delay_ms", "error"),
    [("1", DelayTypeError), (True, DelayTypeError), (float("nan"), DelayValueError)],
)
def test_timeouts_and_new_delays_are_checked(timer, delay_ms, error):
    """What is no number of milliseconds is rejected as a timeout and as a new delay, and changes nothing."""
    task = added(timer, Ping(50_000))
    deadline_ns = task.deadline_ns
    with pytest.raises(error):
        timer.advance_clock(delay_ms)
    with pytest.raises(error):
        timer.reschedule(task, delay_ms)
    assert (True, deadline_ns) == (task.is_pending, task.deadline_ns)


@pytest.mark.parametrize("setting", ["tick_ms", "wheel_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_settings_are_checked(bench, setting, value):
    """A tick, a wheel or a limit that cannot work is rejected by name, with the value."""
    with pytest.raises(TimerConfigError, match=setting) as caught:
        bench.make(**{setting: value})
    assert (setting, value) == (caught.value.setting, caught.value.value)


def test_task_that_ran_is_freed(bench, timer):
    """Nothing in the timer keeps a task alive that has run."""
    task = added(timer, Ping(1))
    bench.pass_ms(timer, 1)
    assert bench.ran(task)
    bench.settle(timer)
    gone = weakref.ref(task)
    del task
    # Without a global lock, references that another thread gave up are settled by the owner's thread, in a moment.
    assert eventually(lambda: (gc.collect(), gone())[1] is None)


# -- rescheduling


@pytest.mark.guarantee("a moved deadline counts")
def test_rescheduled_task_runs_by_its_new_deadline(bench, timer):
    """A pending task that is extended runs once, when the new delay has passed from then."""
    task = Ping(400, clock=bench.clock)  # far apart: on a busy machine a pause of 2 ms may last for 100
    timer.add(task)
    before_ns = task.deadline_ns
    bench.pass_ms(timer, 2)
    assert timer.reschedule(task, 700)
    assert before_ns + 300_000_000 < task.deadline_ns
    assert 1 == timer.size
    bench.pass_ms(timer, 450)
    assert [] == task.log or task.deadline_ns <= task.ran_ns[0]  # on a busy machine more time may have passed
    bench.pass_ms(timer, 260)
    assert bench.ran(task)
    assert [task] == task.log
    assert task.deadline_ns <= task.ran_ns[0]


@pytest.mark.parametrize("delay_ms", [5, 0, -5])
def test_task_rescheduled_to_an_earlier_time_runs_then(bench, timer, delay_ms):
    """A new delay may be shorter than what is left of the old one, however long that is. Zero or less: due already."""
    task = added(timer, Ping(50_000))
    added_ns = task.added_ns
    assert timer.reschedule(task, 10**12)
    assert task.deadline_ns >= 10**18
    assert added_ns == task.added_ns
    assert timer.reschedule(task, delay_ms)
    bench.pass_ms(timer, max(0, delay_ms + 1))
    assert bench.ran(task)


def test_only_a_pending_task_is_reschedule(bench, timer):
    """One that was never added, was cancelled or has run is left alone, and so is one of another timer's."""
    new, foreign = Ping(50), added(bench.make(), Ping(50_000))
    cancelled, run = add_all(timer, [Ping(50_000), Ping(0)])
    cancelled.cancel()
    bench.pass_ms(timer, 1)
    assert bench.ran(run)
    deadline_ns = foreign.deadline_ns
    assert [False] * 4 == [timer.reschedule(task, 90) for task in (new, cancelled, run, foreign)]
    assert (0, 0) == (timer.size, timer.statistics().rescheduled)
    assert (0, deadline_ns) == (new.deadline_ns, foreign.deadline_ns)


def test_rescheduled_task_remembers_when_it_was_added(bench, timer):
    """However often a task is extended, it knows when it was added, and with what delay. Statistics count how often."""
    task = added(timer, Ping(50_000))
    added_ns = task.added_ns
    for delay_ms in (70_000, 40_000, 90_000):
        bench.pass_ms(timer, 1)
        timer.reschedule(task, delay_ms)
    assert (added_ns, 50_000) == (task.added_ns, task.delay_ms)
    assert 3 == timer.statistics().rescheduled
    timer.add(task)
    assert task.added_ns > added_ns
    assert task.deadline_ns == task.added_ns + 50_000 * 1_000_000


class Forgetful(Ping):
    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        *((what, "subclass TimerTask") for what in (None, 5, object())),
        (Forgetful(), r"Forgetful was not initialized; call super\(\).__init__\(delay_ms\)"),
    ],
    ids=["None", "int", "object", "task without the library's init"],
)
def test_what_is_no_task_is_refused(timer, task, hint):
    """An object that is not a whole task is neither added nor extended, and the error names what is missing."""
    for call in (timer.add, lambda task: timer.reschedule(task, 5)):
        with pytest.raises(InvalidTask, match=hint) as caught:
            call(task)
        assert task is caught.value.task
    assert 0 == timer.size


# -- tasks that are held


class Held(Ping):
    """A task of a class that only its owner moves."""

    _task_is_owned = True

    def cancel(self):
        """Means something else to its owner."""
        raise AssertionError("the timer called what is not its own")


def test_task_that_its_owner_holds_is_not_moved(bench, timer):
    """Adding such a task while it is pending raises and changes nothing. Before and after it can be added."""
    task = added(timer, Held(60_000))
    deadline_ns = task.deadline_ns
    with pytest.raises(TaskHeld, match=r"extend\(\)") as caught:
        timer.add(task)
    assert task is caught.value.task
    assert (deadline_ns, True) == (task.deadline_ns, task.is_pending)
    assert timer.reschedule(task, 2)
    bench.pass_ms(timer, 3)
    assert bench.ran(task)
    timer.add(task)
    assert timer.reschedule(task, 2)
    bench.pass_ms(timer, 3)
    assert eventually(lambda: [task, task] == task.log)  # a reaper may just have lost the processor


def test_task_moves_between_timers_and_none_calls_its_cancel(bench, timer):
    """Adding a task to another timer takes it out of the first. What a subclass means by ``cancel`` is not called."""

    class Wide(Held):
        _task_is_owned = False

    task = added(timer, Wide(50_000))
    timer.add(task)
    other = bench.make()
    other.add(task)
    assert (0, 1) == (timer.size, other.size)
    assert task._task_withdraw()
    timer.add(task)
    timer.shutdown()
    assert not task.is_pending
