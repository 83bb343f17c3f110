"""
Both implementations beside the baseline and their peers, in one run: what README and docs/performance.md quote.

The pure implementation is a private copy of the core, loaded from its sources (:mod:`tests.explore.edition`). All other
modules import the native one. So the rows of both are interleaved like any others, under the same load of the machine.
Without a native implementation both rows are Python's, and equal.

The ratios are to the tables' first case: the baseline of :mod:`tests.benchmarks.bench_purgatory`, a
thousand keys, a dict's own insert and pop.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import purgatory
import timer
from tests.benchmarks.bench_purgatory import baseline, cycle, ready_on, rotation, wait_for
from tests.benchmarks.bench_timer import CONSTANT_MS, OUTSTANDING, call_later, nothing_on, wheel
from tests.benchmarks.harness import Case, Table, compare, compared, say
from tests.explore.edition import Edition

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["cycles", "main", "rotations", "timers"]


@functools.cache
def _editions() -> dict[str, tuple[ModuleType, ModuleType]]:
    """By name, purgatory and timer of each implementation."""
    interpreted = Edition()
    return {"native": (purgatory, timer), "Python": (interpreted.purgatory, interpreted.timer)}


def _cycle(core: Any, keys: int) -> AbstractContextManager[Run]:
    return cycle(keys, make=ready_on(core.DelayedOperation), kind=core.DelayedOperationPurgatory)


def _rotation(core: Any, number: int) -> AbstractContextManager[Run]:
    return rotation(number, make=ready_on(core.DelayedOperation), kind=core.DelayedOperationPurgatory)


def _wheel(module: Any, outstanding: int) -> AbstractContextManager[Run]:
    return wheel(outstanding, make=nothing_on(module.TimerTask), kind=module.SystemTimer)


@contextlib.contextmanager
def _least(outstanding: int) -> Iterator[Run]:
    """What adding and cancelling can't do without: the time, an object, an insert into a dict of C and a pop."""

    class Nothing:
        __slots__ = ("deadline_ns", "delay_ms")
        deadline_ns: int

        def __init__(self, delay_ms: int) -> None:
            self.delay_ms = delay_ms

    bucket: dict[Nothing, None] = dict.fromkeys(Nothing(CONSTANT_MS) for _ in range(outstanding))

    def run(n: int) -> None:
        now, pop = time.monotonic_ns, bucket.pop
        for delay_ms in itertools.repeat(CONSTANT_MS, n):  # as cheap as the loop of the wheel
            task = Nothing(delay_ms)
            task.deadline_ns = now() + task.delay_ms * 1_000_000
            bucket[task] = None
            pop(task)

    yield run


def _of_each(name: str, prepare: Any, n: int, *arguments: int, module: int = 0) -> list[Case]:
    return [
        Case(f"{edition}, {name}", functools.partial(prepare, modules[module], *arguments), n)
        for edition, modules in _editions().items()
    ]


@compared(
    "implementations: park -> satisfy",
    note="reach, native: 1.05x the baseline, three keys 1.15x",
    slug="editions-cycle",
)
def cycles() -> list[Case]:
    """Park and satisfy, with one key and with three."""
    return [
        Case("the baseline", baseline, 30_000),
        *_of_each("1 key", _cycle, 10_000, 1),
        *_of_each("3 keys", _cycle, 10_000, 3),
        Case("asyncio.wait_for on a future", wait_for, 2_000),
    ]


def rotations(
    *, numbers: tuple[int, ...] = (1_000, 1_100, 100_000, 1_000_000), rounds: int = 15, scale: float = 1.0
) -> list[Table]:
    """Park and satisfy by how many keys take turns, of each implementation."""
    tables = []
    for edition, (core, _) in _editions().items():
        cases: list[Case] = []
        for number in numbers:
            prepare: Any = functools.partial(_rotation, core, number)
            cases.append(Case(f"{edition}, {number:,} keys", prepare, 5_000))
        tables.append(
            compare(
                f"implementations: park -> satisfy by keys in rotation, {edition}",
                cases,
                rounds=rounds,
                scale=scale,
                note="reach, native: 1.25x the cost with a thousand",
                slug=f"editions-rotation-{edition.lower()}",
            )
        )
    return tables


def timers(*, outstanding: int = OUTSTANDING, rounds: int = 15, scale: float = 1.0) -> Table:
    """Add and cancel."""
    cases = [
        Case("the least: clock, object, dict", functools.partial(_least, outstanding), 30_000),
        *_of_each("add + cancel", _wheel, 20_000, outstanding, module=1),
        Case("asyncio call_later + cancel", functools.partial(call_later, outstanding), 10_000),
    ]
    return compare(
        f"implementations: timer add + cancel, {outstanding:,} outstanding",
        cases,
        rounds=rounds,
        scale=scale,
        note="reach, native: 1.5x the least, a ninth of asyncio's",
        slug="editions-timer",
    )


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("implementations: native beside Python, the baseline and peers")
    yield cycles(rounds=rounds, scale=scale)
    yield from rotations(rounds=rounds, scale=scale)
    yield timers(rounds=rounds, scale=scale)
