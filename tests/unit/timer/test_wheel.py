"""The wheel: levels on demand, cascading, a hand that jumps."""

import threading

import pytest

from tests.support import Ping, add_all, added
from tests.support.tasks import by_hand, let_pass
from timer import TimerTask, TimingWheel
from timer._task import NS_PER_MS
from timer._testing import check_invariants


@pytest.fixture
def timer():
    """Three buckets a level, as in the worked example of the wheel's header."""
    with by_hand(wheel_size=3) as timer:
        yield timer


@pytest.fixture
def pass_ms(timer):
    def pass_ms(ms):
        let_pass(timer, ms)
        check_invariants(timer)

    return pass_ms


def test_worked_example(timer, pass_ms):
    """The example of the wheel's header, tick by tick: due at 2, 8 and 40 with a wheel size of three."""
    log = []
    add_all(timer, [Ping(due, log) for due in (2, 8, 40)])
    assert (1, 1, 1) == timer.statistics().occupancy
    for ms, has_run, occupancy in [
        (2, 1, (0, 1, 1)),
        (1, 1, (1, 0, 1)),
        (5, 2, (0, 0, 1)),
        (18, 2, (0, 0, 1)),
        (1, 2, (0, 1, 0)),
        (9, 2, (1, 0, 0)),
        (3, 2, (1, 0, 0)),
        (1, 3, (0, 0, 0)),
    ]:
        pass_ms(ms)
        assert ([2, 8, 40][:has_run], occupancy) == ([task.delay_ms for task in log], timer.statistics().occupancy)


def test_level_spans_the_interval_of_the_one_below(timer):
    """A bucket of each level spans as many ticks as the whole level below. A level is made with its first task."""
    assert [1] == [level.span for level in timer._wheel.levels]
    timer.add(Ping(100))
    assert [1, 3, 9, 27] == [level.span for level in timer._wheel.levels]


def test_hand_catches_up_after_idling(timer):
    """After an idle stretch a short delay lands on the finest level again."""
    timer._clock.advance(1_000_000)
    timer.add(Ping(2))
    assert (1,) == timer.statistics().occupancy


@pytest.mark.guarantee("never early")
def test_hand_never_passes_a_task(timer):
    """Catching up stops before a bucket that holds something, however late its flush is."""
    late = added(timer, Ping(50))
    timer._clock.advance(1_000)
    timer.add(Ping(5))
    check_invariants(timer)
    timer.advance_clock(0)
    assert late.ran.is_set()
    assert 1 == timer.size


def test_emptied_buckets_hold_nobody_up(timer):
    """Buckets whose tasks were all cancelled are dropped, and don't count as something to wake for."""
    near, far = add_all(timer, [Ping(2), Ping(200)])
    near.cancel()
    assert timer.next_deadline_ms() > 2
    far.cancel()
    assert timer.next_deadline_ms() is None
    check_invariants(timer)


def test_buckets_do_not_pile_up(timer, pass_ms):
    """The number of buckets is bounded by the levels, however many tasks come and go."""
    for _ in range(200):
        for delay_ms in (1, 5, 20, 80):
            task = added(timer, Ping(delay_ms))
            task.cancel()
        pass_ms(1)
    assert 3 * len(timer._wheel.levels) >= len(timer._wheel.waiting())


@pytest.mark.parametrize("wheel_size", [1, 2, 3, 20])
def test_every_due_tick_finds_its_bucket(wheel_size):
    """Whatever the size of the wheel, a bucket spans the tick it was asked for and is found again."""
    wheel = TimingWheel(wheel_size, threading.Lock())
    for tick in range(1, 300):
        bucket, _ = wheel.place(tick)
        assert bucket.first <= tick < bucket.end
        assert (bucket, False) == wheel.place(tick)
        assert bucket is wheel.find_bucket(tick * NS_PER_MS)


def test_bucket_of_the_next_turn_is_not_taken_for_one_of_this():
    """A coarse bucket that is in the slot of a nearer one, because the ring has turned, gets no task of that one."""
    wheel = TimingWheel(2, threading.Lock())
    wheel.hand = 1
    far, _ = wheel.place(16)
    far.put(Ping(1))
    near, _ = wheel.bucket_for(2 * NS_PER_MS, NS_PER_MS)
    assert [(16, 20), (2, 3)] == [(bucket.first, bucket.end) for bucket in (far, near)]


def test_next_tick_is_known_without_walking():
    """The next bucket to be taken out is found at once, however far it is: a coarse one a span ahead."""
    wheel = TimingWheel(20, threading.Lock())
    bucket, is_earliest = wheel.place(20**8 + 5)
    bucket.put(Ping(1))
    assert is_earliest
    assert bucket.first - wheel.levels[bucket.level].span == wheel.next_tick()
    assert 20 * len(wheel.levels) > len(wheel.buckets())


@pytest.mark.parametrize("delay_ms", [8, 10**12, None])
def test_a_second_init_of_a_pending_task_changes_nothing(timer, pass_ms, delay_ms):
    """A task that is initialized again while it is pending keeps its place and its deadline, and runs then."""
    task, other = add_all(timer, [Ping(4_000), Ping(7)])  # in a coarse bucket, which is moved
    before = task.delay_ms, task.deadline_ns, task.added_ns
    TimerTask.__init__(task, delay_ms)
    assert before == (task.delay_ms, task.deadline_ns, task.added_ns)
    pass_ms(3_999)
    assert (True, False) == (other.ran.is_set(), task.ran.is_set())
    pass_ms(1)
    assert (True, False) == (task.ran.is_set(), task.is_pending)
