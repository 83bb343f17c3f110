"""The timer that a loop drives."""

import asyncio
import contextvars
import threading
from collections import deque

import pytest

from purgatory import InvalidSetting
from purgatory.aio import LoopTimer, WrongLoop
from tests.support import Ping, add_all, added, in_thread, raising
from tests.support.loops import until
from timer import ManualClock, TimerClosed, TimerConfigError
from timer._testing import check_invariants


@pytest.fixture
def timer():
    with LoopTimer() as timer:
        yield timer


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def by_hand(clock):
    """A timer whose clock is moved by hand."""
    with LoopTimer(clock=clock, slice_size=10) as timer:
        yield timer


async def test_task_runs_on_the_loop_and_never_early(run, timer):
    """Tasks run on the loop's thread, in order of deadline, each after its full delay."""
    log = []
    pings = add_all(timer, [Ping(delay_ms, log) for delay_ms in (30, 1, 12, 12, 5)])
    await until(lambda: len(log) == 5)
    assert sorted(log, key=lambda ping: ping.deadline_ns) == log
    assert [1, 5, 12, 12, 30] == sorted(ping.delay_ms for ping in log)
    assert all(ping.ran_ns[0] >= ping.deadline_ns for ping in pings)


async def test_clock_decides_not_the_loop(run, by_hand, clock):
    """However often the loop calls, nothing runs before the timer's own clock says so."""
    ping = added(by_hand, Ping(3))
    await asyncio.sleep(0.02)
    assert [] == ping.ran_ns
    clock.advance(3)
    await until(lambda: ping.ran_ns)


async def test_one_handle_for_all(run, by_hand):
    """However many tasks wait, the loop holds one handle. Later tasks don't touch it, earlier ones move it."""
    by_hand.add(Ping(10_000))
    first = by_hand._handle
    add_all(by_hand, [Ping(delay_ms) for delay_ms in range(10_000, 30_000, 100)])
    assert first is by_hand._handle
    by_hand.add(Ping(9_000))
    assert first.cancelled()
    assert by_hand._handle.when() < first.when()
    check_invariants(by_hand)


async def test_tasks_of_the_same_tick_leave_the_handle(run):
    """Tasks that fall into the bucket the handle is set for leave it as it is."""
    clock = ManualClock(10)  # off the tick's edge
    with LoopTimer(clock=clock) as timer:
        clock.advance(0.5)
        timer.add(Ping(50))
        handle = timer._handle
        clock.advance(0.1)
        timer.add(Ping(50))
        assert handle is timer._handle


async def test_task_due_already_runs_soon_not_inside_add(run, timer):
    """A delay of zero runs in a turn of the loop to come, on no other thread."""
    before = set(threading.enumerate())
    ping = added(timer, Ping(0))
    assert [] == ping.ran_ns
    await until(lambda: ping.ran_ns)
    assert set(threading.enumerate()) <= before


async def test_task_added_from_another_thread_wakes_the_loop(run, timer):
    """A loop that sleeps for long is woken for a task that another thread adds."""
    timer.add(Ping(60_000))
    ping = Ping(5)
    ping.done = asyncio.Event()
    ping.do = ping.done.set
    await asyncio.to_thread(timer.add, ping)
    await asyncio.wait_for(ping.done.wait(), 30)  # half as long as the other one takes


async def test_many_due_at_once_run_in_slices(run, by_hand, clock):
    """Many tasks due at once run a slice at a time. The loop goes round in between, and all run once."""
    log = []
    pings = add_all(by_hand, [Ping(5, log) for _ in range(95)])
    clock.advance(10)
    assert by_hand.advance_clock(0)
    for turns in range(1, 4):
        await asyncio.sleep(0)
        if turns == 1 and not log:
            await asyncio.sleep(0)
        assert turns * 10 == len(log)
    assert pings[80].cancel()
    assert not pings[3].cancel()
    await until(lambda: len(log) == 94)
    await asyncio.sleep(0.005)
    assert {1} == {len(ping.ran_ns) for ping in log}
    statistics = by_hand.statistics()
    assert (94, 0, 0) == (statistics.fired, statistics.pending, statistics.handed_over)


async def test_task_may_add_and_cancel(run, timer):
    """A running task may add itself again and cancel others of its own slice."""

    def do():
        victim.cancel()
        if len(again.ran_ns) < 3:
            timer.add(again)

    again, victim = add_all(timer, [Ping(5, do=do), Ping(5)])
    await until(lambda: len(again.ran_ns) == 3)
    assert [] == victim.ran_ns


