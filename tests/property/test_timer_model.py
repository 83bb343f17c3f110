"""
The timer against a sorted list.

Hypothesis adds, cancels, moves and lets time pass. After every step the timer's structure is verified by its
own checker, and the tasks that ran or are pending are compared with a dict of deadlines.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timer import InlineExecutor, ManualClock, MockTimer, SystemTimer, TimerTask
from timer._testing import check_invariants

NEAR = st.integers(-3, 60)
FAR = st.integers(61, 200_000)


class Noting(TimerTask):
    def __init__(self, delay_ms, ran):
        super().__init__(delay_ms)
        self.ran_list = ran

    def run(self):
        self.ran_list.append(self)


class TimerModel(RuleBasedStateMachine):
    @initialize(
        tick_ms=st.sampled_from([1, 1, 2, 7]),
        wheel_size=st.integers(1, 20),
        start_ns=st.integers(0, 10**10),
        mock=st.booleans(),
    )
    def make(self, tick_ms, wheel_size, start_ns, mock):
        self.mock = mock
        self.tick_ns = tick_ms * 1_000_000
        if mock:
            self.timer = MockTimer(tick_ms=tick_ms, wheel_size=wheel_size)
            self.clock = self.timer.clock
        else:
            self.clock = ManualClock(start_ns)
            self.timer = SystemTimer(
                tick_ms=tick_ms, wheel_size=wheel_size, clock=self.clock, executor=InlineExecutor()
            )
        self.origin = self.clock()
        self.ran = []
        self.expected = []  # what ran, by the model
        self.model = {}  # task -> deadline
        self.tasks = []

    def due_ns(self, task):
        """When a task may run at the earliest: at once, or at its deadline, rounded up to a tick."""
        deadline = self.model[task]
        if task.delay_ms <= 0:
            return deadline
        return self.origin - (self.origin - deadline) // self.tick_ns * self.tick_ns

    def note_add(self, task):
        self.model.pop(task, None)
        self.model[task] = self.clock() + max(0, task.delay_ms) * 1_000_000

    @rule(delay_ms=NEAR | FAR)
    def add(self, delay_ms):
        task = Noting(delay_ms, self.ran)
        self.tasks.append(task)
        self.note_add(task)
        self.timer.add(task)

    @rule(delays=st.lists(NEAR, max_size=30))
    def add_many(self, delays):
        for delay_ms in delays:
            self.add(delay_ms)

    @rule(which=st.integers(0, 10**6))
    def cancel(self, which):
        if self.tasks:
            task = self.tasks[which % len(self.tasks)]
            assert (self.model.pop(task, None) is not None) == task.cancel()

    @rule(which=st.integers(0, 10**6))
    def add_again(self, which):
        if self.tasks:
            task = self.tasks[which % len(self.tasks)]
            self.note_add(task)
            self.timer.add(task)

    @rule(ms=st.integers(0, 80) | st.integers(81, 300_000) | st.sampled_from([0.3, 0.999999, 1.000001]))
    def pass_time(self, ms):
        self.clock.advance(ms)
        self.look()

    @rule(ms=st.integers(0, 1_000))
    def pass_time_without_a_look(self, ms):
        self.clock.advance(ms)

    @rule(ns=st.sampled_from([-1, 0, 1]))
    def pass_time_until_the_next_deadline(self, ns):
        """To within a nanosecond of it."""
        if self.model:
            until = min(map(self.due_ns, self.model)) + ns - self.clock()
            if until > 0:
                self.clock._now_ns += until
                self.look()

    def look(self):
        expired = self.timer.advance_clock(0)
        now = self.clock()
        due = sorted([task for task in self.model if self.due_ns(task) <= now], key=self.model.get)
        assert not due or expired
        assert sorted(map(id, due)) == sorted(map(id, self.ran[len(self.expected) :]))
        # A system timer keeps to the order of deadlines within a batch. A mock timer altogether.
        assert not self.mock or [self.model[task] for task in due] == [
            self.model[task] for task in self.ran[len(self.expected) :]
        ]
        for task in due:
            del self.model[task]
        self.expected += self.ran[len(self.expected) :]

    @invariant()
    def structure_is_sound(self):
        check_invariants(self.timer)

    @invariant()
    def timer_agrees_with_the_model(self):
        assert len(self.model) == self.timer.size
        assert sorted(self.model.values()) == [task.deadline_ns for task in self.timer.pending()]
        assert [task in self.model for task in self.tasks] == [task.is_pending for task in self.tasks]
        assert len(self.expected) == len(self.ran)
        following = self.timer.next_deadline_ms()
        if self.model:
            assert following <= (min(map(self.due_ns, self.model)) - self.clock()) / 1e6
        else:
            assert following is None

    def teardown(self):
        if hasattr(self, "timer"):
            left = self.timer.shutdown()
            assert left == sorted(left, key=lambda task: task.deadline_ns)
            # A task that was due already may have been run instead.
            ended = [*left, *self.ran[len(self.expected) :]]
            assert sorted(self.model.values()) == sorted(task.deadline_ns for task in ended)
            assert 0 == self.timer.size


TestTimerModel = TimerModel.TestCase
TestTimerModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
