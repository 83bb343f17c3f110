"""A timer task that remembers when it ran, an executor that runs on request, and a timer of the user's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from timer import InlineExecutor, ManualClock, MockTimer, SystemTimer, Timer, TimerTask

Task = TypeVar("Task", bound=TimerTask)


class Ping(TimerTask):
    """Notes itself in ``log`` when it runs, then calls ``do``."""

    def __init__(
        self,
        delay_ms: int,
        log: list[Ping] | None = None,
        do: Callable[[], object] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(delay_ms)
        self.log: list[Ping] = [] if log is None else log
        self.do = do
        self.clock = clock
        self.ran_ns: list[int] = []
        self.ran = threading.Event()

    def __repr__(self) -> str:
        return f"Ping({self.delay_ms})"

    def run(self) -> None:
        self.ran_ns.append(self.clock())
        self.log.append(self)
        if self.do is not None:
            self.do()
        self.ran.set()


def added(timer: Timer, task: Task) -> Task:
    """Add the task to the timer. Returns the task."""
    timer.add(task)
    return task


def add_all(timer: Timer, tasks: list[Task]) -> list[Task]:
    """Add the tasks to the timer, in that order. Returns the tasks."""
    return [added(timer, task) for task in tasks]


def by_hand(**settings: Any) -> SystemTimer:
    """A timer whose clock is moved by hand, and which runs its tasks on the thread that drives it."""
    return SystemTimer(**{"clock": ManualClock(), "executor": InlineExecutor(), **settings})


def let_pass(timer: SystemTimer, ms: float) -> bool:
    """Move the clock of a timer by hand, then let it look. True if something expired."""
    cast("ManualClock", timer._clock).advance(ms)
    return timer.advance_clock(0)


def fail(*_: object) -> None:
    """What a task or a hook that is broken does."""
    raise OSError("no disk")


class Collecting:
    """An executor that keeps its batches. ``run`` runs them, and returns how many there were."""

    def __init__(self) -> None:
        self.batches: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., object], *args: object) -> None:
        self.batches.append((function, args))

    def run(self) -> int:
        batches, self.batches = self.batches, []
        for function, args in batches:
            function(*args)
        return len(batches)


class OwnTimer(Timer):
    """A timer of the user's around one of ours, with the fewest methods. It reports nothing of itself."""

    def __init__(self) -> None:
        self.under = MockTimer()

    def add(self, task: TimerTask) -> None:
        self.under.add(task)

    def advance_clock(self, timeout_ms: float) -> bool:
        return self.under.advance_clock(timeout_ms)

    @property
    def size(self) -> int:
        return self.under.size

    def shutdown(self) -> list[TimerTask]:
        return self.under.shutdown()
