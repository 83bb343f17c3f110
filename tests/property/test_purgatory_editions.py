"""The purgatory's two implementations, held to each other: random calls to both, and the same answers from both.

A seed decides the random calls. Each implementation runs in a process of its own, and records all that it returns,
reports and raises. The records are compared. Operations call back into the purgatory from their hooks, raise, extend
themselves and are parked again, so that the steps meet in every order that one thread can bring about. Threads are left
to tests/concurrency.
"""

import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path

import pytest

import purgatory
from purgatory import (
    DelayedFuture,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidOperation,
    Observer,
    ThresholdPurgatory,
)
from purgatory.journal import Journal, read
from timer import MockTimer

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 40
#: Seeds beyond these for which the two have differed.
DIFFERED = (72, 204, 272, 417)
STEPS = 250


class Plan:
    """What happens to one purgatory, and what was seen of it."""

    last = None

    def __init__(self, seed):
        Plan.last = self
        self.random = random.Random(seed)
        self.lines = []
        self.depth = 0
        self.is_over = False
        self.operations = []
        self.timer = MockTimer()
        self.futures = [Future() for _ in range(4)]
        self.waits = []
        self.watermark = ThresholdPurgatory("watermark", timer=self.timer, reaper_enabled=False)
        self.keys = [self.random.choice([str, int, Key, lambda n: ("topic", n)])(n) for n in range(9)]
        self.purgatory = DelayedOperationPurgatory(
            "plan",
            timer=self.timer,
            timer_enabled=True,
            reaper_enabled=False,
            shards=self.random.choice([1, 3, 512]),
            purge_interval=self.random.choice([0, 2, 1000]),
            max_parked=self.random.choice([None, None, 15]),
            observers=[Told(self)] if self.random.random() < 0.7 else (),
        )
        self.folder = tempfile.TemporaryDirectory()
        # Either everything is written at the end, or there is no room for all of it: no thread's turn decides.
        self.journal = Journal(
            self.folder.name, parquet=False, interval_ms=3_600_000, capacity=10 if seed % 3 else 9_999
        )
        named = (lambda operation: f"operation {operation.number}") if seed % 2 else None
        self.purgatory.attach(self.journal.observer("plan", now_ns=self.timer.clock, epoch_ns=0, identify=named))

    def say(self, *words):
        self.lines.append(" ".join(map(str, words)))

    def choice(self):
        """An operation: an old one, or a new one."""
        if self.operations and self.random.random() < 0.6:
            return self.random.choice(self.operations[-30:])
        lock = self.random.choice([None, None, None, Lock(), Failing(self)])
        kind = self.random.choice([Op, Op, Op, Deaf, Own, Sloppy, Ready, OwnReady])
        operation = kind(self, len(self.operations), self.random.choice([-5, 0, 1, 20, 300, 10**20]), lock)
        self.operations.append(operation)
        return operation

    def step(self):
        """One call at random, and what comes of it."""
        roll = self.random.random
        name, call = self.random.choice(
            [
                ("park", self.park),
                ("park", self.park),
                ("park", self.park),
                ("check", lambda: self.purgatory.check_and_complete(self.random.choice(self.keys))),
                ("check", lambda: self.purgatory.check_and_complete(key=self.random.choice(self.keys))),
                (
                    "some",
                    lambda: self.purgatory.check_and_complete(
                        self.random.choice(self.keys), self.random.choice([1, 3, 0])
                    ),
                ),
                (
                    "many",
                    lambda: self.purgatory.check_and_complete_all(
                        self.random.choices(self.keys, k=4), self.random.choice([None, None, 2])
                    ),
                ),
                ("force", lambda: self.choice().force_complete()),
                ("maybe", lambda: bool(self.choice().maybe_try_complete())),
                ("cancel", lambda: self.choice().cancel()),
                ("extend", lambda: self.choice().extend(self.random.choice([0, 7, 500, 10**21, "x", -1, 2.0]))),
                ("run", lambda: roll() < 0.2 and self.choice().run()),
                (
                    "cancel for",
                    lambda: roll() < 0.2 and self.cancel_for(),
                ),
                ("purge", self.purgatory.purge),
                ("advance", lambda: self.depth == 0 and self.timer.advance_clock(self.random.choice([0, 1, 30, 400]))),
                ("fulfil", self.fulfil),
                ("wait", lambda: self.waits.append(self.watermark.wait(self.random.choice([1, 5, 9]), 50))),
                ("rise", lambda: self.watermark.maybe_complete(self.random.choice([0, 2, 6, 6, 30]))),
                ("let go", lambda: bool(self.waits) and self.random.choice(self.waits).cancel()),
                ("wrong", lambda: self.purgatory.check_and_complete([])),
                ("wrong", lambda: self.purgatory.try_complete_else_watch(self.choice(), "text")),
                ("wrong", lambda: self.purgatory.try_complete_else_watch(self.choice(), [])),
                ("wrong", lambda: self.purgatory.try_complete_else_watch(self.choice(), [1, []])),
                ("wrong", lambda: self.purgatory.try_complete_else_watch(object(), [1])),
                ("wrong", lambda: self.purgatory.try_complete_else_watch(Forgetful(), [1])),
                ("wrong", lambda: self.purgatory.try_complete_else_watch([])),
            ]
        )
        self.depth += 1
        try:
            self.say(self.depth, name, call())
        except Exception as error:
            message = "" if type(error) in {TypeError, AttributeError, InvalidOperation} else str(error)
            self.say(self.depth, name, "raised", type(error).__name__, message)
        except KeyboardInterrupt:
            self.say(self.depth, name, "interrupted")
        finally:
            self.depth -= 1

    def fail(self, where):
        """Raise something, now and then: it is no hook that fails."""
        if self.is_over:
            return
        roll = self.random.random()
        if roll < 0.01:
            raise KeyboardInterrupt(where)
        if roll < 0.03:
            raise OSError(where)

    def cancel_for(self):
        return [operation.number for operation in self.purgatory.cancel_for_key(self.keys[0])]

    def fulfil(self):
        """One future is done, one that is done is replaced: operations to come wait for that."""
        place = self.random.randrange(len(self.futures))
        if self.futures[place].done():
            self.futures[place] = self.random.choice([Future, Asked])()
        elif self.random.random() < 0.3:
            self.futures[place].cancel()
        else:
            self.futures[place].set_result(place)

    def park(self):
        keys = self.random.choices(self.keys, k=self.random.choice([1, 1, 1, 2, 3, 5]))
        operation = self.choice()
        self.say("parks", operation.number, len(keys))
        return bool(self.purgatory.try_complete_else_watch(operation, self.random.choice([list, tuple])(keys)))

    def look(self):
        """All that can be seen from outside."""
        for operation in self.operations[-40:]:
            self.say(
                operation.number, operation.outcome, operation.is_completed, operation.checks, operation.drained,
                len(operation.keys), operation.is_pending, operation.delay_ms, operation.deadline_ns > 0,
            )  # fmt: skip
        self.say(*[(future.done(), future.cancelled()) for future in [*self.futures, *self.waits[-5:]]])
        self.say(self.watermark.value, self.watermark.num_waiting, self.watermark.snapshot().totals)
        snapshot = self.purgatory.snapshot()
        self.say(snapshot.parked, snapshot.watched, snapshot.keys, snapshot.idle_keys, snapshot.forgotten_keys)
        self.say(snapshot.totals, snapshot.callback_errors, snapshot.rejected, self.timer.size)

    def play(self):
        """The whole of it, as text."""
        for turn in range(STEPS):
            self.step()
            if turn % 20 == 0:
                self.look()
        try:
            self.say(len(self.purgatory.shutdown(drain=self.random.choice(["expire", "cancel"])).cancelled))
        except (KeyboardInterrupt, OSError):
            self.say("interrupted")
        self.step()
        self.look()
        self.is_over = True
        self.watermark.shutdown()
        self.timer.shutdown()
        self.say(self.journal.close().dropped, "rows had no room")
        for row in read(self.folder.name) if self.journal.stats().written else ():
            self.say(row)
        self.folder.cleanup()
        return "\n".join(self.lines)


