"""Waiting for a number to rise: a high watermark, a committed offset, a version.

Each threshold that somebody waits for is a watch key; a heap of the distinct thresholds says which keys a new value
reaches. So everything else, deadlines, exactly-once, shutdown, is the purgatory's.

Order matters in two places. A waiter's threshold is put in the heap *before* it is parked, and a new value is set
*before* the heap is looked at: a value that rises in between finds the key, or the waiter's second check finds the
value.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING

from purgatory._errors import InvalidSetting
from purgatory._operation import DelayedOperation
from purgatory._outcome import Outcome
from purgatory._purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory._snapshot import PurgatorySnapshot, ShutdownReport
    from timer import Timer

__all__ = ["ThresholdPurgatory"]


#: Thresholds without waiters that the heap may hold in any case.
_SPARE = 64


class _Waiter(DelayedOperation):
    """Waits until the purgatory's value has reached a threshold."""

    __slots__ = ("error", "future", "owner", "threshold", "value")

    def __init__(self, threshold: int, delay_ms: int, owner: ThresholdPurgatory) -> None:
        super().__init__(delay_ms)
        self.threshold = threshold
        self.owner = owner
        self.future: Future[int] = Future()
        self.value: int | None = None
        self.error: BaseException | None = None

    def try_complete(self) -> bool:
        value = self.owner.value
        if value is None or value < self.threshold:
            return False
        self.value = value
        return self.force_complete()

    def on_complete(self) -> None:
        try:
            if self.outcome is Outcome.EXPIRED:
                self.future.set_exception(
                    TimeoutError(f"the value did not reach {self.threshold} within {self.delay_ms} ms")
                )
            elif self.error is not None:
                self.future.set_exception(self.error)
            else:
                assert self.value is not None
                self.future.set_result(self.value)
        except InvalidStateError:
            return  # completed from outside at this very moment: that answer stands


class ThresholdPurgatory:
    """Futures on a number that only rises.

    >>> with ThresholdPurgatory("high-watermark") as watermark:
    ...     third = watermark.wait(3, timeout_ms=5_000)
    ...     watermark.maybe_complete(2)
    ...     watermark.maybe_complete(4)
    ...     third.result()
    0
    1
    4
    """

    __slots__ = ("_arriving", "_heap", "_known", "_lock", "_purgatory", "_value")

    def __init__(
        self, name: str, *, timer: Timer | None = None, value: int | None = None, reaper_enabled: bool = True
    ) -> None:
        self._purgatory: DelayedOperationPurgatory[_Waiter] = DelayedOperationPurgatory(
            name, timer=timer, reaper_enabled=reaper_enabled
        )
        self._lock = threading.Lock()
        self._heap: list[int] = []
        self._known: set[int] = set()  # what the heap holds
        self._arriving: Counter[int] = Counter()  # thresholds of waiters on their way into the purgatory
        self._value = value

    @property
    def value(self) -> int | None:
        """The highest value so far; None before the first."""
        return self._value

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return self._purgatory.parked

    def wait(self, threshold: int, timeout_ms: int) -> Future[int]:
        """A future for the first value at or above ``threshold``; it fails with ``TimeoutError`` if the time is up.

        Completing or cancelling the future from outside takes the waiter out.

        Raises:
            InvalidSetting: the threshold is no whole number.
            PurgatoryClosed: the purgatory is shut down.
        """
        if type(threshold) is not int:
            raise InvalidSetting("threshold", threshold, "a whole number")
        waiter = _Waiter(threshold, timeout_ms, self)
        with self._lock:
            if len(self._heap) > _SPARE and len(self._heap) > 2 * self._purgatory.parked:
                # Thresholds whose waiters have all gone otherwise.
                awaited = {waiting.threshold for waiting in self._purgatory.operations()} | set(self._arriving)
                self._heap = sorted(awaited)
                self._known = awaited
            if threshold not in self._known:
                self._known.add(threshold)
                heapq.heappush(self._heap, threshold)
            self._arriving[threshold] += 1
        try:
            self._purgatory.try_complete_else_watch(waiter, [threshold])
        finally:
            with self._lock:
                self._arriving[threshold] -= 1
                if not self._arriving[threshold]:
                    del self._arriving[threshold]
        waiter.future.add_done_callback(lambda _: waiter.cancel())
        return waiter.future

    def maybe_complete(self, value: int) -> int:
        """Raise the value, completing every waiter at or below it. A lower value than before changes nothing.

        Returns:
            How many waiters this call completed.
        """
        with self._lock:
            if self._value is None or value > self._value:
                self._value = value
            reached = []
            while self._heap and self._heap[0] <= self._value:
                threshold = heapq.heappop(self._heap)
                self._known.discard(threshold)
                reached.append(threshold)
        return sum(self._purgatory.check_and_complete(threshold) for threshold in reached)

    def complete_all(self, value: int) -> int:
        """Complete every waiter with ``value``, whatever it waits for; the number itself stays. Returns how many."""
        completed = 0
        for waiter in self._purgatory.operations():
            waiter.value = value
            completed += waiter.force_complete()
        return completed

    def fail_all(self, error: BaseException) -> int:
        """Fail every waiter with ``error``. Returns how many."""
        failed = 0
        for waiter in self._purgatory.operations():
            waiter.error = error
            failed += waiter.force_complete()
        return failed

    def snapshot(self) -> PurgatorySnapshot:
        """The purgatory as it is now."""
        return self._purgatory.snapshot()

    def shutdown(self) -> ShutdownReport:
        """Fail whoever waits with ``TimeoutError``, and stop."""
        return self._purgatory.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
