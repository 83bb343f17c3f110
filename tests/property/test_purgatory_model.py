"""
The purgatory against a simple model of parked operations.

Hypothesis parks, checks, forces, cancels, purges and lets time pass. After every step the waiting operations of each
key, the counters, and the order of the hooks are compared with a dict.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory import AlreadyParked, DelayedOperationPurgatory, Outcome, PurgatoryFull
from tests.support import Waiting
from timer import MockTimer
from timer._testing import check_invariants

KEYS = st.lists(st.integers(0, 6), min_size=1, max_size=4)
HISTORY = {
    None: [],
    Outcome.IMMEDIATE: ["complete"],
    Outcome.SATISFIED: ["complete"],
    Outcome.FORCED: ["complete"],
    Outcome.CANCELLED: [],
    Outcome.EXPIRED: ["complete", "expire"],
}


class PurgatoryModel(RuleBasedStateMachine):
    @initialize(
        shards=st.sampled_from([1, 2, 512]),
        purge_interval=st.sampled_from([0, 3, 1000]),
        max_parked=st.sampled_from([None, None, 5]),
    )
    def make(self, shards, purge_interval, max_parked):
        self.timer = MockTimer()
        self.purgatory = DelayedOperationPurgatory(
            "model",
            timer=self.timer,
            shards=shards,
            purge_interval=purge_interval,
            max_parked=max_parked,
            observers=[self],
        )
        self.limit = max_parked
        self.now = 0
        self.all = []
        self.waiting = {}  # operation -> (keys, deadline), in order of arrival
        self.outcomes = {}  # operation -> outcome
        self.told = []  # by the observer

    def parked(self, operation):
        self.told.append((operation, None))

    def finished(self, operation, outcome, error):
        assert error is None
        self.told.append((operation, outcome))

    def left(self, operation, outcome):
        self.waiting.pop(operation, None)
        self.outcomes[operation] = outcome

    @rule(keys=KEYS, delay_ms=st.integers(-2, 50) | st.integers(51, 10**6), ready=st.sampled_from([False] * 4 + [True]))
    def park(self, keys, delay_ms, ready):
        operation = Waiting(delay_ms, ready=ready)
        if not ready and self.limit is not None and len(self.waiting) >= self.limit:
            try:
                self.purgatory.try_complete_else_watch(operation, keys)
            except PurgatoryFull:
                assert (None, ()) == (operation.outcome, operation.keys)
                return
            raise AssertionError("a full purgatory took one more")
        self.all.append(operation)
        assert ready == self.purgatory.try_complete_else_watch(operation, keys)
        if ready:
            self.left(operation, Outcome.IMMEDIATE)
        else:
            # A delay of zero or less is due at the timer's next look.
            self.waiting[operation] = (tuple(dict.fromkeys(keys)), self.now + max(delay_ms, 0))

    @rule(which=st.integers(0, 10**6))
    def make_ready(self, which):
        if self.waiting:
            list(self.waiting)[which % len(self.waiting)].ready = True

    @rule(key=st.integers(0, 7))
    def check(self, key):
        ready = [operation for operation, (keys, _) in self.waiting.items() if key in keys and operation.ready]
        assert len(ready) == self.purgatory.check_and_complete(key)
        for operation in ready:
            self.left(operation, Outcome.SATISFIED)

    @rule(which=st.integers(0, 10**6), end=st.sampled_from([Outcome.FORCED, Outcome.CANCELLED]))
    def end(self, which, end):
        if self.all:
            operation = self.all[which % len(self.all)]
            ended = operation.cancel() if end is Outcome.CANCELLED else operation.force_complete()
            assert (operation in self.waiting) == ended
            if ended:
                self.left(operation, end)

    @rule(which=st.integers(0, 10**6), keys=KEYS)
    def park_again(self, which, keys):
        if self.all and (self.limit is None or len(self.waiting) < self.limit):
            try:
                self.purgatory.try_complete_else_watch(self.all[which % len(self.all)], keys)
            except AlreadyParked:
                return
            raise AssertionError("an operation was parked twice")

    @rule(key=st.integers(0, 7))
    def cancel_for_key(self, key):
        expected = [operation for operation, (keys, _) in self.waiting.items() if key in keys]
        assert expected == self.purgatory.cancel_for_key(key)
        for operation in expected:
            self.left(operation, Outcome.CANCELLED)

    @rule(ms=st.integers(0, 60) | st.integers(61, 10**6))
    def pass_time(self, ms):
        self.now += ms
        due = [operation for operation, (_, deadline) in self.waiting.items() if deadline <= self.now]
        assert bool(due) == self.purgatory.advance_clock(ms)
        for operation in due:
            self.left(operation, Outcome.EXPIRED)

    @rule()
    def purge(self):
        self.purgatory.purge()
        snapshot = self.purgatory.snapshot()
        assert self.entries() == self.purgatory.watched == snapshot.watched
        assert 0 == snapshot.idle_keys
        assert len({key for keys, _ in self.waiting.values() for key in keys}) == snapshot.keys

    def entries(self):
        return sum(len(keys) for keys, _ in self.waiting.values())

    @invariant()
    def who_waits_is_who_waits(self):
        for key in range(8):
            expected = [operation for operation, (keys, _) in self.waiting.items() if key in keys]
            assert expected == self.purgatory.operations_for_key(key)
        assert set(self.waiting) == set(self.purgatory.operations())

    @invariant()
    def hooks_ran_as_the_outcome_says(self):
        for operation in self.all:
            outcome = self.outcomes.get(operation)
            assert outcome is operation.outcome
            assert HISTORY[outcome] == operation.history

    @invariant()
    def counts_are_exact(self):
        purgatory = self.purgatory
        assert len(self.waiting) == purgatory.parked == purgatory.num_delayed
        pending = {id(task) for task in self.timer.pending()}
        assert pending <= {id(operation) for operation in self.waiting}
        # A due task has been handed over already, and waits for the next look.
        assert len(self.waiting) == len(pending) + sum(
            deadline <= self.now and id(operation) not in pending for operation, (_, deadline) in self.waiting.items()
        )
        totals = purgatory.totals()
        for outcome in Outcome:
            expected = sum(left is outcome for left in self.outcomes.values())
            assert expected == getattr(totals, outcome.value)
        assert len(self.all) == totals.started
        assert purgatory.watched >= self.entries()

    @invariant()
    def observers_were_told_once(self):
        assert len(self.told) == len(set(self.told))
        assert self.outcomes == {operation: outcome for operation, outcome in self.told if outcome is not None}

    @invariant()
    def timer_is_sound(self):
        check_invariants(self.timer)

    def teardown(self):
        if hasattr(self, "purgatory"):
            report = self.purgatory.shutdown()
            assert len(self.waiting) == report.expired
            assert [["complete", "expire"]] * len(self.waiting) == [operation.history for operation in self.waiting]
            assert (0, 0) == (self.purgatory.watched, self.timer.size)


TestPurgatoryModel = PurgatoryModel.TestCase
TestPurgatoryModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
