"""A seeded run of a purgatory beside its model, compared after every step."""

from __future__ import annotations

import random

import attrs

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome, PurgatoryFull
from tests.simulation.model import Model, Waiter
from timer import MockTimer
from timer._testing import check_invariants


class Broken(Exception):
    """What hooks raise here."""


class Simulated(DelayedOperation):
    """An operation that does what its waiter says, and notes when its hooks ran."""

    def __init__(self, waiter, world, lock):
        super().__init__(waiter.delay_ms, lock=lock)
        self.waiter = waiter
        self.world = world
        self.completed_ms = []
        self.expired_ms = []

    def try_complete(self):
        if self.waiter.broken:
            raise Broken("try_complete")
        seen = sum(self.world.events.get(key, 0) - self.waiter.seen_before.get(key, 0) for key in self.waiter.keys)
        return seen >= self.waiter.need and self.force_complete()

    def on_complete(self):
        self.completed_ms.append(self.world.now_ms())
        key = self.waiter.sets_off
        if key is not None and self.outcome is not Outcome.EXPIRED:
            self.world.events[key] = self.world.events.get(key, 0) + 1
            self.world.purgatory.check_and_complete(key)
        if self.waiter.raises:
            raise Broken("on_complete")

    def on_expiration(self):
        assert self.completed_ms, "expired before it was completed"
        self.expired_ms.append(self.world.now_ms())
        if self.waiter.raises:
            raise Broken("on_expiration")


@attrs.frozen
class Figures:
    """The counts of a run."""

    seed: int
    steps: int
    operations: int
    completed: int
    checks: int
    comparisons: int


