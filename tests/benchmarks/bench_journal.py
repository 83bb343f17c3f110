"""The cost of a journal in the park and satisfy cycle: CPU time of the service's thread, and of all threads."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from purgatory import DelayedOperationPurgatory, Observer
from purgatory.journal import Journal
from tests.benchmarks.bench_purgatory import DELAY_MS, Ready
from tests.benchmarks.harness import Case, Table, compare

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["main"]


class Idle(Observer):
    """An observer that does nothing: what being observed costs by itself."""

    def parked(self, operation: object, /) -> None:
        pass

    def finished(self, operation: object, outcome: object, error: object, /) -> None:
        pass


@contextlib.contextmanager
def _cycle(observer: str, clock: Callable[[], float] = time.process_time) -> Iterator[Run]:
    with contextlib.ExitStack() as stack:
        journal = None
        observers: list[Observer] = []
        if observer == "journal":
            journal = stack.enter_context(Journal(stack.enter_context(tempfile.TemporaryDirectory())))
            observers = [journal.observer("bench")]
        elif observer == "idle":
            observers = [Idle()]
        purgatory = stack.enter_context(DelayedOperationPurgatory("bench", observers=observers))

        def run(n: int) -> float:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            keys = ["topic-0"]
            start = clock()
            for _ in range(n):
                operation = Ready(DELAY_MS)
                park(operation, keys)
                operation.ready = True
                check("topic-0")
            if journal is not None and clock is time.process_time:
                journal.flush()
            return clock() - start

        yield run


def main(*, quick: bool = False) -> Iterator[Table]:
    """The cycle without and with a journal."""
    yield compare(
        "park and satisfy, with a journal",
        [
            Case("no journal", lambda: _cycle(""), 10_000),
            Case("an observer that does nothing", lambda: _cycle("idle"), 10_000),
            Case("a journal: the service's own thread", lambda: _cycle("journal", time.thread_time), 10_000),
            Case("a journal: all threads, flushed", lambda: _cycle("journal"), 10_000),
        ],
        rounds=5 if quick else 21,
        scale=0.5 if quick else 1.0,
        note="the cycle with a journal should take at most 1.20 times the one without",
    )
