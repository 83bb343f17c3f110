"""
The purgatory: an operation is parked, an event comes, it completes.

The cycle is compared with its peers and with the *baseline*: the least that any purgatory in Python must do. Allocate
the operation, call the user's ``try_complete`` three times (before and after watching, and at the event), complete it
and call ``on_complete`` once, one dict insert per key, one timer insert, and remove both. The baseline is written into
the loop, so it does not pay for the two calls into a library. It serves one thread and one key only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import queue
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory import DelayedFuture, DelayedOperation, DelayedOperationPurgatory, ThresholdPurgatory
from tests.benchmarks.harness import Case, Table, compared, say

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["BaselineOperation", "Ready", "baseline", "cycle", "cycle_beside_peers", "main", "ready_on"]

DELAY_MS = 300_000

#: What a thread waits for on behalf of a request.
Asked = TypeVar("Asked")


def ready_on(base: Any) -> Any:
    """A user's class on this base: its operations complete when the benchmark allows it."""

    class Ready(base):  # type: ignore[misc]
        __slots__ = ("ready",)

        def __init__(self, delay_ms: int) -> None:
            super().__init__(delay_ms)
            self.ready = False

        def try_complete(self) -> bool:
            return self.ready and self.force_complete()

        def on_complete(self) -> None:
            pass

    return Ready


Ready: Any = ready_on(DelayedOperation)


class Direct(Ready):  # type: ignore[misc]
    """The same, begun without ``super()``, whose cell free-threaded CPython 3.13 has all threads wait at."""

    __slots__ = ()

    def __init__(self, delay_ms: int) -> None:
        DelayedOperation.__init__(self, delay_ms)
        self.ready = False  # type: ignore[misc]  # the slot is the base's


class Bare(DelayedOperation):
    """Carries nothing, so that only the library is measured."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False


class BaselineOperation:
    """The least that an operation can be."""

    __slots__ = ("completed", "deadline_ns", "delay_ms")
    deadline_ns: int

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


#: The same user's class, on the least base there can be.
FloorReady = ready_on(BaselineOperation)


@contextlib.contextmanager
def cycle(
    keys: int = 1, *, make: Callable[[int], Any] = Ready, kind: Callable[[str], Any] = DelayedOperationPurgatory
) -> Iterator[Run]:
    """Ours: park under several keys, then an event on the first."""
    with kind("bench") as purgatory:

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
def ready_made() -> Iterator[Run]:
    """A ``DelayedFuture`` for each cycle, all on one future, whose state is set by hand: its own work is not ours."""
    with DelayedOperationPurgatory("bench") as purgatory:

        def answered(_: object) -> None:
            pass

        def run(n: int) -> None:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            names, first = ["topic-0"], "topic-0"
            future: Future[None] = Future()
            futures = (future,)
            for _ in range(n):
                future._state = "PENDING"
                park(DelayedFuture(DELAY_MS, futures, answered), names)
                future._state = "FINISHED"
                check(first)

        yield run
        assert purgatory.parked == 0


@contextlib.contextmanager
def threshold() -> Iterator[Run]:
    """A future for the next number each time, and the number comes."""
    with ThresholdPurgatory("bench", value=0) as numbers:
        following = itertools.count(1)

        def run(n: int) -> None:
            wait, rise = numbers.wait, numbers.maybe_complete
            for number in itertools.islice(following, n):
                wait(number, DELAY_MS)
                rise(number)

        yield run
        assert numbers.num_waiting == 0


@contextlib.contextmanager
def fulfilled() -> Iterator[Run]:
    """The cost of a future by itself: it is made, called back from, and fulfilled."""

    def run(n: int) -> None:
        for _ in range(n):
            future: Future[int] = Future()
            future.add_done_callback(id)
            future.set_result(1)

    yield run


@contextlib.contextmanager
def baseline() -> Iterator[Run]:
    """See the module's header."""

    def run(n: int) -> None:
        now = time.monotonic_ns
        by_key: dict[str, Any] = {}
        bucket: dict[Any, None] = {}
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
    """One thread per request, waiting for an event of its own."""

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
    wait: Callable[[Asked, threading.Semaphore], None], make: Callable[[], Asked], wake: Callable[[Asked], None]
) -> Iterator[Run]:
    """A thread that is there already waits, and is woken."""
    requests: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
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