async def test_error_handler_is_that_of_every_timer(run):
    """An error of a task goes to ``on_error`` and stops no other task."""
    errors, error = [], ValueError("late")
    with LoopTimer(on_error=lambda *given: errors.append(given)) as timer:
        broken, sound = add_all(timer, [Ping(1, do=raising(error)), Ping(1)])
        await until(lambda: sound.ran_ns)
    assert [(broken, error)] == errors


async def test_tasks_do_not_run_in_the_context_of_an_adder(run, timer):
    """A task sees no context variables of the code that happened to set the handle."""
    request = contextvars.ContextVar("request", default=None)
    seen = []
    request.set("somebody's")
    ping = added(timer, Ping(1, do=lambda: seen.append(request.get())))
    await until(lambda: ping.ran_ns)
    assert [None] == seen


async def test_shutdown_returns_what_was_pending(run, by_hand, clock):
    """Shutdown runs what was due, returns what was pending, and leaves no handle behind."""
    due, late = add_all(by_hand, [Ping(1), Ping(60_000)])
    clock.advance(2)
    by_hand.advance_clock(0)
    handle = by_hand._handle
    assert [late] == by_hand.shutdown()
    assert 1 == len(due.ran_ns)
    assert handle.cancelled()
    assert [] == by_hand.shutdown()
    with pytest.raises(TimerClosed):
        by_hand.add(Ping(1))


def test_timer_without_a_loop_says_so(timer):
    """Adding where no loop runs, before the timer has one, raises and adds nothing."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        timer.add(Ping(1))
    assert (0, None) == (timer.size, timer.loop)


async def test_timer_belongs_to_one_loop(run, timer):
    """A timer of one loop doesn't serve another."""
    timer.bind()

    async def elsewhere():
        timer.bind()

    with pytest.raises(WrongLoop, match="another event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())


def test_timer_of_a_closed_loop_takes_tasks_and_runs_none(timer):
    """After its loop has closed nothing runs, and nothing breaks."""

    async def main():
        timer.bind()

    asyncio.run(main())
    ping = Ping(60_000)
    in_thread(timer.add, ping)
    assert [ping] == timer.shutdown()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"slice_size": 0}, InvalidSetting),
        ({"slice_size": True}, InvalidSetting),
        ({"tick_ms": 0}, TimerConfigError),
        ({"wheel_size": 0}, TimerConfigError),
    ],
)
def test_bad_settings_raise(settings, error):
    """A setting that cannot work is rejected."""
    with pytest.raises(error):
        LoopTimer(**settings)


class _Between(deque):
    """Batches that wait: another thread brings one just when the loop has found that there is none."""

    def __init__(self, look, bring):
        super().__init__()
        self.look = look
        self.bring = bring

    def found_none(self, look):
        if look == self.look and self.bring is not None:
            bring, self.bring = self.bring, None
            in_thread(bring)

    def __bool__(self):
        found = len(self) > 0
        if not found:
            self.found_none("after a turn")
        return found

    def popleft(self):
        try:
            return super().popleft()
        except IndexError:
            self.found_none("in a turn")
            raise


@pytest.mark.parametrize("look", ["after a turn", "in a turn"])
async def test_a_task_that_comes_as_the_loop_finds_nothing_to_do_is_run(run, look, timer):
    """Its thread leaves the turn to the loop, which has one planned, and the loop looks again."""
    first, late = Ping(0), Ping(0)
    timer.bind()
    timer._loop_executor._jobs = _Between(look, lambda: timer.add(late))
    timer.add(first)
    if look == "in a turn":
        timer.advance_clock(0)
        timer._loop_executor._jobs.popleft()(1)  # as by a shutdown: the turn that is planned finds nothing
    await until(lambda: late.ran_ns)
    assert first.ran_ns


async def test_tasks_that_are_due_come_from_any_thread(run, timer):
    """Threads that each add a task as soon as the one before has run are never left waiting."""
    timer.bind()

    def again():
        return all(added(timer, Ping(0)).ran.wait(20) for _ in range(300))

    waits = [asyncio.to_thread(again) for _ in range(2)]
    assert [True, True] == await asyncio.gather(*waits)
