"""The explored scenarios: two or three threads each, at the places where such an implementation goes wrong.

A scenario builds its world, gives it its threads, and returns what must hold when they are done.
:meth:`~tests.explore.explorer.World.settle` adds what must hold always: nothing completed twice, nothing overlapping,
nothing said twice, counters that add up, every open operation found under each of its keys and in the timer, no other
entry, key or task left.
"""

from __future__ import annotations


def operation(world, delay_ms=1_000, *, name="op", needs=None, lock=None, wants=("a",)):
    """An operation that completes once all of its ``needs`` are there, and keeps count of its hooks."""

    class Op(world.core.purgatory.DelayedOperation):
        def __init__(self):
            super().__init__(delay_ms, lock=lock)
            self.ready = False
            self.needs = needs
            self.wants = wants
            self.completed = self.expired = 0
            self.inside = 0
            self.overlapped = False
            self.parked_ok = False
            self.purgatory = self.timer = None
            self.done_ns = None

        def is_ready(self):
            return self.ready if self.needs is None else all(need.ready for need in self.needs)

        def try_complete(self):
            self.inside += 1
            self.overlapped = self.overlapped or self.inside > 1
            try:
                return self.is_ready() and self.force_complete()
            finally:
                self.inside -= 1

        def on_complete(self):
            self.completed += 1
            self.done_ns = world.scheduler.now_ns
            self.overlapped = self.overlapped or (self.inside > 0 and self.outcome.value == "expired")

        def on_expiration(self):
            self.expired += 1

        def __repr__(self):
            return name

    made = Op()
    world.operations.append(made)
    return made


class Event:
    """Something that happens."""

    def __init__(self):
        self.ready = False


def park(world, purgatory, op):
    """Park, and note what came of it."""
    op.purgatory, op.timer = purgatory, purgatory.timer
    try:
        if purgatory.try_complete_else_watch(op, list(op.wants)):
            world.wins.append((op, "park"))
    except Exception:
        op.parked_ok = False
        raise
    op.parked_ok = True


def park_unless_closed(world, purgatory, op, refused):
    """Park, or note that the purgatory is closed."""
    try:
        park(world, purgatory, op)
    except world.core.purgatory.PurgatoryClosed:
        refused.append(op)


def parked(world, purgatory, **kw):
    """An operation parked before the threads start."""
    op = operation(world, **kw)
    park(world, purgatory, op)
    return op


def check_key(world, purgatory, key, limit=None):
    """Check a key, and note the operations that it must complete: those ready now, if the check goes to its end."""
    ready = [op for op in world.operations if key in op.wants and op.is_ready()]
    completed = purgatory.check_and_complete(key, limit)
    if limit is None:
        world.promised += ready
    return completed


def holding(lock):
    """What takes the lock, does something, and gives it back."""
    other = Event()

    def hold():
        with lock:
            other.ready = True
            other.ready = False

    return hold


def force(world, op):
    if op.force_complete():
        world.wins.append((op, "force"))


def cancel(world, op):
    if op.cancel():
        world.wins.append((op, "cancel"))


def event(world, purgatory, op, key, *, wins=False):
    """What makes the operation ready and checks a key of it. With ``wins`` it notes whether that completed it."""

    def check():
        op.ready = True
        if check_key(world, purgatory, key) and wins:
            world.wins.append((op, "check"))

    return check


def completed(*operations, why=None):
    """What must hold at the end: each of the operations has completed."""

    def done():
        for op in operations:
            assert op.is_completed, why or f"{op} is open"

    return done


# -- parking


def park_vs_check(world):
    """An event while the operation is being parked is not missed, under whichever of its keys."""
    purgatory = world.purgatory()
    op = operation(world, wants=("a", "b"))

    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("event", event(world, purgatory, op, "b"))
    return completed(op, why="the event was missed")


def park_vs_two_checks(world):
    """Two events on two keys while the operation is being parked."""
    purgatory = world.purgatory()
    events = Event(), Event()
    op = operation(world, wants=("a", "b"), needs=events)

    def check(event, key):
        event.ready = True
        check_key(world, purgatory, key)

    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("event-a", lambda: check(events[0], "a"))
    world.thread("event-b", lambda: check(events[1], "b"))
    return completed(op, why="an event was missed")


def park_vs_expire(world):
    """An operation whose time is up while it is being parked expires, once, and not before its time."""
    purgatory = world.purgatory()
    op = operation(world, 5)
    start_ns = world.scheduler.now_ns

    def expire():
        world.advance(purgatory.timer, 5)

    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("time", expire)

    def done():
        world.advance(purgatory.timer, 6)
        assert op.outcome is world.core.purgatory.Outcome.EXPIRED
        assert op.done_ns - max(start_ns, op.created_ns) >= 5_000_000, "expired early"

    return done