@compared(
    "purgatory: park -> satisfy, one key",
    note="reach: the baseline 0.95x the native implementation's time or more",
    slug="cycle-peers",
)
def cycle_beside_peers() -> list[Case]:
    """The cycle with one key."""
    return [
        Case("purgatory", cycle, 10_000),
        Case("the baseline", baseline, 30_000),
        Case("asyncio.wait_for on a future", wait_for, 2_000),
        Case("threading.Event, pooled thread", event_each, 500),
        Case("threading.Condition, pooled thread", condition_each, 500),
        Case("a thread a request", thread_each, 100),
    ]


@compared("purgatory: park -> satisfy, ready-made operations", note="ratio: to the baseline", slug="cycle-ready-made")
def cycle_ready_made() -> list[Case]:
    """The cycle with the operations that the library brings along."""
    return [
        Case("the baseline", baseline, 30_000),
        Case("purgatory", cycle, 10_000),
        Case("DelayedFuture, its future's own work left out", ready_made, 10_000),
        Case("ThresholdPurgatory, its future's included", threshold, 3_000),
        Case("a future by itself, fulfilled", fulfilled, 5_000),
    ]


@contextlib.contextmanager
def threads(number: int, *, make: Callable[[int], Any] = Ready, own: bool = False) -> Iterator[Run]:
    """The cycle in several threads at once, on keys of their own. *n* operations altogether.

    With ``own`` each has a purgatory, and a timer, of its own.
    """
    with contextlib.ExitStack() as stack:
        purgatories = [stack.enter_context(DelayedOperationPurgatory("bench")) for _ in range(number if own else 1)]

        def work(index: int, n: int, together: threading.Barrier) -> None:
            purgatory = purgatories[index % len(purgatories)]
            # All of them this thread's own: what threads share, if only to read it, is counted at by each of them.
            park, check, new = purgatory.try_complete_else_watch, purgatory.check_and_complete, make
            key, delay_ms = f"topic-{index}", DELAY_MS + index
            names = [key]
            together.wait()
            began.append(time.perf_counter())
            for _ in range(n):
                operation = new(delay_ms)
                park(operation, names)
                operation.ready = True
                check(key)
            ended.append(time.perf_counter())

        began: list[float] = []
        ended: list[float] = []

        def run(n: int) -> float:
            together = threading.Barrier(number)
            began.clear()
            ended.clear()
            workers = [
                threading.Thread(target=work, args=(index, n // number or 1, together)) for index in range(number)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return max(ended) - min(began)

        yield run
        assert all(purgatory.parked == 0 for purgatory in purgatories)


@compared(
    "purgatory: park -> satisfy by keys an operation",
    note="An event on the first key completes; whoever completes it takes it out of the others.",
    slug="cycle-keys",
)
def cycle_by_keys(*, keys: tuple[int, ...] = (1, 2, 3, 8, 16)) -> list[Case]:
    """The cycle by keys an operation. One of them gets the event."""
    return [Case(f"{number} key{'s' * (number > 1)}", functools.partial(cycle, number), 5_000) for number in keys]


@contextlib.contextmanager
def rotation(
    number: int, *, make: Callable[[int], Any] = Ready, kind: Callable[[str], Any] = DelayedOperationPurgatory
) -> Iterator[Run]:
    """The cycle under many keys in rotation: each falls idle before it is used again."""
    keys = [[("topic", place)] for place in range(number)]
    with kind("bench") as purgatory:
        turn = itertools.cycle(keys)

        def run(n: int) -> None:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            for _ in range(n):
                key = next(turn)
                operation = make(DELAY_MS)
                park(operation, key)
                operation.ready = True
                check(key[0])

        run(number)
        yield run
        assert purgatory.parked == 0


@compared(
    "purgatory: park -> satisfy by keys in rotation",
    note="One operation at a time, under the next key; 1,000 idle keys are remembered.",
    slug="cycle-rotation",
)
def cycle_by_rotation(*, numbers: tuple[int, ...] = (1_000, 1_100, 100_000)) -> list[Case]:
    """The cycle by how many keys take turns. Beyond ``purge_interval`` each is forgotten, and made again."""
    return [Case(f"{number:,} keys", functools.partial(rotation, number), 5_000) for number in numbers]


@compared(
    "purgatory: park -> satisfy in threads",
    note=(
        "Wall time an operation, whichever thread does it: 1.00 means that a second thread costs nothing, 0.50 that\n"
        "it does as much as the first, as it can where there is no global lock."
    ),
    slug="cycle-threads",
)
def cycle_by_threads() -> list[Case]:
    """Throughput with two threads on disjoint keys."""
    return [
        Case("1 thread", functools.partial(threads, 1, make=Direct), 10_000),
        Case("2 threads", functools.partial(threads, 2, make=Direct), 20_000),
        Case("4 threads", functools.partial(threads, 4, make=Direct), 20_000),
        Case("2 threads, a purgatory and a timer each", functools.partial(threads, 2, make=Direct, own=True), 20_000),
        Case("1 thread, operations begun by super()", functools.partial(threads, 1), 10_000),
        Case("2 threads, operations begun by super()", functools.partial(threads, 2), 20_000),
    ]


def parked_bytes(parked: int, keys: int | None) -> tuple[float, float]:
    """Bytes a parked one-key operation takes, by tracemalloc and by resident set. For a process of its own.

    Keys, and whatever else the user's operation would hold, are not in it. With ``keys=None`` each has its own key.
    """
    names = [[f"topic-{number}"] for number in range(keys or parked)]

    def park(purgatory: DelayedOperationPurgatory[Bare]) -> None:
        for number in range(parked):
            purgatory.try_complete_else_watch(Bare(DELAY_MS), names[number % len(names)])

    # Two populations, each from nothing: a dict that outgrows its table would be counted whole, and the old one not.
    with DelayedOperationPurgatory[Bare]("bench") as purgatory:
        gc.collect()
        before = resident_bytes()
        park(purgatory)
        resident = resident_bytes() - before
        purgatory.shutdown("cancel")
    with DelayedOperationPurgatory[Bare]("bench") as purgatory:
        gc.collect()
        tracemalloc.start()
        park(purgatory)
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        purgatory.shutdown("cancel")
    return traced / parked, resident / parked


def memory(*, parked: int = 200_000) -> Table:
    """Memory of a parked operation, with 100 keys and with a key each."""
    rows = []
    for keys, what in ((100, "100 keys"), (None, "a key each")):
        code = f"from tests.benchmarks.bench_purgatory import parked_bytes; print(*parked_bytes({parked}, {keys}))"
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        traced, resident = map(float, out.splitlines()[-1].split())
        rows.append((what, round(traced), round(resident)))
    return Table(
        f"purgatory: bytes a parked one-key operation, {parked:,} parked",
        ("keys", "tracemalloc", "resident"),
        tuple(rows),
        "reach: 176 and 290 bytes, as on the JVM; the pure implementation 400 and 700",
        "memory",
    )


def resident_bytes() -> int:
    """The process's resident set."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    rounds, scale = (3, 0.1) if quick else (15, 1.0)
    say("purgatory: park -> satisfy")
    yield cycle_beside_peers(rounds=rounds, scale=scale)
    yield cycle_ready_made(rounds=rounds, scale=scale)
    yield cycle_by_keys(rounds=rounds, scale=scale)
    yield cycle_by_rotation(rounds=rounds, scale=scale)
    yield cycle_by_threads(rounds=rounds, scale=scale)
    say("purgatory: memory")
    yield memory(parked=20_000 if quick else 200_000)
