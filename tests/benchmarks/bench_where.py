"""
Where the time of a cycle goes: loops that do ever more of it, and the atoms that it is made of.

A profiler that counts calls makes calls look expensive, and one that samples can't see inside a function of 200
bytecodes. So the cycle is cut into steps, each measured by itself, and its building blocks, the interpreter's, beside
them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import timeit
from collections.abc import Iterator
from typing import TYPE_CHECKING

from purgatory import DelayedOperationPurgatory
from tests.benchmarks.bench_purgatory import DELAY_MS, Ready, baseline, cycle
from tests.benchmarks.bench_scale import cycles
from tests.benchmarks.harness import Case, Table, clock, compared, say
from timer import SystemTimer, TimerTask

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["atoms", "main", "steps"]


@contextlib.contextmanager
def allocate() -> Iterator[Run]:
    """Make an operation, and let it go."""

    def run(n: int) -> None:
        for _ in range(n):
            Ready(DELAY_MS)

    yield run


@contextlib.contextmanager
def in_the_timer() -> Iterator[Run]:
    """Make an operation, add it to a timer, cancel it there."""
    with SystemTimer("bench") as timer:

        def run(n: int) -> None:
            add, cancel = timer.add, TimerTask.cancel
            for _ in range(n):
                operation = Ready(DELAY_MS)
                add(operation)
                cancel(operation)

        yield run


@contextlib.contextmanager
def at_once() -> Iterator[Run]:
    """Make an operation that completes in the first check of parking."""
    with DelayedOperationPurgatory("bench") as purgatory:

        def run(n: int) -> None:
            park, names = purgatory.try_complete_else_watch, ["topic-0"]
            for _ in range(n):
                operation = Ready(DELAY_MS)
                operation.ready = True
                park(operation, names)

        yield run


@contextlib.contextmanager
def without_timer() -> Iterator[Run]:
    """The cycle in a purgatory whose operations don't expire."""
    with DelayedOperationPurgatory("bench", timer_enabled=False) as purgatory:
        yield functools.partial(cycles, purgatory)


@compared("where the time goes: steps", slug="where-steps")
def steps() -> list[Case]:
    """The cycle, step by step. Each row contains those it names."""
    return [
        Case("the cycle", cycle, 10_000),
        Case("allocate the operation", allocate, 50_000),
        Case("allocate, timer add, cancel", in_the_timer, 20_000),
        Case("allocate, park, complete at once", at_once, 20_000),
        Case("the cycle without a timer", without_timer, 10_000),
        Case("the baseline", baseline, 30_000),
    ]


class _Plain:
    __slots__ = ("delay_ms",)

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms


class _Derived(_Plain):
    __slots__ = ("ready",)

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.ready = False


_ATOMS = {
    "an empty loop": "pass",
    "call a function": "call()",
    "allocate with one slot": "_Plain(1)",
    "the same, derived, by super().__init__()": "_Derived(1)",
    "allocate a Lock": "threading.Lock()",
    "Lock: acquire(), release()": "lock.acquire(); lock.release()",
    "Lock: acquire(False), release()": "lock.acquire(False); lock.release()",
    "Lock: with": "\nwith lock: pass",
    "RLock: acquire(), release()": "rlock.acquire(); rlock.release()",
    "list: pop(), append()": "cell.pop(); cell.append(None)",
    "dict: insert, delete": "table[key] = 1; del table[key]",
    "dict: insert, pop": "table[key] = 1; table.pop(key, None)",
    "hash(key) % 512": "hash(key) % 512",
    "time.monotonic_ns()": "now()",
    "try, finally": "\ntry: pass\nfinally: pass",
}


@contextlib.contextmanager
def _atom(statement: str) -> Iterator[Run]:
    names = {
        "call": lambda: None,
        "_Plain": _Plain,
        "_Derived": _Derived,
        "threading": threading,
        "lock": threading.Lock(),
        "rlock": threading.RLock(),
        "cell": [None],
        "table": {},
        "key": "topic-0",
        "now": time.monotonic_ns,
    }
    setup = "; ".join(f"{name} = _names[{name!r}]" for name in names)  # locals, as in a function
    timer = timeit.Timer(statement, setup, clock, globals={"_names": names})

    def run(n: int) -> float:
        return timer.timeit(n)

    yield run


@compared("where the time goes: atoms", note="each contains the empty loop", slug="where-atoms")
def atoms() -> list[Case]:
    """The cost of the interpreter's building blocks, the loop around them included."""
    return [Case(what, functools.partial(_atom, statement), 50_000) for what, statement in _ATOMS.items()]


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("where: steps and atoms")
    yield steps(rounds=rounds, scale=scale)
    yield atoms(rounds=rounds, scale=scale)