def park_due_vs_check(world):
    """An operation with no time at all, checked while it is being parked."""
    purgatory = world.purgatory()
    op = operation(world, 0)

    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("event", event(world, purgatory, op, "a"))
    return completed(op)


def park_vs_force(world):
    """An operation that is completed by force before, while or after it is parked completes once."""
    purgatory = world.purgatory(max_parked=5)
    op = operation(world)
    op.ready = True
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("forcer", lambda: force(world, op))
    return completed(op)


def park_unready_vs_force(world):
    """An operation that only force can complete, just when it is parked, is counted once."""
    purgatory = world.purgatory(max_parked=5)
    op = operation(world)
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("forcer", lambda: force(world, op))
    return completed(op)


def park_observed_vs_force(world):
    """Observers are notified of as many parked operations as are counted, however the operation ends."""

    class Observer:
        def __init__(self):
            self.parks = self.ends = 0

        def parked(self, operation):
            self.parks += 1

        def finished(self, operation, outcome, error):
            self.ends += 1

    observer = Observer()
    purgatory = world.purgatory(observers=[observer])
    op = operation(world)
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("forcer", lambda: force(world, op))

    def done():
        assert observer.parks == purgatory.totals().parked, f"told of {observer.parks}, {purgatory.totals()}"
        assert observer.ends <= 1

    return done


def park_vs_cancel(world):
    """An operation that is cancelled while it is parked is out, and nothing is left of it."""
    purgatory = world.purgatory(max_parked=5)
    op = operation(world, wants=("a", "b"))
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("canceller", lambda: cancel(world, op))
    return lambda: None


def park_twice_vs_check(world):
    """Parking an operation twice is refused, and loses no check."""
    purgatory = world.purgatory(max_parked=5)
    op = operation(world)
    refused = []

    def park_it():
        try:
            if purgatory.try_complete_else_watch(op, ["a"]):
                world.wins.append((op, "park"))
            op.purgatory, op.timer, op.parked_ok = purgatory, purgatory.timer, True
        except world.core.purgatory.AlreadyParked:
            refused.append(1)

    world.thread("parker", park_it)
    world.thread("again", park_it)
    world.thread("event", event(world, purgatory, op, "a"))

    def done():
        # Refused, unless it had completed by then.
        assert len(refused) == 1 or op.is_completed
        assert op.is_completed, "the event was missed"

    return done


def park_vs_shutdown(world):
    """An operation that is parked during a shutdown is rejected or settled."""
    purgatory = world.purgatory()
    op = operation(world)
    refused = []
    world.thread("parker", lambda: park_unless_closed(world, purgatory, op, refused))
    world.thread("shutdown", lambda: purgatory.shutdown())

    def done():
        assert op.is_completed != bool(refused), "accepted and left open, or refused and completed"

    return done


# -- checking


def check_vs_check(world):
    """Two events, each completing half. Neither check may be the one that came too early and went."""
    purgatory = world.purgatory()
    events = Event(), Event()
    op = parked(world, purgatory, needs=events)

    def check(event):
        event.ready = True
        check_key(world, purgatory, "a")

    world.thread("event-0", lambda: check(events[0]))
    world.thread("event-1", lambda: check(events[1]))
    return completed(op, why="an event was missed")


def check_vs_force(world):
    """A check and a force: one of them did it, and only one says so."""
    purgatory = world.purgatory(max_parked=5)
    op = parked(world, purgatory, wants=("a", "b"))
    world.thread("event", event(world, purgatory, op, "a", wins=True))
    world.thread("forcer", lambda: force(world, op))
    return completed(op)


def check_vs_expire(world):
    """A check and a deadline: once, without overlapping."""
    purgatory = world.purgatory()
    op = parked(world, purgatory, delay_ms=5, wants=("a", "b"))
    world.thread("event", event(world, purgatory, op, "a", wins=True))
    world.thread("time", lambda: world.advance(purgatory.timer, 6))
    return completed(op)


def check_vs_user_lock(world):
    """The user holds the operation's lock without a look at any flag: the check comes back for it."""
    lock = world.lock()
    purgatory = world.purgatory()
    op = parked(world, purgatory, lock=lock)
    world.thread("user", holding(lock))
    world.thread("event", event(world, purgatory, op, "a"))
    return completed(op, why="the check was dropped")


