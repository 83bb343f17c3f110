"""
Awaiting in a purgatory on one loop, beside what asyncio offers: ``python -m tests.benchmarks.bench_aio``.

Every case starts one task per waiter, lets all of them come to wait, makes each one's condition true, and collects the
answers. All of that is counted, per waiter. So all carry the cost of a task, which the row *a bare future*
shows: no timeout, no predicate, no notification. A predicate for each waiter is three objects more, which the row *one
predicate for all* shows. The peers are given what suits them best: a ``Condition`` of its own
for each waiter, so that no ``notify`` wakes a task without need.

One loop is one thread, so its processor time is counted, which depends less on other load.

A ratio is a case's cost to that of the first row, from the same round: 4.0 is four times as slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from purgatory import DelayedOperation
from purgatory.aio import AsyncPurgatory, LoopTimer
from tests.benchmarks.bench_lateness import Stamped
from tests.benchmarks.harness import Case, Table, compare, compared, percentile, say, show, write_json

if TYPE_CHECKING:
    from tests.benchmarks.harness import Row, Run

__all__ = ["cancellation", "cycle", "expiry", "growth", "main"]

TIMEOUT_MS = 300_000


class Ready(DelayedOperation):
    """Completes when the benchmark allows it."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        super().__init__(TIMEOUT_MS)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


#: Starts ``n`` waiters. Gives their tasks, what makes each one's condition true, and what to do at the end.
Started = tuple[list["asyncio.Task[object]"], Callable[[], Awaitable[None]]]
Start = Callable[..., Started]


def start_park(purgatory: AsyncPurgatory[DelayedOperation], n: int) -> Started:
    operations = [Ready() for _ in range(n)]

    async def satisfy() -> None:
        for key, operation in enumerate(operations):
            operation.ready = True
            purgatory.check_and_complete(key)

    return [_task(purgatory.park(operation, [key])) for key, operation in enumerate(operations)], satisfy


