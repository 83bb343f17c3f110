"""Real threads on one timer: every task runs exactly once for each add that was not taken back, none early."""

import random
import threading
import time

import pytest

from tests.support import eventually, run_threads
from timer import Driver, SystemTimer, SystemTimerReaper, TimerClosed, TimerTask, check_invariants


class Timed(TimerTask):
    """Counts its runs, and those that came too early."""

    def __init__(self, delay_ms):
        super().__init__(delay_ms)
        self.runs = 0
        self.early = 0

    def run(self):
        self.runs += 1
        if time.monotonic_ns() < self.deadline_ns:
            self.early += 1


def delays(seed, count, most=40):
    random_ = random.Random(seed)
    return [random_.randrange(0, most) for _ in range(count)]


def settled(timer):
    inner = getattr(timer, "timer", timer)
    return eventually(lambda: timer.size == 0 and inner.statistics().handed_over == 0)


@pytest.mark.parametrize("wheel_size", [2, 20])
def test_adding_and_cancelling_from_all_sides(wheel_size):
    """A task that a cancel took out never runs; each of the others runs once; the count is exact."""
    with SystemTimerReaper("reaper", SystemTimer(wheel_size=wheel_size)) as timer:
        tasks = [[Timed(delay_ms) for delay_ms in delays(seed, 1_000)] for seed in range(3)]
        taken = []

        def add(own):
            for task in own:
                timer.add(task)

        def cancel(own):
            for task in own[::3]:
                for _ in range(3):
                    if task.cancel():
                        taken.append(task)

        run_threads(
            *[lambda own=own: add(own) for own in tasks],
            lambda: [cancel(own) for own in tasks],
            lambda: [cancel(own) for own in reversed(tasks)],
        )
        assert settled(timer)
        statistics = timer.timer.statistics()

    everything = [task for own in tasks for task in own]
    gone = {id(task) for task in taken}
    # A cancel may come before the add, in which case it takes nothing.
    assert len(gone) == len(taken)
    assert [] == [task for task in everything if task.runs != (0 if id(task) in gone else 1)]
    assert 0 == sum(task.early for task in everything)
    assert len(everything) - len(taken) == statistics.fired


def test_rearming_through_cascades():
    """Tasks that are moved again and again, while coarse buckets cascade, end up running once, by the last deadline."""
    with SystemTimerReaper("reaper", SystemTimer(wheel_size=2)) as timer:
        tasks = [[Timed(30 + number % 10) for number in range(100)] for _ in range(3)]

        def rearm(own):
            for _ in range(25):
                for task in own:
                    timer.add(task)

        run_threads(*[lambda own=own: rearm(own) for own in tasks])
        last = {id(task): task.runs for own in tasks for task in own if not task.is_pending}
        assert settled(timer)

    for own in tasks:
        for task in own:
            assert task.runs >= 1
            assert id(task) in last or not task.is_pending
            assert 0 == task.early


def test_cancel_against_expiry():
    """For each task either the cancel that answered True or the run happened, never both, never neither."""
    with SystemTimerReaper("reaper", SystemTimer()) as timer:
        for _ in range(25):
            tasks = [Timed(2) for _ in range(150)]
            answers = {}

            def cancel(tasks, answers):
                time.sleep(0.0019)
                for task in tasks:
                    answers.setdefault(id(task), []).append(task.cancel())

            for task in tasks:
                timer.add(task)
            run_threads(*[lambda tasks=tasks, answers=answers: cancel(tasks, answers)] * 2)
            assert settled(timer)
            assert [] == [task for task in tasks if task.runs + answers[id(task)].count(True) != 1]


def test_shutdown_against_adding():
    """Each task runs, comes back from the shutdown, or is refused: exactly one of these."""
    for round_ in range(20):
        timer = SystemTimerReaper("reaper", SystemTimer())
        tasks = [[Timed(delay_ms) for delay_ms in delays(10 * round_ + seed, 200, 6)] for seed in range(2)]
        refused = []
        left = []

        def add(own, timer=timer, refused=refused):
            for task in own:
                try:
                    timer.add(task)
                except TimerClosed:
                    refused.append(task)

        def shut(timer=timer, left=left):
            time.sleep(0.002)
            left.extend(timer.shutdown())

        run_threads(*[lambda own=own, add=add: add(own) for own in tasks], shut)
        everything = [task for own in tasks for task in own]
        ends = {id(task): task.runs for task in everything}
        for task in (*refused, *left):
            ends[id(task)] += 1

        assert {1} == set(ends.values())
        assert not any(task.is_pending for task in everything)
        assert 0 == timer.size


def test_two_drivers_that_come_and_go():
    """While drivers of one timer come and go, another one stays, and everything runs in time."""
    timer = SystemTimer()
    staying = Driver("staying", timer)
    tasks = [Timed(delay_ms) for delay_ms in delays(5, 300, 10)]

    def come_and_go():
        for _ in range(25):
            Driver("going", timer).stop()

    def add():
        for task in tasks:
            timer.add(task)
            time.sleep(0.0002)

    run_threads(come_and_go, come_and_go, add)
    assert settled(timer)
    staying.stop()
    timer.shutdown()

    assert {1} == {task.runs for task in tasks}
    assert 0 == sum(task.early for task in tasks)


def test_structure_after_the_storm():
    """After adds, cancels and expiries from all sides the timer's structure is sound."""
    timer = SystemTimer(wheel_size=3)
    done = threading.Event()

    def drive():
        while not done.is_set():
            timer.advance_clock(1)

    def use(seed):
        random_ = random.Random(seed)
        own = [Timed(random_.randrange(0, 300)) for _ in range(400)]
        for _ in range(2):
            for task in own:
                timer.add(task)
                random_.choice(own).cancel()

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    run_threads(*[lambda seed=seed: use(seed) for seed in range(3)])
    done.set()
    driver.join(5)

    check_invariants(timer)
    assert timer.size == len(timer.shutdown())
