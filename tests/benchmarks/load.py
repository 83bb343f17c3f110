"""
A load of requests as a broker sees it: ``python -m tests.benchmarks.load --num 500000 --rate 100000``.

Requests arrive at random (a Poisson process of the given rate), each is parked under some keys drawn from a key space,
and is completed by another thread after a latency drawn from a log-normal distribution, which is given by its median
and its upper quartile. A request whose latency is beyond the timeout is left to the purgatory to expire.

All random numbers are drawn before the clock starts. Arrivals and completions keep to the millisecond: a thread that is
ahead of its time sleeps, one that is behind goes on at full speed. So as long as the actual rate is the target rate,
the load is held. When it falls behind, one process can do no more, generator included.

The last line, tab-separated: milliseconds from the first arrival to the last, target rate, actual rate, milliseconds of
processor time of the whole process until everything was answered.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import statistics
import sys
import threading
import time
from array import array
from collections import deque
from typing import Any

import attrs
import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory

__all__ = ["Load", "Outcome", "main", "run"]

#: The upper quartile of the standard normal distribution.
_QUARTILE = statistics.NormalDist().inv_cdf(0.75)


def _option(meaning: str, default: float, valid: Any = None) -> Any:
    return attrs.field(default=default, validator=valid, metadata={"meaning": meaning})


_FROM_1 = attrs.validators.ge(1)
_ABOVE_0 = attrs.validators.gt(0)


@attrs.frozen
class Load:
    """The load. Each field is an option of the command."""

    num: int = _option("how many requests", 500_000, _FROM_1)
    rate: float = _option("requests a second, on the average", 100_000.0, _ABOVE_0)
    timeout_ms: int = _option("when a request expires, in ms", 200, _FROM_1)
    pct50_ms: float = _option("median of the latency, in ms", 20.0, _ABOVE_0)
    pct75_ms: float = _option("upper quartile of the latency, in ms", 60.0, _ABOVE_0)
    keys: int = _option("keys a request is parked under", 3, _FROM_1)
    key_space_size: int = _option("out of so many keys", 100, _FROM_1)
    seed: int = _option("what is drawn is the same for the same seed", 1)

    def __attrs_post_init__(self) -> None:
        if self.pct75_ms < self.pct50_ms:
            raise ValueError(f"pct75 ({self.pct75_ms}) must not be less than pct50 ({self.pct50_ms})")
        if self.keys > self.key_space_size:
            raise ValueError(f"keys ({self.keys}) must not be more than key-space-size ({self.key_space_size})")

    def arrivals_ms(self) -> array[int]:
        """When each request arrives, in whole milliseconds from the start."""
        draw = random.Random(self.seed)
        times = array("q")
        at_ms = 0.0
        for _ in range(self.num):
            at_ms += draw.expovariate(self.rate) * 1000
            times.append(int(at_ms))
        return times

    def latencies_ms(self) -> array[int]:
        """How long each takes, in whole milliseconds, rounded up."""
        draw = random.Random(self.seed + 1)
        mu = math.log(self.pct50_ms)
        sigma = (math.log(self.pct75_ms) - mu) / _QUARTILE
        longest = 10 * self.timeout_ms  # whatever is beyond the timeout is all the same
        return array("q", [math.ceil(min(draw.lognormvariate(mu, sigma), longest)) for _ in range(self.num)])

    def key_sets(self) -> list[tuple[str, ...]]:
        """A thousand sets of keys, to go round in."""
        draw = random.Random(self.seed + 2)
        space = [f"key-{number}" for number in range(self.key_space_size)]
        return [tuple(draw.sample(space, self.keys)) for _ in range(1000)]


@attrs.frozen
class Outcome:
    """What came of it.

    Attributes:
        elapsed_ms: from the first arrival to the last.
        target_rate: requests a second, as drawn.
        actual_rate: requests a second, as parked.
        cpu_ms: processor time of the process, until everything was answered.
        completed: requests completed in time.
        expired: requests that expired.
        peak: the most that were parked at a time, as seen every now and then.
    """

    elapsed_ms: float
    target_rate: float
    actual_rate: float
    cpu_ms: float
    completed: int
    expired: int
    peak: int


class Request(DelayedOperation):
    """Waits to be completed from outside."""

    __slots__ = ("complete_ms",)
    complete_ms: int

    def try_complete(self) -> bool:
        return False


class Completer(threading.Thread):
    """Completes requests when their latency has passed."""

    def __init__(self, start_s: float) -> None:
        super().__init__(name="completer")
        self.start_s = start_s
        self.coming: deque[Request] = deque()
        self.stopped = False

    def run(self) -> None:
        calendar: dict[int, list[Request]] = {}
        coming, done_ms = self.coming, -1
        while True:
            stopped = self.stopped
            now_ms = int((time.perf_counter() - self.start_s) * 1000)
            late: list[Request] = []
            for _ in range(len(coming)):
                request = coming.popleft()
                at_ms = request.complete_ms
                if at_ms <= done_ms:
                    late.append(request)
                elif (there := calendar.get(at_ms)) is None:
                    calendar[at_ms] = [request]
                else:
                    there.append(request)
            for request in late:
                request.force_complete()
            while done_ms < now_ms:
                done_ms += 1
                for request in calendar.pop(done_ms, ()):
                    request.force_complete()
            if stopped and not calendar and not coming:
                return
            time.sleep(0.001)


def run(load: Load) -> Outcome:
    """Put a purgatory under a load."""
    arrivals, latencies, key_sets = load.arrivals_ms(), load.latencies_ms(), load.key_sets()
    timeout_ms, count = load.timeout_ms, len(key_sets)
    peak = 0
    with DelayedOperationPurgatory[Request]("load") as purgatory:
        park = purgatory.try_complete_else_watch
        cpu_s, start_s = time.process_time(), time.perf_counter()
        completer = Completer(start_s)
        completer.start()
        complete_later = completer.coming.append
        now_ms = -1
        for number, arrival_ms in enumerate(arrivals):
            while arrival_ms > now_ms:
                now_ms = int((time.perf_counter() - start_s) * 1000)
                if arrival_ms > now_ms:
                    time.sleep((arrival_ms - now_ms) / 1000)
            request = Request(timeout_ms)
            latency_ms = latencies[number]
            if latency_ms < timeout_ms:
                request.complete_ms = max(arrival_ms, now_ms) + latency_ms
                complete_later(request)
            park(request, key_sets[number % count])
            if not number & 0xFFFF:
                peak = max(peak, purgatory.parked)
        elapsed_s = time.perf_counter() - start_s
        peak = max(peak, purgatory.parked)
        completer.stopped = True
        completer.join()
        while purgatory.parked:
            time.sleep(0.005)
        cpu_s = time.process_time() - cpu_s
        totals = purgatory.totals()
    return Outcome(
        elapsed_ms=elapsed_s * 1000,
        target_rate=load.num / max(arrivals[-1], 1) * 1000,
        actual_rate=load.num / elapsed_s,
        cpu_ms=cpu_s * 1000,
        completed=load.num - totals.expired,
        expired=totals.expired,
        peak=peak,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.load",
        description=__doc__.strip().partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for field in attrs.fields(Load):
        option = "--" + field.name.removesuffix("_ms").replace("_", "-")
        meaning = field.metadata["meaning"]
        parser.add_argument(option, dest=field.name, type=type(field.default), default=field.default, help=meaning)
    try:
        load = Load(**vars(parser.parse_args(argv)))
    except ValueError as error:
        parser.error(str(error.args[0]))
    outcome = run(load)
    print(f"completed {outcome.completed:,}, expired {outcome.expired:,}, parked at most {outcome.peak:,}")
    print("elapsed ms", "target rate", "actual rate", "process CPU ms", sep="\t")
    print(
        f"{outcome.elapsed_ms:.0f}\t{outcome.target_rate:.1f}\t{outcome.actual_rate:.1f}\t{outcome.cpu_ms:.0f}",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    # Nothing of a purgatory's coming and going between the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main())