def start_wait_for(purgatory: AsyncPurgatory[DelayedOperation], n: int, per_key: int = 1) -> Started:
    ready = [False] * n

    async def satisfy() -> None:
        for key in range(n):
            ready[key] = True
            purgatory.check_and_complete(key // per_key)
            if per_key > 1:
                await asyncio.sleep(0)  # events come one at a time

    wait_for = purgatory.wait_for
    return [
        _task(wait_for(functools.partial(ready.__getitem__, key), keys=[key // per_key], timeout_ms=TIMEOUT_MS))
        for key in range(n)
    ], satisfy


def start_one_predicate(purgatory: AsyncPurgatory[DelayedOperation], n: int) -> Started:
    ready: list[bool] = []
    predicate = ready.__len__

    async def satisfy() -> None:
        ready.append(True)
        for key in range(n):
            purgatory.check_and_complete(key)

    wait_for = purgatory.wait_for
    return [_task(wait_for(predicate, keys=[key], timeout_ms=TIMEOUT_MS)) for key in range(n)], satisfy


def start_bare(_: AsyncPurgatory[DelayedOperation], n: int) -> Started:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(n)]

    async def wait(future: asyncio.Future[None]) -> None:
        await future

    async def satisfy() -> None:
        for future in futures:
            future.set_result(None)

    return [_task(wait(future)) for future in futures], satisfy


def start_future(_: AsyncPurgatory[DelayedOperation], n: int) -> Started:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(n)]

    async def satisfy() -> None:
        for future in futures:
            future.set_result(None)

    return [_task(asyncio.wait_for(future, TIMEOUT_MS / 1000)) for future in futures], satisfy


def start_timeout(_: AsyncPurgatory[DelayedOperation], n: int) -> Started:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(n)]

    async def wait(future: asyncio.Future[None]) -> None:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await future

    async def satisfy() -> None:
        for future in futures:
            future.set_result(None)

    return [_task(wait(future)) for future in futures], satisfy


def start_condition(_: AsyncPurgatory[DelayedOperation], n: int, per_key: int = 1) -> Started:
    ready = [False] * n
    conditions = [asyncio.Condition() for _ in range(-(-n // per_key))]

    async def wait(key: int) -> None:
        condition = conditions[key // per_key]
        async with condition:
            await condition.wait_for(functools.partial(ready.__getitem__, key))

    async def satisfy() -> None:
        for key in range(n):
            condition = conditions[key // per_key]
            async with condition:
                ready[key] = True
                condition.notify_all()
            if per_key > 1:
                await asyncio.sleep(0)

    return [_task(asyncio.wait_for(wait(key), TIMEOUT_MS / 1000)) for key in range(n)], satisfy


#: The first is the reference of the others.
CASES: dict[str, Start] = {
    "purgatory.wait_for": start_wait_for,
    "the same, one predicate for all": start_one_predicate,
    "purgatory.park": start_park,
    "asyncio.wait_for + Condition": start_condition,
    "asyncio.wait_for on a future": start_future,
    "asyncio.timeout around a future": start_timeout,
    "a bare future": start_bare,
}


def _task(awaitable: Awaitable[object]) -> asyncio.Task[object]:
    return asyncio.ensure_future(awaitable)


@contextlib.contextmanager
def _on_a_loop(start: Start, others: int, *, cancel: bool) -> Iterator[Run]:
    """Run waiters on a loop where ``others`` wait besides. Time the cycle, or the cancellation alone."""
    with asyncio.Runner() as runner:

        async def prepare() -> tuple[AsyncPurgatory[DelayedOperation], list[asyncio.Task[object]]]:
            purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("bench")
            waiting = [_task(purgatory.park(Ready(), [("other", key)])) for key in range(others)]
            await asyncio.sleep(0)
            return purgatory, waiting

        async def cycle(n: int) -> float:
            began = time.thread_time()
            tasks, satisfy = start(purgatory, n)
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # wait_for may take a turn to start what it waits for
            if cancel:
                began = time.thread_time()
                for task in tasks:
                    task.cancel()
            else:
                await satisfy()
            await asyncio.wait(tasks)
            return time.thread_time() - began

        async def end() -> None:
            await purgatory.shutdown("cancel")
            await asyncio.gather(*waiting)

        purgatory, waiting = runner.run(prepare())
        yield lambda n: runner.run(cycle(n))
        runner.run(end())


def cycle(n: int, *, rounds: int = 5, scale: float = 1.0) -> Table:
    """``n`` waiters come to wait, and are satisfied one by one."""
    return compare(
        f"{n:,} waiters on one loop: start, wait, satisfy, answer; a waiter",
        [Case(name, functools.partial(_on_a_loop, start, 0, cancel=False), n) for name, start in CASES.items()],
        rounds=rounds,
        scale=scale,
        unit="us",
        note="ratio: to the first row; 4.0 is four times as slow",
        slug=f"aio-cycle-{n}",
    )


@contextlib.contextmanager
def _news_on_a_loop(start: Start, per_key: int) -> Iterator[Run]:
    """Time ``n`` events with their answers, where each event answers one of the many tasks that wait under its key."""
    with asyncio.Runner() as runner:

        async def events(n: int) -> float:
            purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("bench")
            tasks, satisfy = start(purgatory, n, per_key)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            began = time.thread_time()
            await satisfy()
            await asyncio.wait(tasks)
            took = time.thread_time() - began
            await purgatory.shutdown()
            return took

        yield lambda n: runner.run(events(n))


def shared_keys(n: int, *, per_key: int = 100, rounds: int = 3, scale: float = 1.0) -> Table:
    """``n`` waiters share keys, or conditions. Every event is for one of them."""
    return compare(
        f"{n:,} waiters, {per_key} under a key; each event answers one of them; an event",
        [
            Case("purgatory.wait_for", functools.partial(_news_on_a_loop, start_wait_for, per_key), n),
            Case("asyncio.wait_for + Condition", functools.partial(_news_on_a_loop, start_condition, per_key), n),
        ],
        rounds=rounds,
        scale=scale,
        unit="us",
        note="the waiters are there already; what an event costs is looking at those under its key",
        slug="aio-shared-keys",
    )


@compared("the cycle of purgatory.park while others are parked; a waiter", unit="us", slug="aio-growth")
def growth(*, others: tuple[int, ...] = (1_000, 10_000, 100_000)) -> list[Case]:
    """The cost of a cycle with ever more operations parked besides."""
    return [
        Case(f"{count:,} others", functools.partial(_on_a_loop, start_park, count, cancel=False), 2_000)
        for count in others
    ]


def cancellation(n: int, *, rounds: int = 3, scale: float = 1.0) -> Table:
    """``n`` tasks that wait are cancelled."""
    chosen = ("purgatory.park", "asyncio.wait_for + Condition", "asyncio.wait_for on a future", "a bare future")
    return compare(
        f"{n:,} waiters on one loop are cancelled; a waiter",
        [Case(name, functools.partial(_on_a_loop, CASES[name], 0, cancel=True), n) for name in chosen],
        rounds=rounds,
        scale=scale,
        unit="us",
        slug=f"aio-cancel-{n}",
    )


async def _expire_on_wheel(delays_ms: list[int], late: list[int]) -> None:
    with LoopTimer() as timer:
        for delay_ms in delays_ms:
            timer.add(Stamped(delay_ms, late))
        while len(late) < len(delays_ms):  # noqa: ASYNC110  # an event would be work that counts
            await asyncio.sleep(0.05)


async def _expire_by_call_later(delays_ms: list[int], late: list[int]) -> None:
    loop = asyncio.get_running_loop()

    def due(deadline_ns: int) -> None:
        late.append(time.monotonic_ns() - deadline_ns)

    for delay_ms in delays_ms:
        loop.call_later(delay_ms / 1000, due, time.monotonic_ns() + delay_ms * 1_000_000)
    while len(late) < len(delays_ms):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def expiry(n: int, spread_ms: int) -> Table:
    """``n`` deadlines spread over some seconds come due: processor time, lateness."""
    delays_ms = [1 + number * 7919 % spread_ms for number in range(n)]
    rows: list[Row] = []
    for name, expire in (("LoopTimer", _expire_on_wheel), ("loop.call_later", _expire_by_call_later)):
        late_ns: list[int] = []
        began = time.process_time()
        asyncio.run(expire(delays_ms, late_ns))
        cpu_us = (time.process_time() - began) / n * 1e6
        first_us = float(rows[0][1] or 0) if rows else cpu_us
        late = [ns / 1e6 for ns in late_ns]
        early = sum(ms < 0 for ms in late)
        rows.append(
            (name, round(cpu_us, 2), percentile(late, 0.5), percentile(late, 0.99), max(late), early, cpu_us / first_us)
        )
    return Table(
        f"{n:,} deadlines spread over {spread_ms / 1000:g} s come due on one loop",
        ("case", "cpu us", "late p50 ms", "late p99 ms", "late max ms", "early", "ratio"),
        tuple(rows),
        "ratio: of processor time a task, adding it included",
        "aio-expiry",
    )


def main(*, quick: bool = False) -> Iterator[Table]:
    """Every table, as it is measured."""
    say("asyncio: the cycle beside its peers")
    yield cycle(10_000, rounds=1 if quick else 7)
    if not quick:
        yield cycle(100_000, rounds=2)
    say("asyncio: keys that many share")
    yield shared_keys(1_000 if quick else 10_000, rounds=1 if quick else 3)
    say("asyncio: growth with what is parked")
    yield growth(rounds=3 if quick else 9)
    say("asyncio: cancellation")
    yield cancellation(10_000 if quick else 100_000, rounds=1 if quick else 3)
    say("asyncio: expiry")
    yield expiry(10_000 if quick else 100_000, 1_000 if quick else 5_000)


def command(argv: list[str] | None = None) -> int:
    """Measure, and show the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_aio", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look only: fewer rounds, smaller sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    chosen = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tables = []
    for table in main(quick=chosen.quick):
        show(table)
        tables.append(table)
    if chosen.json is not None:
        write_json(tables, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(command())
