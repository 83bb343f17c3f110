"""Buckets: ordered, and closed permanently once their time has come."""

import threading

from tests.support import Ping, added
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTaskList, check_invariants


def test_bucket_holds_a_task_once():
    """Moving a task to the bucket that it is in leaves one of it, behind those that were there."""
    bucket = TimerTaskList(3, 4, 0, threading.Lock())
    task, other = Ping(3), Ping(3)
    bucket.put(task)
    bucket.put(other)

    assert bucket.take(task, bucket, 5_000_000)
    assert ([other, task], 2) == (list(bucket), len(bucket))
    assert 5_000_000 == task.deadline_ns


def test_only_what_is_there_is_taken():
    """A task that has left the bucket it is looked for in is left alone, and so are its times."""
    lock = threading.Lock()
    bucket, source, third = (TimerTaskList(3, 4, 0, lock) for _ in range(3))
    task = Ping(3)
    third.put(task)

    assert not bucket.take(task, source, 5_000_000)
    assert (False, True, 0) == (task in bucket, task in third, task.deadline_ns)


def test_bucket_gives_its_tasks_in_slices():
    """A caller that removes a slice at a time gets every task once, except those that left meanwhile."""
    lock = threading.Lock()
    bucket, target = TimerTaskList(3, 4, 1, lock), TimerTaskList(3, 4, 0, lock)
    tasks = [Ping(3) for _ in range(7)]
    for task in tasks:
        bucket.put(task)
    given = []
    for some in bucket.slices(3):
        given.append(some)
        for task in some:
            target.take(task, bucket)
        tasks[4].cancel()

    assert tasks[:3] == given[0]
    assert [*tasks[:4], *tasks[5:]] == list(target)
    assert 0 == len(bucket)
    assert bucket.close_if_empty()


def test_bucket_tells_its_span():
    """A bucket knows its ticks, its level, and that it is open."""
    bucket = TimerTaskList(20, 40, 1, threading.Lock())

    assert (20, 40, 1, False) == (bucket.first, bucket.end, bucket.level, bucket.closed)


def test_bucket_closes_only_when_it_is_empty():
    """A bucket with a task in it stays open. An empty one closes."""
    bucket = TimerTaskList(3, 4, 0, threading.Lock())
    task = Ping(3)
    bucket.put(task)

    assert (False, False) == (bucket.close_if_empty(), bucket.closed)
    assert bucket.remove(task)
    assert (True, True) == (bucket.close_if_empty(), bucket.closed)


def test_only_what_is_there_is_removed():
    """A task is removed once, from the bucket that it is in."""
    lock = threading.Lock()
    bucket, other = TimerTaskList(3, 4, 0, lock), TimerTaskList(3, 4, 0, lock)
    task = Ping(3)
    bucket.put(task)

    assert (False, True, False) == (other.remove(task), bucket.remove(task), bucket.remove(task))
    assert not task.is_pending


def test_bucket_that_was_taken_out_takes_in_no_more():
    """A task that is added after its bucket was taken out goes to another bucket."""
    clock = ManualClock()
    timer = SystemTimer(clock=clock, executor=InlineExecutor())
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


def test_walk_tolerates_cancelling():
    """A task that runs may cancel others of its own bucket, which then don't run."""
    log = []
    clock = ManualClock()
    with SystemTimer(clock=clock, executor=InlineExecutor()) as timer:
        tasks = [Ping(5, log) for _ in range(5)]
        tasks[1].do = lambda: [tasks[2].cancel(), tasks[4].cancel()]
        for task in tasks:
            timer.add(task)
        clock.advance(5)
        timer.advance_clock(0)

    assert [tasks[0], tasks[1], tasks[3]] == log


def test_bucket_kept_in_mind_is_left_when_it_closes():
    """Tasks of ever different delays find their buckets again, and none goes into one that has been taken out."""
    clock = ManualClock()
    timer = SystemTimer(clock=clock, executor=InlineExecutor())
    tasks = []
    for step in range(600):  # 30 s, through which coarse buckets are taken out a span before they are due
        for delay_ms in (7_000, 9_500, 7_003) if step < 400 else ():
            tasks.append(Ping(delay_ms, clock=clock))
            timer.add(tasks[-1])
        check_invariants(timer)
        clock.advance(50)
        timer.advance_clock(0)

    late_ns = [task.ran_ns[0] - task.deadline_ns for task in tasks]
    assert 0 <= min(late_ns)
    assert max(late_ns) <= 50_000_000