class World:
    """A purgatory on a manual clock, and its model.

    Args:
        seed: draws everything.
    """

    def __init__(self, seed):
        self.seed = seed
        self.draw = random.Random(seed)
        capacity = self.draw.choice((20, 200, 2_000))
        self.keys = [f"key-{number}" for number in range(self.draw.choice((3, 30, 300)))]
        self.timer = MockTimer(tick_ms=self.draw.choice((1, 1, 10)), wheel_size=self.draw.choice((2, 5, 20)))
        self.purgatory = DelayedOperationPurgatory(
            f"simulation-{seed}",
            timer=self.timer,
            reaper_enabled=False,
            shards=self.draw.choice((1, 7, 64)),
            purge_interval=self.draw.choice((0, 10, 1_000)),
            max_parked=capacity,
        )
        self.model = Model(capacity)
        self.events = {}
        self.live = {}
        self.operations = self.completed = self.checks = self.comparisons = self.number = 0

    def now_ms(self):
        return self.timer.now_ns() // 1_000_000

    def run(self, steps):
        """Take random steps, and compare after each. The structure and the snapshot every now and then."""
        actions = (self.park, self.park, self.park, self.event, self.event, self.silent, self.look)
        actions += (self.advance, self.advance, self.force, self.cancel, self.cancel_key, self.mend, self.purge)
        for step in range(steps):
            action = self.draw.choice(actions)
            action()
            try:
                self.compare()
                if step % 25 == 0:
                    self.compare_all()
            except AssertionError as error:
                raise AssertionError(f"seed {self.seed}, step {step} ({action.__name__}): {error}") from error
        self.end()
        return Figures(self.seed, steps, self.operations, self.completed, self.checks, self.comparisons)

    # -- steps

    def park(self):
        draw = self.draw
        self.number += 1
        keys = tuple(draw.sample(self.keys, min(len(self.keys), draw.choice((1, 1, 2, 3, 8)))))
        slow = self.timer.tick_ms  # the deadline of a coarse timer is rounded up: keep to its ticks
        waiter = Waiter(
            number=self.number,
            keys=keys,
            need=draw.choice((0, 1, 1, 2, 5)),
            delay_ms=slow * draw.choice((1, 2, 7, 40, 500, 86_400_000, draw.randint(1, 3_000))),
            sets_off=draw.choice(self.keys) if draw.random() < 0.2 else None,
            raises=draw.random() < 0.1,
            broken=draw.random() < 0.05,
            seen_before={key: self.events.get(key, 0) for key in keys},
        )
        operation = Simulated(waiter, self, None)
        expected = self.model.park(waiter)
        try:
            done = self.purgatory.try_complete_else_watch(operation, list(keys))
        except PurgatoryFull:
            assert not expected, "refused while there was room"
            assert operation.outcome is None
            return
        assert expected, "accepted while there was no room"
        assert done == (waiter.outcome == "immediate"), f"parking said {done}"
        self.operations += 1
        self.live[waiter] = operation

    def event(self):
        key = self.draw.choice(self.keys)
        self.events[key] = self.events.get(key, 0) + 1
        self.model.event(key)
        self.check(key)

    def silent(self):
        """An event that is not reported yet."""
        key = self.draw.choice(self.keys)
        self.events[key] = self.events.get(key, 0) + 1
        self.model.event(key)

    def look(self):
        self.check(self.draw.choice(self.keys))

    def check(self, key):
        self.checks += 1
        expected = self.model.check(key)
        assert expected == self.purgatory.check_and_complete(key), "the check counted wrongly"

    def advance(self):
        ms = self.timer.tick_ms * self.draw.choice((0, 1, 1, 5, 60, 1_000, self.draw.randint(1, 100_000)))
        self.model.advance(ms)
        self.timer.advance_clock(ms)
        assert self.model.now_ms == self.now_ms()

    def force(self):
        if self.live:
            waiter, operation = self.draw.choice(list(self.live.items()))
            assert self.model.end(waiter, "forced") == operation.force_complete()

    def cancel(self):
        if self.live:
            waiter, operation = self.draw.choice(list(self.live.items()))
            assert self.model.end(waiter, "cancelled") == operation.cancel()

    def cancel_key(self):
        if self.draw.random() < 0.1:
            key = self.draw.choice(self.keys)
            expected = [waiter for waiter in self.model.open if key in waiter.keys]
            for waiter in expected:
                self.model.end(waiter, "cancelled")
            taken = self.purgatory.cancel_for_key(key)
            assert expected == [operation.waiter for operation in taken], "cancel_for_key took others"

    def mend(self):
        """What raised so far, works from now on."""
        for waiter in self.live:
            waiter.broken = False

    def purge(self):
        if self.draw.random() < 0.2:
            self.purgatory.purge()

    # -- comparing

    def compare(self):
        """Every operation where the model has it. Counters equal."""
        self.comparisons += 1
        model, totals = self.model, self.purgatory.totals()
        for name, number in model.totals.items():
            assert number == getattr(totals, name), f"{name}: {totals}, expected {number}"
        assert model.parked == totals.parked
        assert len(model.open) == self.purgatory.parked == self.purgatory.num_delayed
        for waiter, operation in list(self.live.items()):
            outcome = None if operation.outcome is None else operation.outcome.value
            assert waiter.outcome == outcome, f"operation {waiter.number} is {outcome}, expected {waiter.outcome}"
            if outcome is not None:
                self.left(waiter, operation)
                del self.live[waiter]

    def left(self, waiter, operation):
        once = int(waiter.outcome != "cancelled")
        assert once == len(operation.completed_ms), f"completed {len(operation.completed_ms)} times"
        assert int(waiter.outcome == "expired") == len(operation.expired_ms)
        assert not operation.is_pending, "still in the timer"
        self.completed += once
        if waiter.outcome == "expired":
            assert operation.completed_ms[0] >= waiter.deadline_ms, "expired early"

    def compare_all(self):
        """The structure of the timer, the lists by key, and the snapshot."""
        model = self.model
        check_invariants(self.timer)
        assert len(model.open) == self.timer.size
        assert set(model.open) == {operation.waiter for operation in self.purgatory.operations()}
        for key in self.keys[:20]:
            expected = [waiter for waiter in model.open if key in waiter.keys]
            assert expected == [operation.waiter for operation in self.purgatory.operations_for_key(key)]
        self.purgatory.purge()
        snapshot = self.purgatory.snapshot(largest=3)
        assert len(model.open) == snapshot.parked == snapshot.delayed == sum(snapshot.wheel_occupancy)
        assert sum(len(waiter.keys) for waiter in model.open) == snapshot.watched == self.purgatory.watched
        sizes = {}
        for waiter in model.open:
            for key in waiter.keys:
                sizes[key] = sizes.get(key, 0) + 1
        assert len(sizes) == snapshot.keys
        assert sorted(sizes.values(), reverse=True)[:3] == [size for _, size in snapshot.largest_keys]
        assert 0 == snapshot.idle_keys
        assert model.rejected == snapshot.rejected
        for hook, number in model.errors.items():
            assert number == snapshot.callback_errors.get(hook, 0), f"{hook} raised {snapshot.callback_errors}"
        oldest = min((waiter.parked_ms for waiter in model.open), default=None)
        age = None if oldest is None else model.now_ms - oldest
        assert age == snapshot.oldest_age_ms, f"the oldest is {snapshot.oldest_age_ms} ms old, expected {age}"

    def end(self):
        """Shut down. Everything that is open is expired, and nothing is left anywhere."""
        waiting = list(self.model.open)
        report = self.purgatory.shutdown()
        assert not report.stuck
        assert len(waiting) == report.expired
        for waiter in waiting:
            operation = self.live[waiter]
            assert operation.outcome is Outcome.EXPIRED
            assert 1 == len(operation.completed_ms) == len(operation.expired_ms)
            self.completed += 1
        assert 0 == self.purgatory.watched == self.timer.size == self.purgatory.parked
        check_invariants(self.timer)