def expire_vs_user_lock(world):
    """A deadline that finds the user's lock held doesn't wait for it, and isn't forgotten."""
    lock = world.lock(reentrant=True)
    purgatory = world.purgatory()
    op = parked(world, purgatory, lock=lock, delay_ms=5)
    world.thread("user", holding(lock))
    world.thread("time", lambda: world.advance(purgatory.timer, 6))
    return completed(op, why="the deadline was dropped")


# -- taking out


def complete_vs_cancel(world):
    """One of a force and a cancel has it."""
    purgatory = world.purgatory(max_parked=5)
    op = parked(world, purgatory, wants=("a", "b"))
    world.thread("forcer", lambda: force(world, op))
    world.thread("canceller", lambda: cancel(world, op))

    def done():
        assert len(world.wins) == 1, f"{world.wins}"

    return done


def cancel_for_key_vs_check(world):
    """Taken out under one key while it is completed under another: one of the two."""
    purgatory = world.purgatory()
    op = parked(world, purgatory, wants=("a", "b"))
    other = parked(world, purgatory, wants=("a",), name="other")
    op.ready = True

    def take():
        for taken in purgatory.cancel_for_key("a"):
            world.wins.append((taken, "cancel_for_key"))

    def check():
        if check_key(world, purgatory, "b"):
            world.wins.append((op, "check"))

    world.thread("canceller", take)
    world.thread("event", check)

    def done():
        assert sorted(str(who) for who, _ in world.wins) == ["op", "other"], f"{world.wins}"
        assert not other.is_completed

    return done


# -- rescheduling


def extend_vs_expire(world):
    """A deadline that is extended just as it comes counts, or it had come, as the answer says."""
    purgatory = world.purgatory()
    op = parked(world, purgatory, delay_ms=5)
    answers = []

    def extend():
        before_ns = world.scheduler.now_ns
        answers.append((op.extend(50), before_ns))

    world.thread("holder", extend)
    world.thread("time", lambda: world.advance(purgatory.timer, 6))

    def done():
        ((reschedule, before_ns),) = answers
        assert reschedule == (op.outcome is None), f"answered {reschedule}, and the operation is {op.outcome}"
        world.advance(purgatory.timer, 60)
        assert op.outcome is world.core.purgatory.Outcome.EXPIRED
        assert not reschedule or op.done_ns - before_ns >= 50_000_000, "expired by the old deadline"

    return done


def extend_vs_satisfy(world):
    """A deadline that is extended while the operation completes leaves nothing in the timer."""
    purgatory = world.purgatory(max_parked=5)
    op = parked(world, purgatory, delay_ms=5, wants=("a", "b"))
    world.thread("holder", lambda: op.extend(50))
    world.thread("event", event(world, purgatory, op, "a", wins=True))

    def done():
        assert op.is_completed
        assert 0 == purgatory.timer.size, "it is in the timer still"

    return done


def extend_vs_park(world):
    """A deadline that is extended while the operation is being parked: it has one, the old or the new."""
    purgatory = world.purgatory()
    op = operation(world, 5)
    answers = []
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("holder", lambda: answers.append(op.extend(50)))

    def done():
        assert 1 == purgatory.timer.size, "it is parked and has no deadline"
        world.advance(purgatory.timer, 6)
        assert answers[0] == (op.outcome is None), f"answered {answers[0]}, and the operation is {op.outcome}"

    return done


def extend_vs_cancel(world):
    """A deadline that is extended while the operation is cancelled leaves nothing in the timer."""
    purgatory = world.purgatory(max_parked=5)
    op = parked(world, purgatory, delay_ms=5)
    world.thread("holder", lambda: op.extend(50))
    world.thread("canceller", lambda: cancel(world, op))

    def done():
        assert 0 == purgatory.timer.size, "it is in the timer still"

    return done


# -- a limit, and no place


def limited_check_vs_check(world):
    """A check that may complete one, and one that may complete all: both operations are, and each once."""
    purgatory = world.purgatory()
    first, second = (parked(world, purgatory, name=name) for name in ("first", "second"))
    first.ready = second.ready = True
    counts = []
    world.thread("limited", lambda: counts.append(check_key(world, purgatory, "a", limit=1)))
    world.thread("event", lambda: counts.append(check_key(world, purgatory, "a")))

    def done():
        assert first.is_completed
        assert second.is_completed
        assert 2 == sum(counts), f"{counts}"

    return done


