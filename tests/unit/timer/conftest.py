import time

import pytest

from tests.support import eventually
from timer import InlineExecutor, ManualClock, MockTimer, SystemTimer, SystemTimerReaper


class Bench:
    """A timer on trial, and a way to let time pass for it until everything due has run."""

    def __init__(self, kind):
        self.kind = kind
        self.errors = []
        self.clock = None
        self.made = []

    def make(self, **settings):
        """A timer of the kind on trial."""
        settings.setdefault("on_error", lambda task, error: self.errors.append((task, error)))
        if self.kind == "mock":
            timer = MockTimer(**settings)
            self.clock = timer.clock
        elif self.kind in ("manual", "executor"):
            self.clock = ManualClock()
            executor = InlineExecutor() if self.kind == "manual" else None
            timer = SystemTimer(clock=self.clock, executor=executor, **settings)
        else:
            self.clock = time.monotonic_ns
            timer = SystemTimer(**settings)
            if self.kind == "reaper":
                timer = SystemTimerReaper("bench", timer)
        self.made.append(timer)
        return timer

    def pass_ms(self, timer, ms):
        """Let ``ms`` pass, and whatever falls due in it run. Real time may pass some more."""
        if self.kind == "mock":
            return timer.advance_clock(ms)
        before = self.fired(timer)
        if self.kind in ("manual", "executor"):
            self.clock.advance(ms)
            while timer.advance_clock(0):
                pass
        else:
            until = time.monotonic_ns() + ms * 1_000_000
            while time.monotonic_ns() <= until:
                if self.kind == "real":
                    timer.advance_clock(max(0, (until - time.monotonic_ns()) // 1_000_000))
                else:
                    time.sleep(0.0005)
            if self.kind == "real":
                timer.advance_clock(0)  # this thread may have lost the processor before the time was over
        self.settle(timer)
        return self.fired(timer) > before

    def settle(self, timer):
        """Wait until what was due has run."""
        inner = getattr(timer, "timer", timer)
        assert eventually(lambda: inner.statistics().handed_over == 0)

    def fired(self, timer):
        return getattr(timer, "timer", timer).statistics().fired

    def ran(self, *tasks):
        """Whether all of the tasks have run, or do so now."""

        def all_ran():
            if self.kind == "real":
                for timer in self.made:
                    timer.advance_clock(0)
            return all(task.ran.is_set() for task in tasks)

        return eventually(all_ran)


@pytest.fixture(params=["mock", "manual", "executor", "real", "reaper"])
def bench(request):
    bench = Bench(request.param)
    yield bench
    for timer in bench.made:
        timer.shutdown()


@pytest.fixture
def timer(bench):
    return bench.make()
