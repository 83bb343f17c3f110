"""Two implementations, one behaviour: the same calls of the native timer and of Python's, and the same answers."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

import timer as native
from tests.explore.edition import Edition

pytestmark = pytest.mark.native

#: Around the spans of buckets, small ones, the longest and what is beyond it, and none.
DELAYS = st.one_of(
    st.integers(-3, 60),
    st.integers(-(10**4), 10**6),
    st.sampled_from([10**9, 10**12, 10**12 + 1, 10**30, -(10**12), -(10**30), 0.3, float("inf"), None]),
    st.floats(-2, 500, allow_nan=False),
)


def is_allowed(delay_ms):
    return delay_ms is None or -math.inf < delay_ms <= 10**12


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 11), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 11), st.none()),
    st.tuples(st.just("reschedule"), st.integers(0, 11), DELAYS),
    st.tuples(st.just("advance"), st.none(), st.one_of(st.integers(0, 50), st.sampled_from([1_000, 10**5, 10**9]))),
    st.tuples(st.just("look"), st.integers(0, 11), st.none()),
    st.tuples(st.just("again"), st.integers(0, 11), st.none()),
)


@pytest.fixture(scope="module")
def pure():
    return Edition().timer


def story(edition, delays, steps, tick_ms, wheel_size):
    """One implementation's answers to each step."""
    told = []

    class Task(edition.TimerTask):
        def __init__(self, number, delay_ms):
            super().__init__(delay_ms)
            self.number = number
            self.again = False

        def run(self):
            told.append(("ran", self.number, self.is_pending, self.deadline_ns))
            if self.again:
                self.again = False
                timer.add(self)
            if self.number == 7:
                raise OSError(self.number)

    def attempt(call, *arguments):
        try:
            return call(*arguments)
        except edition.TimerError as error:
            return type(error).__name__, str(error)

    def state():
        statistics = timer.statistics()
        return (
            [task.number for task in timer.pending()],
            [(task.is_pending, task.deadline_ns, task.added_ns, task.delay_ms) for task in tasks],
            (statistics.pending, statistics.occupancy, statistics.fired, statistics.failed, statistics.rescheduled),
            (statistics.hand, statistics.next_deadline_ms, statistics.handed_over),
        )

    errors = []
    timer = edition.MockTimer(
        tick_ms=tick_ms,
        wheel_size=wheel_size,
        on_error=lambda task, error: errors.append((task.number, str(error))),
    )
    tasks = [Task(number, delay_ms) for number, delay_ms in enumerate(delays)]
    for kind, number, value in steps:
        task = None if number is None else tasks[number]
        if kind == "add":
            told.append(attempt(timer.add, task))
        elif kind == "cancel":
            told.append(task.cancel())
        elif kind == "reschedule":
            told.append(attempt(timer.reschedule, task, value))
        elif kind == "advance":
            told.append(timer.advance_clock(value))
        elif kind == "again":
            task.again = True
        else:
            told.append(state())
        edition._testing.check_invariants(timer)
    told.append(state())
    told.append([task.number for task in timer.shutdown()])
    told.append(errors)
    return told


@given(
    delays=st.lists(DELAYS.filter(is_allowed), min_size=12, max_size=12),
    steps=st.lists(STEPS, max_size=40),
    tick_ms=st.sampled_from([1, 7]),
    wheel_size=st.sampled_from([2, 3, 20]),
)
@example(  # the second task goes to the bucket of the first, although a finer level reaches its tick by then
    delays=[50, 43, *[0] * 10],
    steps=[("add", 0, None), ("advance", None, 7), ("add", 1, None)],
    tick_ms=7,
    wheel_size=2,
)
@settings(deadline=None)
def test_editions_answer_alike(pure, delays, steps, tick_ms, wheel_size):
    """Whatever is added, cancelled, extended and read, in whatever order: both editions say the same."""
    assert story(pure, delays, steps, tick_ms, wheel_size) == story(native, delays, steps, tick_ms, wheel_size)