def limited_vs_limited(world):
    """Two checks that may complete one each complete two, though they look at the same first."""
    purgatory = world.purgatory()
    operations = [parked(world, purgatory, name=name) for name in ("first", "second", "third")]
    for op in operations:
        op.ready = True
    counts = []
    world.thread("limited-0", lambda: counts.append(check_key(world, purgatory, "a", limit=1)))
    world.thread("limited-1", lambda: counts.append(check_key(world, purgatory, "a", limit=1)))

    def done():
        assert counts == [1, 1], f"{counts}"
        assert [True, True, False] == [op.is_completed for op in operations]

    return done


def _refused(world, purgatory, op):
    """Park, and note whether it was refused."""
    try:
        park(world, purgatory, op)
    except world.core.purgatory.PurgatoryFull:
        op.purgatory = op.timer = None
        op.refused = True


def _refused_while(world, name, end):
    """An operation that one thread parks without a place, while another one ends it."""
    purgatory = world.purgatory(max_parked=1)
    parked(world, purgatory, name="before", wants=("b",))
    op = operation(world)
    op.refused = False
    world.thread("parker", lambda: _refused(world, purgatory, op))
    world.thread(name, lambda: end(world, op))
    return op


def refused_vs_force(world):
    """An operation that finds no place, and is forced meanwhile: it completes once, and its parking call does not
    raise.
    """
    op = _refused_while(world, "forcer", force)

    def done():
        assert op.is_completed
        was_immediate = op.outcome is world.core.purgatory.Outcome.IMMEDIATE
        assert not (op.refused and was_immediate), "refused, and completed on arrival"

    return done


def refused_vs_cancel(world):
    """An operation that finds no place, and is cancelled meanwhile: the answer is the canceller's or the parker's."""
    op = _refused_while(world, "canceller", cancel)

    def done():
        cancelled = (op, "cancel") in world.wins
        assert cancelled != op.refused, f"cancelled {cancelled}, refused {op.refused}"

    return done


def refused_vs_place(world):
    """An operation that finds no place just as one is given back is parked, or was refused and can be parked again."""
    purgatory = world.purgatory(max_parked=1)
    before = parked(world, purgatory, name="before")
    op = operation(world)
    op.refused = False
    world.thread("parker", lambda: _refused(world, purgatory, op))
    world.thread("forcer", lambda: force(world, before))

    def done():
        if op.refused:
            park(world, purgatory, op)
        assert [op] == purgatory.operations()

    return done


def refused_vs_two_forces(world):
    """Two operations, one rejected and one arriving, are forced by other threads, which do not deadlock."""
    purgatory = world.purgatory(max_parked=1)
    parked(world, purgatory, name="before", wants=("b",))
    op, other = operation(world), operation(world, name="other")
    op.refused = other.refused = False

    def both():
        _refused(world, purgatory, op)
        _refused(world, purgatory, other)

    world.thread("parker", both)
    world.thread("forcer-0", lambda: force(world, op))
    world.thread("forcer-1", lambda: force(world, other))
    return completed(op, other)


# -- the end, beside another owner's timer


def shutdown_vs_shared_timer(world):
    """A shutdown beside a timer that goes on comes back when the hooks of what just expired there have run."""
    timer = world.timer()
    purgatory = world.purgatory(timer)
    op = parked(world, purgatory, delay_ms=5, wants=("a", "b"))
    seen = []

    def end():
        purgatory.shutdown()
        seen.append((op.completed, op.expired, purgatory.watched))

    world.thread("time", lambda: world.advance(timer, 6))
    world.thread("shutdown", end)

    def done():
        assert seen == [(1, 1, 0)], f"completed, expired, watched: {seen}"

    return done


def shutdown_vs_check_shared_timer(world):
    """The same, where the operation completes: its answer is out."""
    timer = world.timer()
    purgatory = world.purgatory(timer)
    op = parked(world, purgatory, wants=("a", "b"))
    seen = []

    def end():
        purgatory.shutdown()
        seen.append((op.completed, purgatory.watched))

    world.thread("event", event(world, purgatory, op, "b"))
    world.thread("shutdown", end)

    def done():
        assert seen == [(1, 0)], f"completed, watched: {seen}"

    return done


def shutdown_vs_park_shared_timer(world):
    """A parker, an expiry and a shutdown: the newcomer is refused or answered, and the timer is left with nothing."""
    timer = world.timer()
    purgatory = world.purgatory(timer, max_parked=5)
    before = parked(world, purgatory, name="before", delay_ms=5)
    op = operation(world, wants=("a", "b"))
    refused = []
    world.thread("parker", lambda: park_unless_closed(world, purgatory, op, refused))
    world.thread("time", lambda: world.advance(timer, 6))
    world.thread("shutdown", lambda: purgatory.shutdown())

    def done():
        assert before.completed == before.expired == 1
        assert op.is_completed != bool(refused), "accepted and left open, or refused and completed"
        assert 0 == timer.size, "it is in the timer still"

    return done


