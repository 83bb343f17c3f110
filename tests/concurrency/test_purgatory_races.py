"""Real threads in one purgatory: every operation completed exactly once, none lost, none early."""

import random
import threading
import time
from collections import Counter

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
)
from tests.support import PATIENCE_S, eventually, run_threads

PATIENCE_MS = int(PATIENCE_S * 1000)
LOCKS = {"own": lambda: None, "shared": threading.Lock, "re-entrant": threading.RLock}


class Racing(DelayedOperation):
    """Counts what happens to it, and notices what must not."""

    def __init__(self, delay_ms=60_000, lock=None, purgatory=None):
        super().__init__(delay_ms, lock=lock)
        self.purgatory = purgatory  # a shutdown of which may expire it before its time
        self.ready = False
        self.completed = 0
        self.expired = 0
        self.wrong = []
        self.inside = 0

    def try_complete(self):
        self.inside += 1
        if self.inside != 1:
            self.wrong.append("two checks at once")
        try:
            return self.ready and self.force_complete()
        finally:
            self.inside -= 1

    def on_complete(self):
        self.completed += 1
        if self.outcome is Outcome.EXPIRED:
            if self.inside:
                self.wrong.append("expired beside a check")
            closing = self.purgatory is not None and self.purgatory.is_closed
            if time.monotonic_ns() < self.deadline_ns and not closing:
                self.wrong.append("expired early")

    def on_expiration(self):
        self.expired += 1
        if self.completed != 1:
            self.wrong.append("expired before it completed")

    def verdict(self):
        """The counts, or the errors found."""
        expected = {
            None: (0, 0),
            Outcome.CANCELLED: (0, 0),
            Outcome.EXPIRED: (1, 1),
        }.get(self.outcome, (1, 0))
        if self.wrong or expected != (self.completed, self.expired):
            return (self.outcome, self.completed, self.expired, self.wrong)
        return None


class Tally:
    """An observer that counts."""

    def __init__(self):
        self.outcomes = Counter()
        self.lock = threading.Lock()

    def parked(self, operation):
        pass

    def finished(self, operation, outcome, error):
        with self.lock:
            self.outcomes[operation] += 1


@pytest.mark.parametrize("locks", LOCKS)
def test_everything_at_once(locks):
    """Park, check, expire, cancel, force, purge and look in, from all sides: each operation has one end."""
    tally = Tally()
    purgatory = DelayedOperationPurgatory("storm", shards=4, purge_interval=20, observers=[tally])
    lock = LOCKS[locks]()
    made = [[] for _ in range(3)]
    done = threading.Event()

    def park(number):
        random_ = random.Random(number)
        for _ in range(1_000):
            operation = Racing(random_.choice([0, 1, 3, 8, 60_000]), lock, purgatory)
            made[number].append(operation)
            purgatory.try_complete_else_watch(operation, random_.sample(range(8), random_.randrange(1, 4)))

    def satisfy():
        random_ = random.Random(10)
        while not done.is_set():
            for own in made:
                for operation in own[-20:]:
                    operation.ready = random_.random() < 0.3 or operation.ready
            purgatory.check_and_complete(random_.randrange(8))

    def disturb():
        random_ = random.Random(20)
        while not done.is_set():
            own = random_.choice(made)
            if own:
                random_.choice([DelayedOperation.cancel, DelayedOperation.force_complete])(random_.choice(own[-20:]))
            if random_.random() < 0.1:
                purgatory.cancel_for_key(random_.randrange(8))
                purgatory.purge()
                purgatory.snapshot()
            if lock is not None and random_.random() < 0.3:
                with lock:
                    pass
            time.sleep(0.0001)

    helpers = [threading.Thread(target=target, daemon=True) for target in (satisfy, disturb)]
    for helper in helpers:
        helper.start()
    run_threads(*[lambda number=number: park(number) for number in range(3)])
    done.set()
    for helper in helpers:
        helper.join(PATIENCE_S)
    timer = purgatory.timer
    report = purgatory.shutdown(timeout_ms=PATIENCE_MS)
    operations = [operation for own in made for operation in own]

    assert [] == [verdict for operation in operations if (verdict := operation.verdict())]
    assert all(operation.outcome is not None for operation in operations)
    assert () == report.stuck
    # One that was forced or cancelled before it was parked is not reported.
    came_in = [operation for operation in operations if operation.checks]
    assert [] == [operation.outcome for operation in came_in if tally.outcomes[operation] != 1]
    assert (0, 0, 0) == (purgatory.watched, purgatory.parked, timer.size)
    totals = purgatory.totals()
    counted = Counter(operation.outcome for operation in came_in)
    assert [counted[outcome] for outcome in Outcome] == [getattr(totals, outcome.value) for outcome in Outcome]
    assert len(came_in) == totals.started


