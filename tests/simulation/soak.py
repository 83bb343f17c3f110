"""A long run under load, at the edge of capacity: is everything answered once, and does it stay the same size?

``python -m tests.simulation.soak --seconds 3600``. Threads park, check, cancel and force at a steady rate. A third of
the operations wait under a key that is never checked, most have a deadline a day away, some fall due within
milliseconds, and the purgatory is full now and then. At the end it is shut down, and the books must balance.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import attrs
import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull

CAPACITY = 5_000
DAY_MS = 86_400_000


class Books:
    """Counts that several threads keep. Each has a page of its own."""

    def __init__(self):
        self.pages = []
        self.local = threading.local()
        self.closing = False

    def page(self):
        page = getattr(self.local, "page", None)
        if page is None:
            page = self.local.page = {}
            self.pages.append(page)
        return page

    def note(self, what, number=1):
        page = self.page()
        page[what] = page.get(what, 0) + number

    def sum(self, what):
        return sum(page.get(what, 0) for page in self.pages)


class Request(DelayedOperation):
    """One request. It knows how often it was answered."""

    def __init__(self, delay_ms, books, lateness):
        super().__init__(delay_ms)
        self.books = books
        self.lateness = lateness
        self.ready = False
        self.answers = 0

    def try_complete(self):
        return self.ready and self.force_complete()

    def on_complete(self):
        self.answers += 1
        self.books.note("answered")
        if self.answers > 1:
            self.books.note("doubled")

    def on_expiration(self):
        self.books.note("expired")
        if self.books.closing:
            return  # a shutdown expires before the time
        late_ns = time.monotonic_ns() - self.deadline_ns
        if late_ns < 0 and self.delay_ms < DAY_MS:
            self.books.note("early")
        if self.delay_ms < DAY_MS:
            self.lateness.append(late_ns)


@attrs.frozen
class SoakReport:
    """The result of a soak."""

    seconds: float
    operations: int
    refused: int
    checks: int
    answered: int
    taken_out: int
    doubled: int
    lost: int
    early: int
    threads_left: int
    rss_start_mib: float
    rss_end_mib: float
    slope_kib_per_minute: float
    late_p50_ms: float
    late_p99_ms: float
    late_p999_ms: float
    late_max_ms: float
    most_parked: int
    most_watched: int
    shutdown_ms: float

    @property
    def is_clean(self):
        """Whether nothing was doubled, lost or early, and no thread was left."""
        return not (self.doubled or self.lost or self.early or self.threads_left)


def rss_kib():
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


def slope(points):
    """The least-squares slope of (x, y) points. 0 for fewer than two."""
    count = len(points)
    if count < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def worker(purgatory, books, lateness, stop, seed, rate):
    """Park and complete at a steady rate."""
    draw = random.Random(seed)
    mine = []
    period = 1 / rate
    numbers = itertools.count()
    following = time.monotonic()
    while not stop.is_set():
        number = next(numbers)
        keys = [f"topic-{draw.randrange(200)}"]
        if number % 3 == 0:
            keys.append(("quiet", seed, number % 50_000))  # a key of its own that is never checked
        request = Request(draw.choice((1, 5, 20, 200, DAY_MS, DAY_MS, DAY_MS, DAY_MS)), books, lateness)
        try:
            purgatory.try_complete_else_watch(request, keys)
            books.note("operations")
            if request.delay_ms == DAY_MS:
                mine.append((request, keys[0]))
        except PurgatoryFull:
            books.note("refused")
        # Wait until there are a thousand and more, then answer, so that the purgatory is about full.
        while len(mine) > 1_400 + 300 * (number // 4_000 % 2):
            request, key = mine.pop(draw.randrange(len(mine)))
            if draw.random() < 0.9:
                request.ready = True
                purgatory.check_and_complete(key)
                books.note("checks")
            elif draw.random() < 0.5:
                request.force_complete()
            elif request.cancel():
                books.note("taken_out")
        if number % 20_000 == 19_999:
            books.note("taken_out", len(purgatory.cancel_for_key(f"topic-{draw.randrange(200)}")))
        following += period
        pause = following - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        else:
            following = time.monotonic()  # the machine is slower than the rate: no backlog
    books.note("done")


def soak(seconds, *, threads=3, rate=800, tell=None):
    """Run for a given time and report."""
    books, lateness, stop = Books(), [], threading.Event()
    gc.collect()
    before = threading.active_count()
    purgatory = DelayedOperationPurgatory("soak", max_parked=CAPACITY)
    workers = [
        threading.Thread(target=worker, args=(purgatory, books, lateness, stop, seed, rate), name=f"soak-{seed}")
        for seed in range(threads)
    ]
    started = time.monotonic()
    for thread in workers:
        thread.start()
    sizes, most_parked, most_watched = [], 0, 0
    samples = max(20, int(seconds))
    quantiles = Quantiles()
    while (now := time.monotonic() - started) < seconds:
        time.sleep(min(seconds / samples, max(0.0, seconds - now)))
        quantiles.take(lateness)
        sizes.append(((time.monotonic() - started) / 60, rss_kib()))
        most_parked = max(most_parked, purgatory.parked)
        most_watched = max(most_watched, purgatory.watched)
        if tell is not None and len(sizes) % 60 == 0:
            tell(f"{now:8.0f} s  {sizes[-1][1] / 1024:8.1f} MiB  {books.sum('operations')} operations")
    stop.set()
    for thread in workers:
        thread.join(30)
    taken_out = books.sum("taken_out")
    books.closing = True
    report = purgatory.shutdown()
    quantiles.take(lateness)
    give_up = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < give_up:
        time.sleep(0.01)
    settled = sizes[len(sizes) // 3 :]  # the first third fills the purgatory and the interpreter's pools
    operations, answered = books.sum("operations"), books.sum("answered")
    totals = purgatory.totals()
    assert totals.cancelled == taken_out, f"{totals}, {taken_out} taken out"
    p50, p99, p999, most = quantiles.of(0.5, 0.99, 0.999, 1)
    return SoakReport(
        seconds=seconds,
        operations=operations,
        refused=books.sum("refused"),
        checks=books.sum("checks"),
        answered=answered,
        taken_out=taken_out,
        doubled=books.sum("doubled"),
        lost=operations - answered - taken_out + books.sum("doubled"),
        early=books.sum("early"),
        threads_left=threading.active_count() - before,
        rss_start_mib=statistics.median(rss for _, rss in settled[:9]) / 1024,
        rss_end_mib=statistics.median(rss for _, rss in settled[-9:]) / 1024,
        slope_kib_per_minute=slope(settled),
        late_p50_ms=p50,
        late_p99_ms=p99,
        late_p999_ms=p999,
        late_max_ms=most,
        most_parked=most_parked,
        most_watched=most_watched,
        shutdown_ms=report.elapsed_ms,
    )


class Quantiles:
    """Counts of lateness by tenth of a millisecond: of one size, however long the run."""

    def __init__(self):
        self.counts = [0] * 100_000

    def take(self, nanoseconds):
        """Count what a list holds so far, and take it out."""
        for _ in range(len(nanoseconds)):
            tenths = nanoseconds.pop() // 100_000
            self.counts[min(max(tenths, 0), len(self.counts) - 1)] += 1

    def of(self, *shares):
        """The lateness, in milliseconds, that so large a share does not exceed."""
        total = sum(self.counts)
        found = []
        for share in shares:
            seen, answer = 0, 0
            for tenths, count in enumerate(self.counts):
                seen += count
                if count:
                    answer = tenths + 1
                if seen >= share * total:
                    break
            found.append(answer / 10)
        return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--rate", type=float, default=800, help="operations a second and thread")
    arguments = parser.parse_args()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
    report = soak(arguments.seconds, threads=arguments.threads, rate=arguments.rate, tell=print)
    for name, value in attrs.asdict(report).items():
        print(f"{name:<24}{value:>14,.1f}" if isinstance(value, float) else f"{name:<24}{value:>14,}")
    return 0 if report.is_clean else 1


def _drop(logger, name, event):
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