# -- watch lists


def forget_vs_watch(world):
    """Keys that are forgotten, as many as may be idle are none, while an operation begins to wait under all of them."""
    purgatory = world.purgatory(purge_interval=0)
    before = parked(world, purgatory, name="before", wants=("a", "b", "c"))
    op = operation(world, wants=("c", "a", "b"))
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("forcer", lambda: force(world, before))
    return completed(before)


def purge_vs_watch(world):
    """A key that is removed while an operation begins to wait under it."""
    purgatory = world.purgatory(purge_interval=100)
    parked(world, purgatory, name="before").force_complete()
    op = operation(world)
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("purger", lambda: purgatory.purge())
    return lambda: None


def purge_vs_purge_vs_watch(world):
    """The same, cleared away by two threads and left by a third at the last moment."""
    purgatory = world.purgatory(purge_interval=0)
    before = parked(world, purgatory, name="before", delay_ms=5)
    op = operation(world)
    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("time", lambda: world.advance(purgatory.timer, 6))
    world.thread("purger", lambda: purgatory.purge())
    return completed(before)


def last_check_vs_watch(world):
    """The last operation under a key is completed while the next begins to wait under it."""
    purgatory = world.purgatory(purge_interval=0)
    first = parked(world, purgatory, name="first", wants=("a", "b"))
    op = operation(world)

    world.thread("parker", lambda: park(world, purgatory, op))
    world.thread("event", event(world, purgatory, first, "a"))
    return completed(first)


# -- the timer


def task(world, delay_ms):
    """A timer task that counts its runs, and says whether one was early."""

    class Task(world.core.timer.TimerTask):
        runs = 0
        early = False
        first_ns = None  # the deadline it had first, if it is added again while it runs

        def run(self):
            self.runs += 1
            self.early = self.early or world.scheduler.now_ns < (self.first_ns or self.deadline_ns)

        def __repr__(self):
            return f"the task of {self.delay_ms} ms"

    return Task(delay_ms)


def pending(world, *delays_ms, wheel_size=2):
    """A timer with tasks of these delays in it, before the threads start."""
    timer = world.timer(wheel_size=wheel_size)
    tasks = [task(world, delay_ms) for delay_ms in delays_ms]
    for one in tasks:
        timer.add(one)
    return timer, *tasks


def once():
    """How often a task runs at least and at most that is neither cancelled nor added again."""
    return 1, 1


def unless_refused(answers, runs, what):
    """A task that runs so often, if the only answer is True."""

    def often():
        assert answers == [True], what
        return runs, runs

    return often


def _fires_once(world, timer, tasks, ms=5_000):
    """Let time pass. Every task must have run as often as is said, none early, nothing be left."""

    def done():
        world.core.timer._testing.check_invariants(timer)
        for _ in range(3):
            world.advance(timer, ms)
        for one, least, most in [(one, *often()) for one, often in tasks]:
            assert not one.early, "a task ran early"
            assert least <= one.runs <= most, f"a task ran {one.runs} times, expected {least} to {most}"
        assert timer.size == 0, f"{timer.size} tasks are left"

    return done


def add_vs_flush(world):
    """A task added to a bucket that comes due at that moment runs once."""
    timer, first = pending(world, 3)
    second = task(world, 3)
    world.thread("adder", lambda: timer.add(second))
    world.thread("driver", lambda: world.advance(timer, 3))
    return _fires_once(world, timer, [(first, once), (second, once)])


def add_vs_add(world):
    """Two tasks added at once, where the bucket has to be made and time moves."""
    timer = world.timer(wheel_size=2)
    first, second = task(world, 3), task(world, 4)
    world.thread("adder-1", lambda: timer.add(first))
    world.thread("adder-2", lambda: timer.add(second))
    world.thread("driver", lambda: world.advance(timer, 1))
    return _fires_once(world, timer, [(first, once), (second, once)])


def flush_vs_cancel(world):
    """A task that is cancelled while its bucket comes due runs, or was cancelled, never both nor neither."""
    timer, first = pending(world, 1)
    answers = []
    world.thread("canceller", lambda: answers.append(first.cancel()))
    world.thread("driver", lambda: world.advance(timer, 1))
    return _fires_once(world, timer, [(first, lambda: (0, 0) if answers[0] else (1, 1))])