@pytest.mark.parametrize("locks", LOCKS)
@pytest.mark.guarantee("no check is lost")
def test_no_check_is_lost(locks):
    """An event followed by a check completes the operation without its timeout, whatever others hold meanwhile."""
    with DelayedOperationPurgatory("events", shards=2, purge_interval=10) as purgatory:
        arrivals = [[] for _ in range(3)]
        done = threading.Event()
        lock = LOCKS[locks]()

        def park(number):
            for index in range(600):
                operation = Racing(lock=lock)
                arrivals[number].append((operation, (number, index % 3)))
                purgatory.try_complete_else_watch(operation, [(number, index % 3), "common"])

        def satisfy(number):
            index = 0
            while index < 600:
                if index < len(arrivals[number]):
                    operation, key = arrivals[number][index]
                    operation.ready = True
                    purgatory.check_and_complete(key)
                    index += 1

        def hold():
            while not done.is_set():
                purgatory.check_and_complete("common")
                if lock is not None:
                    with lock:
                        time.sleep(0.0001)
                time.sleep(0.0005)

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        run_threads(
            *[lambda number=number: park(number) for number in range(3)],
            *[lambda number=number: satisfy(number) for number in range(3)],
        )
        done.set()
        holder.join(PATIENCE_S)
        operations = [operation for own in arrivals for operation, _ in own]

        # An operation is completed before its hook has run, which may be on the retrier's thread.
        assert eventually(lambda: all(operation.completed for operation in operations))
        assert [] == [verdict for operation in operations if (verdict := operation.verdict())]


@pytest.mark.parametrize("locks", LOCKS)
def test_last_of_many_attempts_completes(locks):
    """Threads that each make one of the changes an operation waits for, and check: the last is not missed."""

    class Counting(Racing):
        count = 0

        def try_complete(self):
            count = self.count
            for _ in range(20):
                pass  # the moment in which others change what was read
            return count >= 4 and self.force_complete()

    with DelayedOperationPurgatory("attempts", timer_enabled=False) as purgatory:
        operations = [Counting(lock=LOCKS[locks]()) for _ in range(500)]
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number])
        guard = threading.Lock()

        def attempt():
            for number, operation in enumerate(operations):
                with guard:
                    operation.count += 1
                purgatory.check_and_complete(number)

        run_threads(*[attempt] * 4)

        # With a lock of its own it waits for no other thread.
        patience_s = 0 if locks == "own" else PATIENCE_S
        assert eventually(lambda: all(operation.completed for operation in operations), patience_s)
        assert {1} == {operation.completed for operation in operations}


@pytest.mark.guarantee("exactly once")
def test_one_winner():
    """Of all threads that complete, expire or cancel one operation at the same moment, exactly one succeeds."""
    with DelayedOperationPurgatory("winners", timer_enabled=False) as purgatory:
        for round_ in range(120):
            operation = Racing(0)
            purgatory.try_complete_else_watch(operation, ["k", round_])
            operation.ready = True
            wins = run_threads(
                operation.force_complete,
                operation.cancel,
                lambda operation=operation: [operation.run(), operation.outcome is Outcome.EXPIRED][1],
                lambda: purgatory.check_and_complete("k") == 1,
                operation.maybe_try_complete,
            )

            assert operation.verdict() is None
            # A check that finds the time up expires the operation and claims nothing. run() may have returned before.
            assert sum(wins) == 1 or (sum(wins) == 0 and operation.outcome is Outcome.EXPIRED)
        assert 0 == purgatory.parked


def test_expiry_against_checks():
    """Expiry and check of one operation exclude one another: it is expired once or satisfied once, never early."""
    with DelayedOperationPurgatory("deadline") as purgatory:
        for round_ in range(15):
            operations = [Racing(2) for _ in range(40)]
            for operation in operations:
                purgatory.try_complete_else_watch(operation, ["k", round_])

            def check(operations=operations, round_=round_):
                time.sleep(0.0018)
                for operation in operations:
                    operation.ready = True
                    purgatory.check_and_complete(round_)

            run_threads(check, check)
            assert eventually(
                lambda operations=operations: all(
                    operation.completed and not operation.verdict() for operation in operations
                )
            ), [operation.verdict() for operation in operations if operation.verdict()]


def test_parking_against_checks():
    """An operation whose event comes while it is being parked completes: by the park, or by the check."""
    with DelayedOperationPurgatory("park", timer_enabled=False, shards=1, purge_interval=0) as purgatory:
        for _ in range(300):
            operation = Racing()

            def event(operation=operation):
                operation.ready = True
                return purgatory.check_and_complete("k")

            inline, checked = run_threads(
                lambda operation=operation: purgatory.try_complete_else_watch(operation, ["k", "j"]), event
            )

            assert operation.is_completed
            assert operation.verdict() is None
            assert not (inline and checked)
        purgatory.purge()
        assert eventually(lambda: purgatory.watched == 0)  # the retrier may be at the last of it