class Op(DelayedOperation):
    """Does anything in its hooks, as the seed says."""

    __slots__ = ("__dict__", "number", "plan")

    def __init__(self, plan, number, delay_ms, lock):
        super().__init__(delay_ms, lock=lock)
        self.plan = plan
        self.number = number

    def __repr__(self):
        return f"<{self.number}>"

    def act(self, where):
        self.plan.say(self.number, where)
        if self.plan.is_over:
            return
        roll = self.plan.random.random()
        if roll < 0.15 and self.plan.depth < 4:
            self.plan.step()
        elif roll < 0.2:
            raise OSError(where)
        elif roll < 0.21 and where != "is tried":
            raise KeyboardInterrupt

    def try_complete(self):
        self.act("is tried")
        return self.plan.random.random() < 0.3 and self.force_complete()

    def on_complete(self):
        self.act("completes")

    def on_expiration(self):
        self.act("expires")


class Deaf(Op):
    """Says that it has completed, and has not."""

    def try_complete(self):
        return self.plan.random.choice([True, 1, 0, None, "yes"])


class Own(Op):
    """Has its own words for what the library calls."""

    def maybe_try_complete(self):
        self.plan.say(self.number, "own check")
        return super().maybe_try_complete()

    def cancel(self):
        self.plan.say(self.number, "own cancel")
        return super().cancel()