def cascade_vs_cancel(world):
    """A task that is cancelled while its bucket is moved to a finer level: the cancel holds."""
    timer, first, second = pending(world, 7, 7)
    answers = []
    world.thread("canceller", lambda: answers.append(first.cancel()))
    world.thread("driver", lambda: world.advance(timer, 4))
    cancelled = unless_refused(answers, 0, "a pending task was not cancelled")
    return _fires_once(world, timer, [(first, cancelled), (second, once)])


def flush_vs_readd(world):
    """A task that is extended again while its bucket comes due runs once more, or once in all. It is never lost."""
    timer, first = pending(world, 1)
    first.first_ns = first.deadline_ns
    world.thread("adder", lambda: timer.add(first))
    world.thread("driver", lambda: world.advance(timer, 1))
    return _fires_once(world, timer, [(first, lambda: (1, 2))])


def cascade_vs_readd(world):
    """A task that is extended again while its bucket is moved to a finer level runs once."""
    timer = world.timer(wheel_size=3)
    first = task(world, 40)  # a bucket of nine ticks, [36, 45), taken out at 27 and put into those of three
    timer.add(first)
    world.advance(timer, 26)
    timer.add(task(world, 100))  # so that the bucket added to last is another
    second = task(world, 13)
    world.thread("driver", lambda: world.advance(timer, 1))

    def again():
        first._task_delay_ms = 14  # 41: the finer bucket that it is just being put into
        timer.add(first)
        timer.add(second)

    world.thread("adder", again)
    return _fires_once(world, timer, [(first, once), (second, once)])


def add_vs_cascade(world):
    """A task added just where the tasks of a coarser bucket are being put runs once, as they do."""
    timer, first, second = pending(world, 6, 7)
    third = task(world, 3)
    world.advance(timer, 3)
    world.thread("driver", lambda: world.advance(timer, 1))
    world.thread("adder", lambda: timer.add(third))  # due at 6 or 7, as the clock stands
    return _fires_once(world, timer, [(one, once) for one in (first, second, third)])


def reschedule_vs_expire(world):
    """A task that is extended while its bucket comes due runs once, by the deadline that counts."""
    timer, first = pending(world, 1)
    before_ns = first.deadline_ns
    answers = []
    world.thread("holder", lambda: answers.append(timer.reschedule(first, 10)))
    world.thread("driver", lambda: world.advance(timer, 1))

    def often():
        assert answers[0] == (first.deadline_ns > before_ns), "the answer and the deadline differ"
        return 1, 1

    return _fires_once(world, timer, [(first, often)])


def reschedule_vs_cancel(world):
    """A pending task that is cancelled while it is extended was cancelled, whichever came first."""
    timer, first = pending(world, 3)
    answers = []
    world.thread("holder", lambda: timer.reschedule(first, 9))
    world.thread("canceller", lambda: answers.append(first.cancel()))
    cancelled = unless_refused(answers, 0, "a pending task was not cancelled")
    return _fires_once(world, timer, [(first, cancelled)])


def reschedule_vs_cascade(world):
    """A task that is extended while its bucket is moved to a finer level runs once, not before its new deadline."""
    timer, first, second = pending(world, 7, 7)
    answers = []
    world.thread("holder", lambda: answers.append(timer.reschedule(first, 12)))
    world.thread("driver", lambda: world.advance(timer, 4))
    reschedule = unless_refused(answers, 1, "a pending task could not be rescheduled")
    return _fires_once(world, timer, [(first, reschedule), (second, once)])


def reschedule_vs_readd(world):
    """A task that one thread extends and another adds again is in the timer once."""
    timer, first = pending(world, 3)
    world.thread("holder", lambda: timer.reschedule(first, 9))
    world.thread("adder", lambda: timer.add(first))
    return _fires_once(world, timer, [(first, once)])


def reschedule_vs_batch(world):
    """A task that is extended while its batch runs is not run out of a coarse bucket that was closed ahead of its
    time.
    """
    timer, first, second = pending(world, 1, 1)
    world.thread("driver", lambda: world.advance(timer, 1))
    world.thread("holder", lambda: timer.reschedule(second, 7))
    world.thread("other driver", lambda: world.advance(timer, 4))
    return _fires_once(world, timer, [(first, once), (second, once)])


def cascade_vs_shutdown(world):
    """A shutdown while a bucket is moved to a finer level: every task is handed back, or has run."""
    timer, *tasks = pending(world, 7, 7, 6)
    back = []
    world.thread("driver", lambda: world.advance(timer, 4))
    world.thread("shutdown", lambda: back.extend(timer.shutdown()))

    def done():
        assert sorted(map(id, tasks)) == sorted(map(id, back)), f"{len(back)} of {len(tasks)} came back"
        assert 0 == timer.size

    return done


