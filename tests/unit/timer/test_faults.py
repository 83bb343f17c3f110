"""An exception anywhere in the driver, or while a batch is handed over and run, loses no task."""

import contextlib
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import timer as package
from tests.support import PATIENCE_S, Ping, add_all, added
from tests.support.tasks import Collecting, by_hand, fail, let_pass
from timer import (
    Driver,
    InlineExecutor,
    ManualClock,
    MockTimer,
    SystemTimer,
    SystemTimerReaper,
    _dispatch,
    _running,
)
from timer._testing import check_invariants

FOLDER = package.__path__[0]


class Injector:
    """Raises ``MemoryError`` at the n-th call that the code of the timer makes on one thread, once."""

    def __init__(self, number):
        self.left = number
        self.where = None

    def __call__(self, frame, event, called):
        if event not in {"call", "c_call"} or not frame.f_code.co_filename.startswith(FOLDER):
            return
        if event == "c_call" and called.__name__ in {"__enter__", "__exit__"}:
            return  # a lock needs no memory
        self.left -= 1
        if self.left == 0:
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
            raise MemoryError(self.where)


def expire_all(number, executor):
    """Let tasks of all levels expire while the n-th call fails. Returns where, and what did not run."""
    injector = Injector(number)

    class Struck(SystemTimer):
        def advance_until(self, stopped):
            sys.setprofile(injector if injector.left > 0 else None)
            try:
                return super().advance_until(stopped)
            finally:
                sys.setprofile(None)

    failed = []
    inner = Struck(wheel_size=2, executor=executor, on_error=lambda task, error: failed.append(task))
    tasks = add_all(inner, [Ping(delay_ms) for delay_ms in (1, 1, 2, 3, 5, 5, 9, 12, 12, 20)])
    driver = Driver("struck", inner, on_restart=lambda error, restarts: None)
    give_up = time.monotonic() + PATIENCE_S
    lost = tasks
    while lost and time.monotonic() < give_up:
        time.sleep(0.001)
        lost = [task for task in lost if not task.ran.is_set() and task not in failed]
    driver.stop()
    assert [] == inner.shutdown()
    check_invariants(inner)
    return injector.where, lost


@pytest.mark.parametrize("executor", [None, InlineExecutor()], ids=["thread", "inline"])
def test_a_memory_error_in_the_driver_loses_no_task(executor):
    """Whichever call of the driver fails, each task still runs, and the timer can be shut down."""
    struck = set()
    for first in range(1, 6):  # every fifth call, to save time, and the others until both places were struck
        for number in range(first, 250, 5):
            where, lost = expire_all(number, executor)
            assert [] == lost, where
            if where is None:
                break
            struck.add(where.partition(":")[0])
        if {"collect", "_wait_for_due"} <= struck:
            return
    pytest.fail(f"not all places were struck: {struck}")


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(number, tasks):
    """Let three tasks expire while the n-th call or return on this thread is interrupted. Returns where."""
    timer = MockTimer()
    add_all(timer, tasks)
    left, where = number, None

    def signal(frame, event, called):
        nonlocal left, where
        # CPython looks for signals where a Python function begins and where a call of C has returned.
        if event not in {"call", "c_return"} or getattr(called, "__name__", "") in {"__enter__", "__exit__"}:
            return
        if not frame.f_code.co_filename.startswith((FOLDER, __file__)):
            return
        left -= 1
        if left == 0:
            where = f"{event} {frame.f_code.co_name}:{frame.f_lineno}"
            raise Interrupt

    with contextlib.suppress(Interrupt):
        sys.setprofile(signal)
        try:
            timer.advance_clock(5)
        finally:
            sys.setprofile(None)
    timer.advance_clock(5)
    check_invariants(timer)
    assert 0 == timer.size, where
    assert [] == _running.calls()
    return where


class Owned(Ping):
    """A task whose ``run`` may be called again."""

    _task_is_owned = True


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", [Ping, Owned])
@pytest.mark.guarantee("an interrupt loses no operation")
def test_an_interrupt_of_a_batch_loses_no_task(kind):
    """Wherever an interrupt strikes a batch, each task runs. Only an owned one, which bears it, may run twice."""
    places = set()
    for number in range(1, 500):
        tasks = [kind(5), kind(5), kind(5)]
        where = interrupted_at(number, tasks)
        if where is None:
            break
        places.add(where.split()[1].partition(":")[0])
        if kind is Owned or " run:" not in where:  # an interrupt of its own code is the task's affair
            runs = [len(task.log) for task in tasks]
            assert {1} == {*runs} or (kind is Owned and {1, 2} == {*runs}), where
    assert {"run", "run_tasks", "_claim", "_run_task"} <= places


def test_a_batch_that_fails_is_due_again():
    """A clock that fails while a batch begins loses nothing: the batch runs with the next round."""
    failures = []

    def clock():
        if failures:
            failures.pop()
            raise MemoryError
        return now_ns

    now_ns = 0
    timer = SystemTimer(clock=clock, executor=InlineExecutor())
    tasks = add_all(timer, [Ping(5), Ping(5)])
    now_ns = 5_000_000
    timer._dispatcher._executor = SimpleNamespace(submit=lambda run: [failures.append(1), run()])
    with pytest.raises(MemoryError):
        timer.advance_clock(0)
    assert (2, 0) == (timer.size, timer.statistics().handed_over)

    timer._dispatcher._executor = InlineExecutor()
    assert timer.advance_clock(0)
    assert [True, True] == [task.ran.is_set() for task in tasks]


