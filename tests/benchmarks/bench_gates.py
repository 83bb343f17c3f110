"""
Gates beside what asyncio offers: ``python -m tests.benchmarks.bench_gates``.

Callers enter, let the loop run once, and leave. ``asyncio.Semaphore`` is under ``asyncio.timeout`` for the wait, as a
deadline needs it. One loop is one thread, so processor time is counted, per block.

The second table is what a caller sees: 1,024 callers come to 32 permits, each with a timeout of a second, and a block
takes 20 ms. With the semaphore and no deadline all are served, and half of them wait for longer than anybody would.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from purgatory.gates import Gate, GateRejected, GateTimeout
from tests.benchmarks.harness import Case, Table, compared, percentile

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["contended", "main", "uncontended", "waits"]

PERMITS = 32
Block = Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def semaphore() -> AsyncIterator[Block]:
    """asyncio's, with a deadline for the wait."""
    permits = asyncio.Semaphore(PERMITS)

    async def block() -> None:
        async with asyncio.timeout(60):
            await permits.acquire()
        try:
            await asyncio.sleep(0)
        finally:
            permits.release()

    yield block


@contextlib.asynccontextmanager
async def gate(order: Any) -> AsyncIterator[Block]:
    """A gate of that order. Callers are of ten tenants or priorities."""
    argument: dict[str, list[dict[str, Any]]] = {
        "arrival": [{}],
        "priority": [{"priority": i} for i in range(10)],
        "fair": [{"tenant": str(i)} for i in range(10)],
    }
    arguments = itertools.cycle(argument[order])
    async with Gate("bench", PERMITS, max_waiting=None, order=order) as permits:

        async def block() -> None:
            async with permits.enter(timeout_ms=60_000, **next(arguments)):
                await asyncio.sleep(0)

        yield block


@contextlib.asynccontextmanager
async def nothing() -> AsyncIterator[Block]:
    """The loop by itself."""

    async def block() -> None:
        await asyncio.sleep(0)

    yield block


@contextlib.contextmanager
def running(make: Callable[[], contextlib.AbstractAsyncContextManager[Block]], callers: int) -> Iterator[Run]:
    """Tasks that enter again and again."""
    with asyncio.Runner() as runner:

        async def measure(n: int) -> None:
            async with make() as block:

                async def caller() -> None:
                    for _ in range(max(1, n // callers)):
                        await block()

                await asyncio.gather(*(caller() for _ in range(callers)))

        yield lambda n: runner.run(measure(n))


def cases(callers: int) -> list[Case]:
    kinds: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Block]]] = {
        "asyncio.Semaphore, asyncio.timeout": semaphore,
        "Gate": functools.partial(gate, "arrival"),
        "Gate, by priority": functools.partial(gate, "priority"),
        "Gate, fair": functools.partial(gate, "fair"),
        "the loop alone": nothing,
    }
    return [Case(name, functools.partial(running, kind, callers), 16_384) for name, kind in kinds.items()]


@compared("A permit is free: 8 callers, 32 permits", slug="gates-free")
def uncontended() -> list[Case]:
    return cases(8)


@compared("Callers wait: 1,024 callers, 32 permits", slug="gates-waiting")
def contended() -> list[Case]:
    return cases(1_024)


async def _arrive(block: Callable[[Callable[[], None]], Awaitable[None]]) -> tuple[list[float], list[float], int]:
    """Waits of the admitted and of the rejected, in milliseconds, and how many waited in vain."""
    admitted: list[float] = []
    rejected: list[float] = []
    expired = 0

    async def caller() -> None:
        nonlocal expired
        began = time.monotonic()
        try:
            await block(lambda: admitted.append((time.monotonic() - began) * 1000))
        except GateRejected:
            rejected.append((time.monotonic() - began) * 1000)
        except (GateTimeout, TimeoutError):
            expired += 1

    tasks = []
    for _ in range(1_024):
        tasks.append(asyncio.create_task(caller()))
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    return admitted, rejected, expired


def waits(timeout_ms: int = 300, hold_s: float = 0.1) -> Table:
    """1,024 callers come within about a second to 32 permits."""
    semaphores = asyncio.Semaphore

    async def run(kind: str) -> tuple[list[float], list[float], int]:
        permits = semaphores(PERMITS)
        async with Gate("bench", PERMITS, max_waiting=None) as guarded:

            async def block(inside: Callable[[], None]) -> None:
                if kind == "Gate":
                    async with guarded.enter(timeout_ms=timeout_ms):
                        inside()
                        await asyncio.sleep(hold_s)
                    return
                async with asyncio.timeout(None if "no deadline" in kind else timeout_ms / 1000):
                    await permits.acquire()
                try:
                    inside()
                    await asyncio.sleep(hold_s)
                finally:
                    permits.release()

            return await _arrive(block)

    rows = []
    for kind in ("asyncio.Semaphore, no deadline", "asyncio.Semaphore, asyncio.timeout", "Gate"):
        admitted, rejected, expired = asyncio.run(run(kind))
        p50, p99 = (round(percentile(admitted, share)) for share in (0.5, 0.99))
        rows.append((kind, len(admitted), p50, p99, len(rejected), round(max(rejected, default=0.0), 1), expired))
    columns = ("case", "admitted", "p50 ms", "p99 ms", "rejected", "in ms at most", "waited in vain")
    title = f"1,024 callers come to 32 permits, {hold_s * 1000:.0f} ms each, with {timeout_ms} ms"
    return Table(title, columns, tuple(rows), slug="gates-waits")


def main(*, quick: bool = False) -> Iterator[Table]:
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    yield uncontended(rounds=rounds, scale=scale)
    yield contended(rounds=rounds, scale=scale)
    yield waits()


if __name__ == "__main__":
    from tests.benchmarks.harness import show

    for table in main():
        show(table)