def two_drivers(world):
    """Two threads advance one timer: every task runs once."""
    timer, *tasks = pending(world, 1, 2, 7)
    world.thread("driver-1", lambda: world.advance(timer, 4))
    world.thread("driver-2", lambda: world.advance(timer, 4))
    return _fires_once(world, timer, [(one, once) for one in tasks])


def cancel_vs_readd(world):
    """A task that one thread cancels and another extends again is pending and can be cancelled, or is not."""
    timer, first = pending(world, 3)
    answers = []
    world.thread("canceller", lambda: answers.append(first.cancel()))
    world.thread("adder", lambda: timer.add(first))

    def done():
        pending = timer.size
        assert first.is_pending == bool(pending), f"the timer holds {pending}, the task says {first.is_pending}"
        assert first.cancel() == bool(pending)
        assert timer.size == 0

    return done


def empty_vs_add(world):
    """A bucket that is dropped because all in it were cancelled, while another thread adds to it."""
    timer, first = pending(world, 3)
    second = task(world, 3)
    first.cancel()
    world.thread("adder", lambda: timer.add(second))
    world.thread("looker", lambda: timer.advance_clock(0))
    return _fires_once(world, timer, [(second, once)])


def timer_shutdown_vs_add(world):
    """A task added during a shutdown is refused, or handed back."""
    timer, first = pending(world, 3)
    second = task(world, 3)
    back, refused = [], []

    def add():
        try:
            timer.add(second)
        except world.core.timer.TimerClosed:
            refused.append(second)

    world.thread("adder", add)
    world.thread("shutdown", lambda: back.extend(timer.shutdown()))

    def done():
        assert first in back
        assert (second in back) != (second in refused), "a task is nobody's"

    return done


# -- several purgatories


def two_purgatories_one_timer(world):
    """Two purgatories share one driven timer. One is shut down while an operation is parked in the other."""
    timer = world.driven_timer()
    first = world.purgatory(timer, reaper_enabled=True)
    second = world.purgatory(timer, reaper_enabled=True)
    op = operation(world, 5)

    world.thread("shutdown", lambda: first.shutdown())
    world.thread("parker", lambda: park(world, second, op))

    def done():
        assert op.outcome is world.core.purgatory.Outcome.EXPIRED, "the deadline passed, and nobody woke"
        late_ms = (op.done_ns - op.deadline_ns) / 1e6
        assert 0 <= late_ms <= 1.5, f"{late_ms} ms late"

    return done


def threshold_vs_wait(world):
    """A value that rises while a wait for it begins is not missed."""
    watermark = world.core.purgatory.ThresholdPurgatory("w", timer=world.timer(), reaper_enabled=False)
    answers = []
    world.thread("waiter", lambda: answers.append(watermark.wait(3, 1_000)))
    world.thread("event", lambda: watermark.maybe_complete(3))

    def done():
        assert answers[0].done(), "the value was missed"

    return done


# -- gates


def gate(world):
    """The permits of a gate, one of which is taken, and the purgatory that its callers wait in."""
    gates = world.core.gates
    permits = gates._permits.Permits(1, gates._orders.ArrivalQueue())
    assert permits.take()
    return permits, world.purgatory()


def caller(world, permits, purgatory, *, name, delay_ms=1_000):
    """The operation of a caller that will wait at a gate. It keeps count of its hooks."""

    cancelled = world.core.purgatory._core.outcome.CANCELLED

    class Wait(world.core.gates._waits.ThreadAtGate):
        def __init__(self):
            super().__init__(delay_ms)
            self.permits, self.share, self.since_ns = permits, None, 0
            self.wants = ("gate",)
            self.completed = self.expired = 0
            self.overlapped = self.parked_ok = False
            self.purgatory = self.timer = None

        def on_complete(self):
            self.completed += self._op_state != cancelled  # no call, in which a thread may be struck
            super().on_complete()

        def on_expiration(self):
            self.expired += 1
            super().on_expiration()

        def __repr__(self):
            return name

    made = Wait()
    world.operations.append(made)
    made.wake = world.core.purgatory._core.blocking.taken_lock()
    world.sleeps.append(made.wake)
    made.enter = lambda: (park(world, purgatory, made), permits.join(made))
    return made


def waiting(world, permits, purgatory, *names, **kw):
    """Callers that wait at a gate before the threads start."""
    callers = [caller(world, permits, purgatory, name=name, **kw) for name in names]
    for each in callers:
        each.enter()
    return callers


