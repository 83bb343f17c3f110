"""
The purgatory: an operation is parked, an event comes, it completes.

Beside the cycle stand its peers, and the *floor*: what no purgatory in Python can avoid, and nothing else. Allocate the
operation, call the user's ``try_complete`` three times (before and after watching, and at the event), complete it and
call ``on_complete`` once, one dict insert a key, one timer insert, and take both out again. The floor is written into
the loop, so that it doesn't even pay for the two calls into a library; it serves one thread and one key only.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.benchmarks.harness import Case, Table, compare, say

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["FloorOperation", "Ready", "cycle", "cycle_beside_peers", "floor", "main"]

DELAY_MS = 300_000


class Ready(DelayedOperation):
    """Completes when it is told that it may."""

    __slots__ = ("ready",)

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        pass


class FloorOperation:
    """The least that an operation can be."""

    __slots__ = ("completed", "deadline_ns", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.completed = False

    def force_complete(self) -> bool:
        if self.completed:
            return False
        self.completed = True
        self.on_complete()
        return True

    def on_complete(self) -> None:
        raise NotImplementedError


class FloorReady(FloorOperation):
    """The same user's class as :class:`Ready`, on the least base there can be."""

    __slots__ = ("ready",)

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        pass


@contextlib.contextmanager
def cycle(keys: int = 1, *, make: Callable[[int], Ready] = Ready) -> Iterator[Run]:
    """Ours: park under so many keys, then an event on the first."""
    with DelayedOperationPurgatory("bench") as purgatory:

        def run(n: int) -> None:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            names = [f"topic-{key}" for key in range(keys)]
            first = names[0]
            for _ in range(n):
                operation = make(DELAY_MS)
                park(operation, names)
                operation.ready = True
                check(first)

        yield run
        assert purgatory.parked == 0


@contextlib.contextmanager
def floor() -> Iterator[Run]:
    """See the module's header."""

    def run(n: int) -> None:
        now = time.monotonic_ns
        by_key: dict[str, FloorReady] = {}
        bucket: dict[FloorReady, None] = {}
        for _ in range(n):
            operation = FloorReady(DELAY_MS)
            if not operation.try_complete():
                by_key["topic-0"] = operation
                if not operation.try_complete():
                    operation.deadline_ns = now() + operation.delay_ms * 1_000_000
                    bucket[operation] = None
            operation.ready = True
            found = by_key["topic-0"]
            if found.try_complete():
                del bucket[found], by_key["topic-0"]

    yield run


@contextlib.contextmanager
def wait_for() -> Iterator[Run]:
    """asyncio: a future is awaited under ``wait_for``, and fulfilled when its turn comes."""
    loop = asyncio.new_event_loop()

    async def work(n: int) -> None:
        for _ in range(n):
            future = loop.create_future()
            loop.call_soon(future.set_result, True)
            await asyncio.wait_for(future, DELAY_MS / 1000)

    yield lambda n: loop.run_until_complete(work(n))
    loop.close()


@contextlib.contextmanager
def thread_each() -> Iterator[Run]:
    """A thread a request, waiting for an event of its own."""

    def run(n: int) -> None:
        for _ in range(n):
            event = threading.Event()
            thread = threading.Thread(target=event.wait, args=(DELAY_MS / 1000,))
            thread.start()
            event.set()
            thread.join()

    yield run


@contextlib.contextmanager
def _pooled(
    wait: Callable[[object, threading.Semaphore], None], make: Callable[[], object], wake: Callable[[object], None]
) -> Iterator[Run]:
    """A thread that is there already waits, and is woken."""
    requests: queue.SimpleQueue[object] = queue.SimpleQueue()
    parked, done = threading.Semaphore(0), threading.Semaphore(0)

    def serve() -> None:
        while (request := requests.get()) is not None:
            wait(request, parked)
            done.release()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def run(n: int) -> None:
        for _ in range(n):
            request = make()
            requests.put(request)
            parked.acquire()
            wake(request)
            done.acquire()

    yield run
    requests.put(None)
    thread.join()


def event_each() -> contextlib.AbstractContextManager[Run]:
    """A pooled thread waits on a ``threading.Event`` made for the request."""

    def wait(event: threading.Event, parked: threading.Semaphore) -> None:
        parked.release()
        event.wait(DELAY_MS / 1000)

    return _pooled(wait, threading.Event, threading.Event.set)


def condition_each() -> contextlib.AbstractContextManager[Run]:
    """A pooled thread waits on a ``threading.Condition`` made for the request."""

    def wait(condition: threading.Condition, parked: threading.Semaphore) -> None:
        with condition:
            parked.release()
            condition.wait(DELAY_MS / 1000)

    def wake(condition: threading.Condition) -> None:
        with condition:
            condition.notify()

    return _pooled(wait, threading.Condition, wake)


def cycle_beside_peers(*, rounds: int = 15, scale: float = 1.0) -> Table:
    """The cycle with one key."""
    cases = [
        Case("purgatory", cycle, 10_000),
        Case("the floor", floor, 30_000),
        Case("asyncio.wait_for on a future", wait_for, 2_000),
        Case("threading.Event, pooled thread", event_each, 500),
        Case("threading.Condition, pooled thread", condition_each, 500),
        Case("a thread a request", thread_each, 100),
    ]
    return compare(
        "purgatory: park -> satisfy, one key",
        cases,
        rounds=rounds,
        scale=scale,
        note="reach: asyncio.wait_for 6x the purgatory's time or more; the floor 0.67x or more",
    )


def main(*, quick: bool = False) -> list[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("purgatory: park -> satisfy")
    return [cycle_beside_peers(rounds=rounds, scale=scale)]
