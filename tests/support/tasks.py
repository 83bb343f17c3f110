"""A timer task that remembers when it ran."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from timer import Timer, TimerTask

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