class Sloppy(Op):
    """Whose answer has no truth."""

    def try_complete(self):
        class Answer:
            def __bool__(self):
                raise ValueError

        return Answer()


class Asked(Future):
    """A future that Python is asked of."""

    def done(self):
        return super().done()


class Ready(DelayedFuture):
    """Waits for futures."""

    __slots__ = ("number", "plan")

    def __init__(self, plan, number, delay_ms, lock):
        del lock
        super().__init__(delay_ms, plan.random.sample(plan.futures, plan.random.choice([0, 1, 1, 2, 4])), self.answer)
        self.plan = plan
        self.number = number

    def __repr__(self):
        return f"<{self.number}>"

    def answer(self, futures):
        Op.act(self, f"answers {len(futures)}")


class OwnReady(Ready):
    """Has hooks of its own."""

    def try_complete(self):
        Op.act(self, "is tried")
        return super().try_complete()

    def on_expiration(self):
        Op.act(self, "expires")


class Forgetful(DelayedOperation):
    """Forgets its base class."""

    def __init__(self):
        pass

    def try_complete(self):
        return False


class Key:
    """A key whose hash is Python's to find."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number % 3

    def __eq__(self, other):
        return type(other) is Key and other.number == self.number

    def __repr__(self):
        return f"Key({self.number})"


class Lock:
    """A lock of the user's, re-entrant, for one thread."""

    def __init__(self):
        self.depth = 0

    def acquire(self, blocking=True, timeout=-1):
        self.depth += 1
        return True

    def release(self):
        self.depth -= 1


class Failing(Lock):
    """A lock whose ``acquire`` fails now and then.

    An ``acquire`` of a lock that is held does not. While an operation is checked, the native implementation tries the
    lock, and the pure one does not.
    """

    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def acquire(self, blocking=True, timeout=-1):
        if self.depth == 0:
            self.plan.fail("acquires")
        return super().acquire(blocking, timeout)


class Told(Observer):
    """Records its notifications, and fails now and then."""

    def __init__(self, plan):
        self.plan = plan

    def parked(self, operation):
        self.plan.say("told: parked", operation.number)
        self.plan.fail("is told")

    def leaving(self, operation):
        self.plan.say("told: leaving", operation.number, operation.outcome)
        self.plan.fail("is told")

    def finished(self, operation, outcome, error):
        self.plan.say("told: finished", operation.number, outcome, type(error).__name__)
        self.plan.fail("is told")


def written(edition, first, number):
    """An implementation's record, made in a process of its own, where strings hash as in the other's."""
    done = subprocess.run(  # noqa: S603  # this very file
        [sys.executable, "-m", "tests.property.test_purgatory_editions", str(first), str(number)],
        cwd=ROOT,
        env={**os.environ, "PURGATORY_PURE": "1" if edition == "pure" else "0", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    first_line, _, rest = done.stdout.partition("\n")
    assert edition == first_line
    return rest.split("\f\n")


@pytest.mark.native
@pytest.mark.parametrize(("first", "number"), [(0, SEEDS), *((seed, 1) for seed in DIFFERED)])
def test_editions_agree(first, number):
    """Whatever is called, in whatever order, both editions answer, tell and count the same."""
    expected, found = written("pure", first, number), written("native", first, number)
    assert number == len(expected) == len(found)
    for seed in range(number):
        assert expected[seed].splitlines() == found[seed].splitlines(), first + seed


if __name__ == "__main__":
    import structlog

    from purgatory._threads.retrier import Retrier

    def hand_over(retrier, what):
        """Write down what the retrier gets. It has a thread, whose steps no seed decides."""
        plan = Plan.last
        plan.say("handed over", what.number if what in plan.operations else (what.keys, what._limit))

    Retrier.retry = hand_over
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    start, many = map(int, sys.argv[1:])
    sys.stdout.write(("native" if purgatory.COMPILED else "pure") + "\n")
    sys.stdout.write("\f\n".join(Plan(seed).play() for seed in range(start, start + many)))