def interrupted_once_due(executor):
    """A timer whose executor is interrupted as it gets the one due task. Nothing counts as handed over then."""
    clock = ManualClock()
    timer = SystemTimer(clock=clock, executor=executor)
    task = added(timer, Ping(5))
    clock.advance(5)
    with pytest.raises(KeyboardInterrupt):
        timer.advance_clock(0)
    assert (1, 0) == (timer.size, timer.statistics().handed_over)
    return timer, task


def test_a_batch_that_cannot_be_submitted_is_due_again():
    """An interrupt of the executor's ``submit`` loses nothing: the batch runs with the next round."""
    interrupts = [KeyboardInterrupt()]

    class Interrupted(InlineExecutor):
        def submit(self, fn, /, *args):
            if interrupts:
                raise interrupts.pop()
            super().submit(fn, *args)

    timer, task = interrupted_once_due(Interrupted())
    timer.advance_clock(0)
    assert ([task], 0) == (task.log, timer.statistics().handed_over)


def test_an_interrupt_after_the_executor_took_a_batch_counts_its_tasks_once():
    """The executor runs a batch, although ``submit`` was interrupted after it took it. The tasks run once."""
    batches = []

    class Interrupted:
        def submit(self, fn, /):
            batches.append(fn)
            raise KeyboardInterrupt

    timer, task = interrupted_once_due(Interrupted())
    batches[0]()
    assert ([task], 0, 0) == (task.log, timer.size, timer.statistics().handed_over)


def test_a_batch_begins_only_if_the_stack_has_room():
    """Where the stack ends, ``advance_clock`` raises before it runs a task. The task runs later."""
    clock, reported = ManualClock(), []
    timer = SystemTimer(clock=clock, executor=InlineExecutor(), on_error=lambda *error: reported.append(error))
    task = added(timer, Ping(5))
    clock.advance(5)

    def deepen(calls):
        return timer.advance_clock(0) if calls == 0 else deepen(calls - 1)

    limit = sys.getrecursionlimit()
    for calls in range(300, 400):
        try:
            sys.setrecursionlimit(400)
            deepen(calls)
        except RecursionError:
            pass
        finally:
            sys.setrecursionlimit(limit)
        if task.log:
            task = added(timer, Ping(5))
            clock.advance(5)
    assert ([], 1, 0) == (reported, timer.size, timer.statistics().handed_over)
    assert timer.advance_clock(0)
    assert [task] == task.log


def test_advance_clock_does_not_wait_for_tasks_that_move():
    """Tasks of a coarse bucket move in slices. A call that must not wait leaves those that are not due yet."""
    clock = ManualClock()
    timer = SystemTimer(clock=clock, executor=InlineExecutor())
    tasks = add_all(timer, [Ping(30_000) for _ in range(50_000)])
    clock.advance(20_000)
    began = time.monotonic()
    assert not timer.advance_clock(0)
    assert timer._wheel.moving
    assert time.monotonic() - began < 1
    clock.advance(10_000)
    assert timer.advance_clock(0)
    assert [1] * len(tasks) == [len(task.log) for task in tasks]


def test_a_reaper_runs_what_was_put_back():
    """A batch that a ``SystemExit`` of the error handler ended is run by the reaper's next round."""
    ended = threading.Event()

    def on_error(task, error):
        if not ended.is_set():
            ended.set()
            raise SystemExit

    with SystemTimerReaper("reaper", SystemTimer(on_error=on_error)) as timer:
        _, second = add_all(timer, [Ping(5, do=fail), Ping(5)])
        assert second.ran.wait(PATIENCE_S)
    assert ended.is_set()


def test_tasks_that_are_cancelled_while_a_batch_begins():
    """Tasks that are cancelled at each step of a batch's beginning do not run, and the others do."""
    executor = Collecting()
    inner = by_hand(executor=executor)
    tasks = add_all(inner, [Ping(1) for _ in range(1_000)])
    cancelled = set()

    def tracer(frame, event, _):
        if frame.f_code.co_filename == _dispatch.__file__:
            frame.f_trace_opcodes = True
            if event == "opcode" and len(cancelled) < 900 and tasks[-1 - len(cancelled)].cancel():
                cancelled.add(tasks[-1 - len(cancelled)])
        return tracer

    let_pass(inner, 1)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        executor.run()
    finally:
        sys.settrace(before)
    assert [] == [task for task in tasks if task.ran.is_set() == (task in cancelled)]
    inner.shutdown()


def test_task_without_a_run_that_can_be_read_fails_alone():
    """An error of the attribute ``run`` itself counts as the task's, and the rest of its batch runs."""

    class Unreadable(Ping):
        @property
        def run(self):
            raise OSError("no disk")

    failed = []
    timer = by_hand(on_error=lambda task, error: failed.append((task, type(error))))
    broken, after = add_all(timer, [Unreadable(1), Ping(1)])
    let_pass(timer, 1)
    assert [(broken, OSError)] == failed
    assert after.ran.is_set()
