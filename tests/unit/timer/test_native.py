"""What only the native implementation can get wrong: memory, and what it is handed that is no task."""

import gc
import random
import threading

import pytest

from tests.support import Ping, added
from tests.support.leaks import growth
from tests.support.tasks import by_hand, let_pass
from timer import InlineExecutor, InvalidTask, SystemTimer, TimerTask, TimerTaskEntry, TimerTaskList
from timer._dispatch import Batch
from timer._implementation import CORE

pytestmark = pytest.mark.native


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Leave out of collections what earlier tests left in this process. These tests collect often."""
    gc.freeze()


class Short(TimerTask):
    """A task as small as they come."""

    __slots__ = ("__dict__",)

    def run(self):
        """Nothing."""


@pytest.fixture
def timer():
    with by_hand() as timer:
        yield timer


def new_bucket(level=0, *, closed=False):
    return TimerTaskList(0, 1, level, threading.Lock(), closed=closed)


@pytest.mark.parametrize("what", [None, 5, object(), "task", TimerTask, [], {}])
def test_only_tasks_are_taken_and_only_from_buckets(timer, what):
    """An object that is not a task, or not a bucket, is rejected, and nothing happens."""
    bucket, task = new_bucket(), Ping(1)
    for call in (
        lambda: bucket.put(what),
        lambda: bucket.remove(what),
        lambda: bucket.take(what, bucket),
        lambda: bucket.take(task, 5 if what is None else what),
        lambda: CORE.cascade(timer._wheel, what, 5),
        lambda: CORE.cascade(timer._wheel, bucket, what if what != 5 else None),
        lambda: CORE.DueTasks([what], timer._clock, print),
    ):
        with pytest.raises(TypeError):
            call()
    assert ([], False) == (list(bucket), task.is_pending)


def test_task_is_in_one_bucket():
    """A task that is in a bucket can't be put into another without being taken out of the first."""
    bucket, other, task = new_bucket(), new_bucket(), TimerTaskEntry(1)
    bucket.put(task)
    with pytest.raises(InvalidTask, match="no bucket"):
        other.put(task)
    with pytest.raises(AttributeError):
        task._task_bucket = None
    assert (1, 0) == (len(bucket), len(other))


def test_bucket_says_its_state_and_no_more():
    """The attributes of a bucket can be neither deleted nor set."""
    bucket = new_bucket()
    for name in ("closed", "first", "end", "level", "lock", "after_ns"):
        with pytest.raises((AttributeError, TypeError)):
            delattr(bucket, name)
        with pytest.raises((AttributeError, TypeError)):
            setattr(bucket, name, None)


def test_batch_runs_what_its_buckets_have_when_it_begins(timer):
    """A batch has room for more tasks than there were when it was made."""
    bucket, tasks = new_bucket(closed=True), [Ping(1) for _ in range(5)]
    buckets = [bucket]
    batch = Batch(timer._dispatcher, buckets, 0)
    for task in tasks:
        bucket.put(task)
    assert not batch.run()
    assert [[task] for task in tasks] == [task.log for task in tasks]


@pytest.mark.parametrize("now_ns", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_clock_at_the_end_of_64_bits(now_ns):
    """A clock may answer with any int. Tasks that were dated by it run, and count as late by nothing that overflows."""
    times = [0]
    timer = SystemTimer(clock=lambda: times[0], executor=InlineExecutor())
    task, early = Ping(5), Ping(-5)
    timer.add(task)
    times[0] = now_ns
    timer.add(early)
    timer._expire_due()  # by the clock of now
    timer._dispatcher.hand_over([task._task_bucket])
    assert [early] == early.log
    assert [task] == task.log
    assert 0 <= timer.statistics().late_max_ns
    timer.shutdown()


def test_times_are_64_bits(timer):
    """The times of a task are numbers of 64 bits, and nothing else can be written."""
    task = Ping(5)
    for value, error in ((2**63, OverflowError), (0.5, TypeError), (None, TypeError)):
        with pytest.raises(error):
            task._task_deadline_ns = value
    assert (5, 0) == (task.delay_ms, task.deadline_ns)


def test_abandoned_timer_is_collected():
    """A timer without references from outside, with tasks in it that refer to it, is garbage."""
    freed = []

    class Watched(Short):
        def __del__(self):
            freed.append(1)

    def abandon():
        timer = by_hand()
        for delay_ms in (1, 30, 500, 10_000, 10**12):
            task = Watched(delay_ms)
            task.timer = timer
            timer.add(task)

    abandon()
    gc.collect()
    assert 5 == sum(freed)


def test_bucket_outlives_nobody():
    """A bucket that is dropped is garbage with its tasks. One that is still referred to is in no bucket any more."""
    bucket = new_bucket()
    kept, task = TimerTaskEntry(1), Short(2)
    task.bucket = bucket
    bucket.put(kept)
    bucket.put(task)
    del bucket, task
    gc.collect()
    assert not kept.is_pending
    assert kept._task_bucket is None
    assert not kept._task_withdraw()


def use(random_):
    """Every way through a timer, at random."""
    timer = by_hand(wheel_size=4)
    tasks = [Short(random_.choice([1, 3, 40, 900, 20_000, 10**12, None])) for _ in range(200)]
    for _ in range(600):
        task = random_.choice(tasks)
        what = random_.random()
        if what < 0.5:
            timer.add(task)
        elif what < 0.7:
            timer.reschedule(task, random_.choice([0, 2, 30, 5_000, 10**12, None]))
        elif what < 0.9:
            task.cancel()
        else:
            let_pass(timer, random_.randrange(30))
    timer.pending()
    timer.statistics()
    timer.shutdown()


def test_nothing_leaks():
    """However many timers are used, no more memory is in use afterwards than before."""
    random_ = random.Random(5)
    # One per timer would be 5 a round, one per task 1,000.
    assert growth(lambda: use(random_), times=5) < 5


def test_nothing_leaks_where_something_raises(timer):
    """Refusals and failing tasks leave no memory behind either."""

    class Failing(Short):
        def run(self):
            raise OSError

    def refuse():
        task = added(timer, Failing(0))
        for call in (
            lambda: TimerTaskEntry("5"),
            lambda: TimerTaskEntry(float("nan")),
            lambda: timer.add(5),
            lambda: timer.reschedule(task, "5"),
            lambda: timer.reschedule(task),
            lambda: TimerTaskList(0, 1),
            lambda: CORE.DueTasks([5], timer._clock, print),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        timer.advance_clock(0)

    timer._dispatcher._on_error = lambda *_: None
    assert growth(refuse, times=50) < 16
