"""How long operations were parked and how long their callbacks took, as histograms that are cheap to update.

An observation is one ``list.append`` of whole nanoseconds. Observations are sorted into buckets at a scrape, or when
:data:`FOLD_AT` of them have come together. The bucket of a value is its ``bit_length``, so one pass in C sorts all of
them. So buckets are powers of two, as those of the timer's lateness are.

Rejected: ``prometheus_client.Histogram``, whose ``labels().observe()`` walks the buckets and takes two locks. It took
1.4 µs per observation, and the list takes 0.05 µs. A whole park and satisfy cycle takes less than 4 µs.

Every method may be called from any thread. The list operations used here are atomic in both builds.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from purgatory import Observer, Outcome
from timer._fork import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from purgatory import DelayedOperation
    from purgatory._readings import Observed

#: How many observations wait to be folded before an observer folds them.
FOLD_AT: Final = 4096

#: Exponents of the buckets exported: 2**14 ns (16 us) to 2**37 ns (137 s). Greater values are in +Inf.
EXPONENTS: Final = range(14, 38)

_SATISFIED: Final = Outcome.SATISFIED
_IMMEDIATE: Final = Outcome.IMMEDIATE
_CANCELLED: Final = Outcome.CANCELLED


def cumulative_buckets(counts: Sequence[int], exponents: Iterable[int]) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets from counts by power of two: entry *i* counts values less than ``2**i`` ns."""
    buckets: list[tuple[str, float]] = []
    total, counted = 0, 0
    for exponent in exponents:
        total += sum(counts[counted : exponent + 1])
        counted = exponent + 1
        buckets.append((repr(2**exponent / 1e9), float(total)))
    buckets.append(("+Inf", float(sum(counts))))
    return buckets


class PowerHistogram:
    """Counts of nanoseconds by power of two.

    Attributes:
        pending: append an observation. Call :meth:`fold` when there are more than :data:`FOLD_AT`.
    """

    __slots__ = ("__weakref__", "_counts", "_lock", "_sum_ns", "pending")

    def __init__(self) -> None:
        self.pending: list[int] = []
        self._counts = [0] * 65
        self._sum_ns = 0
        self._lock = new_lock()

    def fold(self) -> Observed:
        """Sort the new observations into buckets. Returns all counts, and the sum in nanoseconds."""
        pending = self.pending
        with self._lock:
            # Other threads only append meanwhile. Copying a slice, deleting it and appending are atomic.
            taken = pending[: len(pending)]
            del pending[: len(taken)]
            for bucket, number in Counter(map(int.bit_length, taken)).items():
                self._counts[min(bucket, 64)] += number
            self._sum_ns += sum(taken)
            return tuple(self._counts), self._sum_ns


def _measure_parked(
    histograms: dict[Outcome, PowerHistogram], now_ns: Callable[[], int]
) -> Callable[[DelayedOperation, Outcome, BaseException | None], None]:
    # A closure and not a method: it runs for every operation.
    when_satisfied = histograms[_SATISFIED].pending
    satisfied, immediate, most = _SATISFIED, _IMMEDIATE, FOLD_AT

    def finished(operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:  # noqa: ARG001
        if outcome is satisfied:
            pending = when_satisfied
        elif outcome is immediate:
            return
        else:
            pending = histograms[outcome].pending
        # created_ns, as extend() moves the deadline. An operation without a deadline completed before the timer had it.
        pending.append(now_ns() - operation.created_ns if operation.deadline_ns != 0 else 0)
        if len(pending) > most:
            histograms[outcome].fold()

    return finished


class ParkedTime(Observer):
    """An observer of one purgatory: seconds from parking until the operation's hooks have ended, by outcome.

    Coroutine hooks run later in a task of their own, and their time is not included.

    Attach it with ``purgatory.attach`` or give it as one of ``observers``. ``register(histograms=True)`` does it for
    every purgatory. An operation that completed at once was never parked.

    Args:
        now_ns: the clock of the purgatory's timer.
    """

    __slots__ = ("_histograms", "finished")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._histograms: dict[Outcome, PowerHistogram] = {
            outcome: PowerHistogram() for outcome in Outcome if outcome is not _IMMEDIATE
        }
        finished = _measure_parked(self._histograms, now_ns)  # a closure is quicker than a method
        if not TYPE_CHECKING:
            self.finished = finished

    def read(self) -> dict[str, Observed]:
        """Nanoseconds parked, by outcome."""
        return {outcome.value: histogram.fold() for outcome, histogram in self._histograms.items()}


class CallbackTime(Observer):
    """An observer of one purgatory: how long ``on_complete`` and ``on_expiration`` took, together.

    ``register(callbacks=True)`` attaches one to every purgatory.
    """

    __slots__ = ("_began", "_histogram", "_now_ns")

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._began: dict[DelayedOperation, int] = {}
        self._histogram = PowerHistogram()

    def leaving(self, operation: DelayedOperation, /) -> None:
        """Note when the outcome was decided: now the callbacks begin."""
        self._began[operation] = self._now_ns()

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:  # noqa: ARG002
        """Take in how long the callbacks took."""
        began_ns = self._began.pop(operation, None)
        # None: attached while the operation was on its way out. Nothing is called for one that is taken out.
        if began_ns is not None and outcome is not _CANCELLED:
            pending = self._histogram.pending
            pending.append(self._now_ns() - began_ns)
            if len(pending) > FOLD_AT:
                self._histogram.fold()

    def read(self) -> Observed:
        """Nanoseconds from the decision to the end of the last callback."""
        return self._histogram.fold()
