"""Buckets: ordered, and closed permanently once their time has come."""

import threading

import pytest

from tests.support import Ping, add_all, added
from tests.support.tasks import by_hand, let_pass
from timer import ManualClock, TimerTaskList
from timer._testing import check_invariants
from timer._wheel import cascade


@pytest.fixture
def make():
    """Make a bucket that holds these tasks. All that a test makes share a lock."""
    lock = threading.Lock()

    def make(*tasks, level=0):
        bucket = TimerTaskList(3, 4, level, lock)
        for task in tasks:
            bucket.put(task)
        return bucket

    return make


def test_bucket_holds_a_task_once(make):
    """Moving a task to the bucket that it is in leaves one of it, behind those that were there."""
    task, other = Ping(3), Ping(3)
    bucket = make(task, other)
    assert bucket.take(task, bucket, 5_000_000)
    assert ([other, task], 2) == (list(bucket), len(bucket))
    assert 5_000_000 == task.deadline_ns


def test_only_what_is_there_is_taken_or_removed(make):
    """A task that is in another bucket than it is looked for in is left alone, and so are its times."""
    task = Ping(3)
    bucket, source, third = make(), make(), make(task)
    assert not bucket.take(task, source, 5_000_000)
    assert (False, True, 0) == (task in bucket, task in third, task.deadline_ns)
    assert (False, True, False) == (bucket.remove(task), third.remove(task), third.remove(task))
    assert not task.is_pending


@pytest.mark.interpreted
def test_task_that_moves_before_a_cancel_has_the_lock_is_cancelled_where_it_is(make):
    """Another thread may move the task after ``cancel`` has read its bucket. Then ``cancel`` reads it again."""
    task = Ping(3)
    bucket, other = make(task), make()

    class Moving:
        def __enter__(self):
            other.take(task, bucket)

        def __exit__(self, *_):
            pass

    bucket.lock = Moving()
    assert task.cancel()
    assert ([], [], False) == (list(bucket), list(other), task.is_pending)


def test_cascade_moves_the_tasks_of_a_bucket_in_slices():
    """A coarse bucket gives its tasks up some at a time, in their order, and each once, except those that left."""
    timer = by_hand()
    wheel, tasks = timer._wheel, add_all(timer, [Ping(50) for _ in range(7)])
    (bucket,) = wheel.waiting()
    wheel._detach(bucket)
    wheel.hand = 30
    counts = [cascade(wheel, bucket, 3)]
    assert tasks[3:] == list(bucket)
    tasks[4].cancel()
    wheel.hand = 100
    while bucket:
        counts.append(cascade(wheel, bucket, 3))
    assert (tasks[:3], [tasks[3], *tasks[5:]]) == (list(tasks[0]._task_bucket), list(wheel.due[0]))
    assert max(counts) <= 3
    assert bucket.close_if_empty()


def test_bucket_closes_only_when_it_is_empty(make):
    """A bucket knows its ticks and its level. With a task in it it stays open. An empty one closes."""
    task = Ping(3)
    bucket = make(task, level=1)
    assert (3, 4, 1, False) == (bucket.first, bucket.end, bucket.level, bucket.closed)
    assert (False, False) == (bucket.close_if_empty(), bucket.closed)
    assert bucket.remove(task)
    assert (True, True) == (bucket.close_if_empty(), bucket.closed)


def test_bucket_that_was_taken_out_takes_in_no_more():
    """A task that is added after its bucket was taken out goes to another bucket."""
    clock = ManualClock()
    timer = by_hand(clock=clock)
    timer.add(Ping(5))
    with timer._lock:
        clock.advance(5)
        timer._wheel.collect(5)
        (closed,), timer._wheel.due = timer._wheel.due, []
    task = added(timer, Ping(5))

    assert closed.closed
    assert task not in closed
    assert not task._task_bucket.closed
    assert [task] == timer.pending()

    clock.advance(10)
    later = Ping(30)
    timer.add(later)  # a turn of the ring later, in the same slot
    assert (45, 46) == (later._task_bucket.first, later._task_bucket.end)


def test_remembered_bucket_that_was_taken_out_takes_in_no_more():
    """A coarse bucket is taken out before its time. A task for its span that comes then runs in time, too."""
    timer = by_hand()
    tasks = add_all(timer, [Ping(50), Ping(50)])  # the second one finds the bucket of the first
    let_pass(timer, 20)  # the bucket is taken out, and its tasks move
    tasks.append(added(timer, Ping(30)))
    check_invariants(timer)
    let_pass(timer, 29)
    assert 3 == timer.size
    let_pass(timer, 1)
    assert [[task] for task in tasks] == [task.log for task in tasks]


def test_remembered_bucket_takes_in_its_own_span_alone():
    """A task whose deadline lies close to that of an earlier one has a bucket of its own."""
    timer = by_hand()
    early, early_too, late = add_all(timer, [Ping(5), Ping(5), Ping(30)])
    let_pass(timer, 29)
    assert ([early], [early_too], []) == (early.log, early_too.log, late.log)
    let_pass(timer, 1)
    assert [late] == late.log


def test_closed_bucket_that_an_interrupt_left_in_the_wheel_takes_in_no_more():
    """After an interrupt between the close of an empty bucket and its removal, its span gets another bucket."""
    timer = by_hand()
    early, cancelled = add_all(timer, [Ping(2), Ping(5)])
    closed = cancelled._task_bucket
    cancelled.cancel()
    assert closed.close_if_empty()
    tasks = [early, *add_all(timer, [Ping(5), Ping(3), Ping(5)])]
    assert 0 == len(closed)
    check_invariants(timer)
    let_pass(timer, 5)
    assert [[task] for task in tasks] == [task.log for task in tasks]


def test_walk_tolerates_cancelling():
    """A task that runs may cancel others of its own bucket, which then don't run."""
    log, timer = [], by_hand()
    tasks = add_all(timer, [Ping(5, log) for _ in range(5)])
    tasks[1].do = lambda: [tasks[2].cancel(), tasks[4].cancel()]
    let_pass(timer, 5)
    assert [tasks[0], tasks[1], tasks[3]] == log


def test_bucket_kept_in_mind_is_left_when_it_closes():
    """Tasks of ever different delays find their buckets again, and none goes into one that has been taken out."""
    timer, tasks = by_hand(), []
    for step in range(600):  # 30 s, through which coarse buckets are taken out a span before they are due
        for delay_ms in (7_000, 9_500, 7_003) if step < 400 else ():
            tasks.append(added(timer, Ping(delay_ms, clock=timer.now_ns)))
        check_invariants(timer)
        let_pass(timer, 50)
    late_ns = [task.ran_ns[0] - task.deadline_ns for task in tasks]
    assert 0 <= min(late_ns)
    assert max(late_ns) <= 50_000_000
