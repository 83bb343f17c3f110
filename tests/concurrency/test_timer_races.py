"""Real threads on one timer: every task runs exactly once for each add that was not taken back, none early."""

import random
import threading
import time

import pytest

from tests.support import PATIENCE_S, eventually, run_threads
from timer import Driver, SystemTimer, SystemTimerReaper, TimerClosed, TimerTask
from timer._testing import check_invariants


class Timed(TimerTask):
    """Remembers when it ran, and when it should have."""

    def __init__(self, delay_ms):
        super().__init__(delay_ms)
        self.due_ns = []
        self.ran_ns = []

    def add_to(self, timer):
        timer.add(self)
        self.due_ns.append(self.deadline_ns)

    def run(self):
        self.ran_ns.append(time.monotonic_ns())

    @property
    def runs(self):
        return len(self.ran_ns)

    @property
    def early(self):
        """How many runs came before their time. To be asked when all is over.

        While it runs, another thread may put the task off: the deadline that it bears then is not the one that it runs
        by. But each run is for one ``add``, in their order. So the third run comes no sooner than the third deadline,
        and the last, if it is the last add's, no sooner than the last.
        """
        least = sum(ran < due for ran, due in zip(self.ran_ns, self.due_ns or [self.deadline_ns], strict=False))
        return least + (bool(self.ran_ns) and self.ran_ns[-1] < self.deadline_ns)


def delays(seed, count, most=40):
    random_ = random.Random(seed)
    return [random_.randrange(0, most) for _ in range(count)]


def settled(timer, tasks):
    """Whether all of the tasks are done with. Asked in this order, for between two of the answers they move on:

    out of the wheel, so that no cascade moves one. Out of the buckets that came due, and their batches at an end.
    """
    inner = getattr(timer, "timer", timer)
    return eventually(
        lambda: timer.size == 0 and not any(task.is_pending for task in tasks) and inner.statistics().handed_over == 0
    )


@pytest.mark.parametrize("wheel_size", [2, 20])
def test_adding_and_cancelling_from_all_sides(wheel_size):
    """A task that a cancel took out never runs. Each of the others runs once. The count is exact."""
    with SystemTimerReaper("reaper", SystemTimer(wheel_size=wheel_size)) as timer:
        tasks = [[Timed(delay_ms) for delay_ms in delays(seed, 1_000)] for seed in range(3)]
        everything = [task for own in tasks for task in own]
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
        assert settled(timer, everything)
        statistics = timer.timer.statistics()

    gone = {id(task) for task in taken}
    # A cancel may come before the add, in which case it takes nothing.
    assert len(gone) == len(taken)
    assert [] == [task for task in everything if task.runs != (0 if id(task) in gone else 1)]
    assert 0 == sum(task.early for task in everything)
    assert len(everything) - len(taken) == statistics.fired


def test_rearming_through_cascades():
    """Tasks that are moved again and again, while coarse buckets cascade, end up running, by the last deadline.

    If the machine is so busy that one comes due between two moves, it runs then, too: once an add at most.
    """
    with SystemTimerReaper("reaper", SystemTimer(wheel_size=2)) as timer:
        tasks = [[Timed(30 + number % 10) for number in range(100)] for _ in range(3)]
        everything = [task for own in tasks for task in own]

        def rearm(own):
            for _ in range(25):
                for task in own:
                    task.add_to(timer)

        run_threads(*[lambda own=own: rearm(own) for own in tasks])
        assert settled(timer, everything)
        statistics = timer.timer.statistics()

    assert [] == [task for task in everything if not 1 <= task.runs <= 25 or task.is_pending]
    assert 0 == sum(task.early for task in everything)
    assert sum(task.runs for task in everything) == statistics.fired


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
            assert settled(timer, tasks)
            assert [] == [task for task in tasks if task.runs + answers[id(task)].count(True) != 1]


@pytest.mark.parametrize("wheel_size", [2, 20])
def test_putting_off_against_expiry_and_cancelling(wheel_size):
    """For each task one cancel answered True, or it ran once, by the deadline of the last move that answered True."""
    with SystemTimerReaper("reaper", SystemTimer(wheel_size=wheel_size)) as timer:
        tasks = [Timed(2 + number % 9) for number in range(900)]
        taken, moves = [], []

        def reschedule(seed):
            random_ = random.Random(seed)
            for _ in range(3):
                for task in random_.sample(tasks, len(tasks)):
                    if timer.reschedule(task, random_.choice([0, 1, 4, 12, 30])):
                        moves.append(task)

        def cancel():
            for task in tasks[::5]:
                if task.cancel():
                    taken.append(task)

        for task in tasks:
            timer.add(task)
        run_threads(*[lambda seed=seed: reschedule(seed) for seed in range(3)], cancel)
        assert settled(timer, tasks)
        statistics = timer.timer.statistics()

    gone = set(map(id, taken))
    assert len(gone) == len(taken)
    assert [] == [task for task in tasks if task.runs != (0 if id(task) in gone else 1)]
    assert 0 == sum(task.early for task in tasks)
    assert (len(tasks) - len(taken), len(moves)) == (statistics.fired, statistics.rescheduled)


def test_shutdown_against_adding():
    """Each task runs, comes back from the shutdown, or is rejected: exactly one of these."""
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
    assert settled(timer, tasks)
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
    driver.join(PATIENCE_S)

    check_invariants(timer)
    assert timer.size == len(timer.shutdown())
