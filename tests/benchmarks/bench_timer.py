"""
The timer: adding and cancelling beside what else Python offers, at any number of pending tasks, and expiring a million.

A request that is answered in time costs its timer one ``add`` and one ``cancel``: this pair is measured, the task's or
handle's allocation included on all sides. Two patterns of delays, for outstanding and for added tasks: all the same (a
service's request timeout), and random ones, which spread over buckets of the wheel and the depth of a heap.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import importlib
import itertools
import random
import sched
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.benchmarks.harness import Case, Table, compare, say
from timer import SystemTimer, TimerTask

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["LazyHeap", "Nothing", "add_cancel", "add_cancel_scaling", "main"]

CONSTANT_MS = 300_000
OUTSTANDING = 100_000


def nothing_on(base: Any) -> Any:
    """A class of tasks that do nothing, on this base. Every delay here is longer than a measurement, so none runs."""

    class Nothing(base):  # type: ignore[misc]
        __slots__ = ()

        def run(self) -> None:
            pass

    return Nothing


Nothing: Any = nothing_on(TimerTask)


def delays(*, varied: bool) -> list[int]:
    """Delays in ms to go round in: the one, or 1,000 random ones between 2 and 10 minutes. None is ever reached."""
    if not varied:
        return [CONSTANT_MS]
    draw = random.Random(7)
    return [draw.randrange(120_000, 600_000) for _ in range(1_000)]


@contextlib.contextmanager
def wheel(
    outstanding: int,
    *,
    varied: bool = False,
    make: Callable[[int], Any] = Nothing,
    kind: Callable[[str], Any] = SystemTimer,
) -> Iterator[Run]:
    """Ours."""
    timer = kind("bench")
    ours = itertools.cycle(delays(varied=varied))
    for _ in range(outstanding):
        timer.add(make(next(ours)))
    chosen = delays(varied=varied)

    def run(n: int) -> None:
        add = timer.add
        for delay_ms in itertools.islice(itertools.cycle(chosen), n):
            task = make(delay_ms)
            add(task)
            task.cancel()

    yield run
    assert timer.size == outstanding
    timer.shutdown()


def loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """How to make a loop: asyncio's own, and those of the packages that are installed."""
    made = {"asyncio": asyncio.new_event_loop}
    for package in ("uvloop", "zuvloop"):
        with contextlib.suppress(ModuleNotFoundError):
            made[package] = importlib.import_module(package).new_event_loop
    return made


