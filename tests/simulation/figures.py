"""Figures for docs/reliability.md that no other program gives: ``python -m tests.simulation.figures``.

Time to shut down with many parked operations. The memory that a completed operation still uses. The longest hold of
each lock under load. The last uses a private copy of the core whose locks carry a clock.
"""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections import defaultdict
from types import SimpleNamespace

import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.explore.edition import Edition
from tests.explore.scheduler import TakenByWith

NAMES = {
    "timer/_intake.py": "timer's intake",
    "timer/_dispatch.py": "dispatcher (figures)",
    "purgatory/_core/shards.py": "shard",
    "purgatory/_core/places.py": "places",
    "purgatory/_core/purgatory.py": "shutdown",
    "purgatory/_core/idle_keys.py": "idle keys",
    "purgatory/_core/retrier.py": "retrier",
}


class Request(DelayedOperation):
    """Completes when ready."""

    ready = False

    def try_complete(self):
        return self.ready and self.force_complete()


def shutdown_ms(count):
    """Milliseconds to shut down, by expiring, with many parked operations."""
    purgatory = DelayedOperationPurgatory("figures")
    for number in range(count):
        purgatory.try_complete_else_watch(Request(86_400_000), [number % 1000])
    return purgatory.shutdown(timeout_ms=60_000).elapsed_ms


def retained_bytes(count):
    """Bytes that the purgatory still holds, an operation, after all completed through one of two keys each.

    The other key is never checked again: before a purge, and after it.
    """
    with DelayedOperationPurgatory("figures", purge_interval=10 * count) as purgatory:
        warm = Request(86_400_000)
        purgatory.try_complete_else_watch(warm, ["busy", "quiet"])
        warm.force_complete()
        purgatory.purge()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            request = Request(86_400_000)
            purgatory.try_complete_else_watch(request, ["busy", f"quiet-{number % 100}"])
            request.ready = True
            purgatory.check_and_complete("busy")
        del request
        gc.collect()
        unpurged = tracemalloc.get_traced_memory()[0] - before
        purgatory.purge()
        gc.collect()
        purged = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return unpurged / count, purged / count


class TimedLock(TakenByWith):
    """A lock that notes how long it was held, and whose it is."""

    holds = defaultdict(list)

    def __init__(self, lock, name):
        self._lock = lock
        self._name = name
        self._since = 0
        self._depth = 0

    def acquire(self, blocking=True, timeout=-1):
        got = self._lock.acquire(blocking, timeout)
        if got:
            self._depth += 1
            if self._depth == 1:
                self._since = time.perf_counter_ns()
        return got

    def release(self):
        self._depth -= 1
        if not self._depth:
            self.holds[self._name].append(time.perf_counter_ns() - self._since)
        self._lock.release()


def lock_holds(seconds):
    """For each lock: how often it was held, the median, the 99.9th percentile and the longest, in microseconds."""
    edition = Edition()
    for module in edition.modules:
        if not hasattr(module, "threading"):
            continue
        name = next((NAMES[end] for end in NAMES if module.__file__.endswith(end)), None)
        if name is not None:
            real = {attribute: getattr(threading, attribute) for attribute in dir(threading)}
            real["Lock"] = lambda name=name: TimedLock(threading.Lock(), name)
            real["RLock"] = lambda name=name: TimedLock(threading.RLock(), name)
            module.threading = SimpleNamespace(**real)
    core = edition.purgatory

    class Request(core.DelayedOperation):
        ready = False

        def try_complete(self):
            return self.ready and self.force_complete()

    stop = time.monotonic() + seconds
    with core.DelayedOperationPurgatory("figures") as purgatory:

        def work(seed):
            number = seed
            while time.monotonic() < stop:
                number += 7
                request = Request((2, 30, 86_400_000)[number % 3])
                key = number % 50
                purgatory.try_complete_else_watch(request, [key, ("quiet", number % 1000)])
                if number % 2:
                    request.ready = True
                    purgatory.check_and_complete(key)
                time.sleep(0.0005)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = {}
    for name, holds in sorted(TimedLock.holds.items()):
        holds.sort()
        table[name] = (
            len(holds),
            *(holds[min(int(len(holds) * share), len(holds) - 1)] / 1000 for share in (0.5, 0.999, 1)),
        )
    return table


def main():
    structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
    for count in (1_000, 10_000, 100_000):
        print(f"shut down with {count:>7,} parked: {shutdown_ms(count):>9.1f} ms")
    unpurged, purged = retained_bytes(50_000)
    print(f"retained of a completed operation: {unpurged:.1f} bytes before a purge, {purged:.2f} after")
    print(f"{'lock':<24}{'holds':>10}{'median':>10}{'p99.9':>10}{'longest':>10}  us")
    for name, (count, *figures) in lock_holds(5).items():
        print(f"{name:<24}{count:>10,}" + "".join(f"{figure:>10.1f}" for figure in figures))


def _drop(logger, name, event):
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
