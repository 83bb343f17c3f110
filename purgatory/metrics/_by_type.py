"""Operations by their type: how many left, how they left, and how long they had been parked. Optional and bounded.

The library's own counters do not know types. ``register(types=True)`` attaches an observer to every purgatory, which
notes type, outcome and time of each operation that leaves, by one ``list.append``. Notes are added up at a scrape, or
when :data:`FOLD_AT` of them have come together.

**Bounded**: the first :data:`MOST_TYPES` types of a purgatory's name get a series. Operations of further types count
under ``other``, because a program that makes classes as it runs must not flood Prometheus. The labels are
``__qualname__``, as in the log and the journal.

Purgatories of one name share one series. Its counts are kept for as long as a purgatory of that name lives.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily

from purgatory import Observer, Outcome
from purgatory._readings import encodable
from purgatory.metrics._attach import AttachedObservers
from purgatory.metrics._histograms import FOLD_AT
from timer._fork import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from prometheus_client.core import Metric

    from purgatory import DelayedOperation, DelayedOperationPurgatory

#: Types of one purgatory that get a series of their own.
MOST_TYPES: Final = 50
#: What all further types are counted under.
OTHER: Final = "other"


class _TypeCounts:
    """The counts of the purgatories of one name.

    Attributes:
        pending: notes that are not added up yet: type, outcome, nanoseconds parked.
    """

    def __init__(self) -> None:
        self.pending: list[tuple[type, Outcome, int]] = []
        self._lock = new_lock()
        self._names: set[str] = set()
        self._left: Counter[tuple[str, Outcome]] = Counter()
        self._parked_ns: Counter[str] = Counter()

    def fold(self) -> tuple[Counter[tuple[str, Outcome]], Counter[str]]:
        """Add up the notes. Returns how many left by type and outcome, and nanoseconds parked by type."""
        pending = self.pending
        with self._lock:
            # Other threads only append meanwhile. Copying a slice, deleting it and appending are atomic.
            taken = pending[: len(pending)]
            del pending[: len(taken)]
            for kind, outcome, parked_ns in taken:
                name = kind.__qualname__
                if name not in self._names:
                    if len(self._names) < MOST_TYPES:
                        self._names.add(name)
                    else:
                        name = OTHER
                self._left[name, outcome] += 1
                self._parked_ns[name] += parked_ns
            return self._left.copy(), self._parked_ns.copy()


class _TypeObserver(Observer):
    """The observer of one purgatory."""

    def __init__(self, counts: _TypeCounts, now_ns: Callable[[], int]) -> None:
        self._counts = counts
        self._now_ns = now_ns

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:  # noqa: ARG002
        """Note type, outcome and time parked."""
        pending = self._counts.pending
        # An operation without a deadline was never parked, or it completed before the timer had it.
        parked_ns = self._now_ns() - operation.created_ns if operation.deadline_ns != 0 else 0
        pending.append((type(operation), outcome, parked_ns))
        if len(pending) > FOLD_AT:
            self._counts.fold()


class ByType:
    """Counts the operations of every live purgatory by type, once started."""

    def __init__(self) -> None:
        # The observers hold the counts. So they live as long as a purgatory of its name.
        self._by_name: weakref.WeakValueDictionary[str, _TypeCounts] = weakref.WeakValueDictionary()
        self._lock = new_lock()
        self._attached = AttachedObservers(self._make)
        self._started = False

    def start(self) -> None:
        """Count, from now on. Once is enough."""
        self._started = True
        self._attached.start()

    def stop(self) -> None:
        """Count no more."""
        self._started = False
        self._attached.stop()
        self._by_name.clear()

    def describe(self) -> tuple[CounterMetricFamily, CounterMetricFamily]:
        """The families without samples."""
        return _left(), _parked()

    def families(self, names: Collection[str]) -> Iterator[Metric]:
        """The counts of the live purgatories, or nothing if the option is off."""
        if not self._started:
            return
        left, parked = self.describe()
        for name, counts in sorted(self._by_name.copy().items()):
            if name not in names:
                continue
            by_outcome, parked_ns = counts.fold()
            for (kind, outcome), number in sorted(by_outcome.items(), key=str):
                left.add_metric([name, kind, outcome.value], number)
            for kind, total_ns in sorted(parked_ns.items()):
                parked.add_metric([name, kind], total_ns / 1e9)
        yield left
        yield parked

    def _make(self, member: DelayedOperationPurgatory[Any]) -> _TypeObserver:
        now_ns = time.monotonic_ns if member.timer is None else member.timer.now_ns
        with self._lock:
            return _TypeObserver(self._by_name.setdefault(encodable(member.name), _TypeCounts()), now_ns)


def _left() -> CounterMetricFamily:
    return CounterMetricFamily(
        "purgatory_operations_by_type",
        "Operations that left, by type and outcome.",
        labels=["purgatory", "operation", "outcome"],
    )


def _parked() -> CounterMetricFamily:
    return CounterMetricFamily(
        "purgatory_time_parked_by_type_seconds",
        "Seconds from parking until the hooks have ended, coroutine hooks excluded, summed over operations that left.",
        labels=["purgatory", "operation"],
    )