@contextlib.contextmanager
def call_later(
    outstanding: int,
    *,
    varied: bool = False,
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Iterator[Run]:
    """``loop.call_later`` and ``handle.cancel``, the loop getting its turn every 100 operations."""
    loop = make_loop()
    theirs = itertools.cycle(delays(varied=varied))
    for _ in range(outstanding):
        loop.call_later(next(theirs) / 1000, print)
    chosen = [delay_ms / 1000 for delay_ms in delays(varied=varied)]

    async def work(n: int) -> None:
        later = loop.call_later
        for number, delay_s in enumerate(itertools.islice(itertools.cycle(chosen), n)):
            later(delay_s, print).cancel()
            if not number % 100:
                await asyncio.sleep(0)

    yield lambda n: loop.run_until_complete(work(n))
    loop.close()


class LazyHeap:
    """The obvious own solution: a heap under a lock. Cancelled entries stay until they are half of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heap: list[tuple[int, int, list[object]]] = []
        self.cancelled = 0
        self.number = itertools.count()

    def add(self, delay_ms: int, what: object) -> list[object]:
        cell = [what]
        with self.lock:
            heapq.heappush(self.heap, (time.monotonic_ns() + delay_ms * 1_000_000, next(self.number), cell))
        return cell

    def cancel(self, cell: list[object]) -> None:
        with self.lock:
            cell[0] = None
            self.cancelled += 1
            if self.cancelled > 100 and self.cancelled * 2 > len(self.heap):
                self.heap = [entry for entry in self.heap if entry[2][0] is not None]
                heapq.heapify(self.heap)
                self.cancelled = 0


@contextlib.contextmanager
def lazy_heap(outstanding: int, *, varied: bool = False) -> Iterator[Run]:
    """A heap with lazy deletion."""
    heap = LazyHeap()
    theirs = itertools.cycle(delays(varied=varied))
    for _ in range(outstanding):
        heap.add(next(theirs), print)
    chosen = delays(varied=varied)

    def run(n: int) -> None:
        add, cancel = heap.add, heap.cancel
        for delay_ms in itertools.islice(itertools.cycle(chosen), n):
            cancel(add(delay_ms, print))

    yield run


@contextlib.contextmanager
def scheduler(outstanding: int, *, varied: bool = False) -> Iterator[Run]:
    """``sched.scheduler``: its cancel searches the queue."""
    queue = sched.scheduler()
    theirs = itertools.cycle(delays(varied=varied))
    # Put there in one go: one by one, their comparison in Python takes minutes.
    now = queue.timefunc()
    queue._queue = sorted(  # type: ignore[attr-defined]
        (sched.Event(now + next(theirs) / 1000, 1, number, print, (), {}) for number in range(outstanding)),
        key=lambda event: event[:3],
    )
    chosen = [delay_ms / 1000 for delay_ms in delays(varied=varied)]

    def run(n: int) -> None:
        for delay_s in itertools.islice(itertools.cycle(chosen), n):
            queue.cancel(queue.enter(delay_s, 1, print))

    yield run


@contextlib.contextmanager
def thread_each(*, varied: bool = False) -> Iterator[Run]:
    """``threading.Timer``: a thread each. Measured with none outstanding, as 100,000 threads there cannot be."""
    chosen = [delay_ms / 1000 for delay_ms in delays(varied=varied)]

    def run(n: int) -> None:
        for delay_s in itertools.islice(itertools.cycle(chosen), n):
            task = threading.Timer(delay_s, print)
            task.start()
            task.cancel()
            task.join()

    yield run


def _with(
    prepare: Callable[..., contextlib.AbstractContextManager[Run]], *args: int, varied: bool, **others: Any
) -> Callable[[], contextlib.AbstractContextManager[Run]]:
    return lambda: prepare(*args, varied=varied, **others)


def add_cancel(*, outstanding: int = OUTSTANDING, varied: bool = False, rounds: int = 15, scale: float = 1.0) -> Table:
    """Add and cancel beside the peers."""
    cases = [
        Case("timer", _with(wheel, outstanding, varied=varied), 30_000),
        *(
            Case(f"{name} call_later", _with(call_later, outstanding, varied=varied, make_loop=make), 20_000)
            for name, make in loops().items()
        ),
        Case("heapq, lazy deletion", _with(lazy_heap, outstanding, varied=varied), 20_000),
        Case("sched", _with(scheduler, outstanding, varied=varied), 3),
        Case("threading.Timer (none pending)", _with(thread_each, varied=varied), 100),
    ]
    how = "random delays" if varied else "one delay"
    return compare(
        f"timer: add + cancel, {outstanding:,} outstanding, {how}",
        cases,
        rounds=rounds,
        scale=scale,
        note="reach: asyncio call_later 9x the native timer's time or more",
        slug=f"timer-peers-{'varied' if varied else 'one'}",
    )


def add_cancel_scaling(
    *,
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000),
    varied: bool = False,
    rounds: int = 15,
    scale: float = 1.0,
) -> Table:
    """Add and cancel by the number of tasks outstanding."""
    cases = [Case(f"timer, {size:,}", _with(wheel, size, varied=varied), 30_000) for size in sizes]
    cases += [Case(f"asyncio, {size:,}", _with(call_later, size, varied=varied), 20_000) for size in sizes]
    how = "random delays" if varied else "one delay"
    return compare(
        f"timer: add + cancel by tasks outstanding, {how}",
        cases,
        rounds=rounds,
        scale=scale,
        note="reach: the timer's cost grows by 1.25x at most",
        slug=f"timer-outstanding-{'varied' if varied else 'one'}",
    )


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("timer: add + cancel")
    for varied in (False, True):
        yield add_cancel(varied=varied, rounds=rounds, scale=scale)
    say("timer: add + cancel by tasks outstanding")
    sizes = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    for varied in (False, True):
        yield add_cancel_scaling(sizes=sizes, varied=varied, rounds=rounds, scale=scale)