def one_owner(permits, *callers):
    """What must hold at the end: one permit is in use, by the only caller that was granted one."""

    def done():
        owners = [each for each in callers if each.outcome and not getattr(each, "gave_up", False)]
        assert len(owners) == 1, f"{owners} have the one permit"
        total, in_use, _ = permits.read()
        assert (total, in_use) == (1, 1), f"{in_use} of {total} permits are in use"

    return done


def give_up(permits, who):
    """What a caller does that is cancelled or interrupted while it waits."""

    def cancelled():
        who.gave_up = True
        permits.give_up(who)

    return cancelled


def grant_vs_cancel(world):
    """A permit that is granted to a caller that gives up in the same moment goes to the next."""
    permits, purgatory = gate(world)
    first, second = waiting(world, permits, purgatory, "first", "second")

    world.thread("releaser", lambda: permits.release(0))
    world.thread("caller", give_up(permits, first))
    return one_owner(permits, first, second)


def grant_vs_expire(world):
    """A permit that is granted at a caller's deadline is that caller's, or goes to the next."""
    permits, purgatory = gate(world)
    (first,) = waiting(world, permits, purgatory, "first", delay_ms=2)
    (second,) = waiting(world, permits, purgatory, "second")

    world.thread("releaser", lambda: permits.release(0))
    world.thread("time", lambda: world.advance(purgatory.timer, 3))
    return one_owner(permits, first, second)


def join_vs_release(world):
    """A permit that is released while a caller comes to wait is not missed."""
    permits, purgatory = gate(world)
    late = caller(world, permits, purgatory, name="late")

    world.thread("caller", late.enter)
    world.thread("releaser", lambda: permits.release(0))
    return one_owner(permits, late)


def join_vs_cancel_vs_release(world):
    """A caller whose operation is cancelled while it comes to wait does not keep a permit."""
    permits, purgatory = gate(world)
    late = caller(world, permits, purgatory, name="late")

    def enter():
        try:
            late.enter()
        finally:
            late.gave_up = True
            permits.give_up(late)

    world.thread("caller", enter)
    world.thread("canceller", lambda: purgatory.cancel_for_key("gate"))
    world.thread("releaser", lambda: permits.release(0))

    def done():
        total, in_use, _ = permits.read()
        assert (total, in_use) == (1, 0), f"{in_use} of {total} permits are in use"

    return done


def resize_vs_release(world):
    """One permit more and one that is released admit two callers."""
    permits, purgatory = gate(world)
    first, second = waiting(world, permits, purgatory, "first", "second")

    world.thread("resizer", lambda: permits.resize(2))
    world.thread("releaser", lambda: permits.release(0))

    def done():
        total, in_use, _ = permits.read()
        assert (total, in_use) == (2, 2), f"{in_use} of {total} permits are in use"
        completed(first, second)()

    return done


SCENARIOS = {
    function.__name__: function
    for function in (
        park_vs_check,
        park_vs_two_checks,
        park_vs_expire,
        park_due_vs_check,
        park_vs_force,
        park_unready_vs_force,
        park_observed_vs_force,
        park_vs_cancel,
        park_twice_vs_check,
        park_vs_shutdown,
        check_vs_check,
        check_vs_force,
        check_vs_expire,
        check_vs_user_lock,
        expire_vs_user_lock,
        complete_vs_cancel,
        cancel_for_key_vs_check,
        extend_vs_expire,
        extend_vs_satisfy,
        extend_vs_park,
        extend_vs_cancel,
        limited_check_vs_check,
        limited_vs_limited,
        refused_vs_force,
        refused_vs_cancel,
        refused_vs_place,
        refused_vs_two_forces,
        shutdown_vs_shared_timer,
        shutdown_vs_check_shared_timer,
        shutdown_vs_park_shared_timer,
        forget_vs_watch,
        purge_vs_watch,
        purge_vs_purge_vs_watch,
        last_check_vs_watch,
        add_vs_flush,
        add_vs_add,
        flush_vs_cancel,
        cascade_vs_cancel,
        flush_vs_readd,
        cascade_vs_readd,
        add_vs_cascade,
        reschedule_vs_expire,
        reschedule_vs_cancel,
        reschedule_vs_cascade,
        reschedule_vs_readd,
        reschedule_vs_batch,
        cascade_vs_shutdown,
        two_drivers,
        cancel_vs_readd,
        empty_vs_add,
        timer_shutdown_vs_add,
        two_purgatories_one_timer,
        threshold_vs_wait,
        grant_vs_cancel,
        grant_vs_expire,
        join_vs_release,
        join_vs_cancel_vs_release,
        resize_vs_release,
    )
}