def test_coming_and_going_under_one_key():
    """A key that is emptied, removed and used again all the time loses no operation."""
    with DelayedOperationPurgatory("key", timer_enabled=False, shards=1, purge_interval=0) as purgatory:

        def come_and_go():
            lost = []
            for _ in range(600):
                operation = Racing()
                purgatory.try_complete_else_watch(operation, ["k"])
                operation.ready = True
                purgatory.check_and_complete("k")
                if not operation.is_completed:
                    lost.append(operation)  # another thread is at it, and will look again
            return lost

        lost = sum(run_threads(*[come_and_go] * 3), [])

        assert eventually(lambda: all(operation.is_completed for operation in lost))
        purgatory.purge()
        assert eventually(lambda: (purgatory.watched, purgatory.snapshot().keys) == (0, 0))


@pytest.mark.parametrize(
    ("drain", "timeout_ms"), [("expire", PATIENCE_MS), ("cancel", PATIENCE_MS), ("wait", 500), ("wait", 0)]
)
def test_shutdown_against_everything(drain, timeout_ms):
    """An operation that comes while the purgatory is shut down is settled with the others, or rejected.

    With no patience at all a shutdown leaves some to the threads that hold their locks, and reports them. They are
    settled by these. A call during another has that one's report, unless it waited for it as long as it may.
    """
    longest_s = timeout_ms / 500 + 1
    for begin_ms in range(10 if timeout_ms != 500 else 3):  # the last that is parked waits for all of them
        purgatory = DelayedOperationPurgatory("closing", shards=4)
        made = [[] for _ in range(3)]
        refused = []

        def park(number, purgatory=purgatory, made=made, refused=refused):
            random_ = random.Random(number)
            for _ in range(120):
                operation = Racing(random_.choice([1, 60_000]), purgatory=purgatory)
                try:
                    purgatory.try_complete_else_watch(operation, [random_.randrange(5), number])
                except PurgatoryClosed:
                    refused.append(operation)
                else:
                    made[number].append(operation)
                purgatory.check_and_complete(random_.randrange(5))

        def shut(purgatory=purgatory, begin_ms=begin_ms):
            time.sleep(begin_ms / 1000)
            began = time.monotonic()
            return purgatory.shutdown(drain, timeout_ms=timeout_ms), time.monotonic() - began

        *_, (report, took_s), (second, second_took_s) = run_threads(
            *[lambda number=number, park=park: park(number) for number in range(3)], shut, shut
        )
        operations = [operation for own in made for operation in own]

        assert report is second or max(took_s, second_took_s) >= longest_s
        assert timeout_ms == 0 or report.stuck == ()
        assert all(operation.outcome is not None for operation in operations)  # every thread has ended: none has a turn
        assert [] == [verdict for operation in (*operations, *refused) if (verdict := operation.verdict())]
        assert {operation.outcome for operation in refused} <= {None, Outcome.CANCELLED}
        assert (0, 0) == (purgatory.parked, purgatory.timer.size)


def test_room_is_given_back_exactly():
    """After all races a purgatory that was full takes exactly as many as before."""
    with DelayedOperationPurgatory("room", max_parked=20, timer_enabled=False) as purgatory:

        def use(seed):
            random_ = random.Random(seed)
            for _ in range(600):
                operation = Racing()
                try:
                    purgatory.try_complete_else_watch(operation, [seed, "k"])
                except PurgatoryFull:
                    purgatory.cancel_for_key("k")
                    continue
                operation.ready = True
                random_.choice(
                    [operation.cancel, operation.force_complete, lambda: purgatory.check_and_complete("k")]
                )()

        run_threads(*[lambda seed=seed: use(seed) for seed in range(4)])
        purgatory.cancel_for_key("k")
        for _ in range(20):
            purgatory.try_complete_else_watch(Racing(), ["k"])

        assert 20 == purgatory.parked
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(Racing(), ["k"])
        purgatory.cancel_for_key("k")


def test_purge_against_newcomers():
    """A purge never drops an operation that waits."""
    with DelayedOperationPurgatory("purge", timer_enabled=False, shards=1, purge_interval=5) as purgatory:
        waiting = []

        def come(number):
            for index in range(200):
                operation = Racing()
                purgatory.try_complete_else_watch(operation, ["k", index % 3])
                if index % 4 == 0:
                    waiting.append(operation)
                else:
                    operation.force_complete()

        run_threads(
            *[lambda number=number: come(number) for number in range(2)],
            lambda: [purgatory.purge() for _ in range(300)],
        )
        purgatory.purge()

        assert eventually(lambda: purgatory.watched == 2 * len(waiting))
        assert set(waiting) == set(purgatory.operations_for_key("k"))


@pytest.mark.parametrize("place", [{}, {"key": "a"}])
def test_rising_number_loses_no_waiter(place):
    """A wait for a number that is reached is answered, though waiting and rising race."""
    with ThresholdPurgatory("watermark", reaper_enabled=False) as watermark:

        def wait(seed):
            random_ = random.Random(seed)
            return [watermark.wait(random_.randrange(1, 300), 60_000, **place) for _ in range(150)]

        def rise():
            for value in range(1, 301):
                watermark.maybe_complete(value, **place)

        *waits, _ = run_threads(*[lambda seed=seed: wait(seed) for seed in range(3)], rise)

        assert [] == [future for futures in waits for future in futures if not future.done()]
        assert 0 == watermark.num_waiting
