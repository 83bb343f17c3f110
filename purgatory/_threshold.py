"""Waiting for numbers to rise: a high watermark, a committed offset, a version; one, or one for each of many keys.

Each threshold that somebody waits for is a watch key; a heap of a number's distinct thresholds says which of them a new
value reaches. So everything else, deadlines, exactly-once, shutdown, is the purgatory's.

Order matters in two places. A waiter's threshold is put in the heap *before* it is parked, and a new value is set
*before* the heap is looked at: a value that rises in between finds the key, or the waiter's second check finds the
value.

A threshold whose waiters have all gone otherwise stays in the heap until the heap has doubled since it was last tidied.

**Many numbers** share one purgatory, one timer and one set of shards; what a number has for itself is a value, a lock
and its heap. Rejected: a purgatory for each, which is several kilobytes and, unless the timer is shared, a thread.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from purgatory._events.outcome import Outcome
from purgatory._operations.operation import DelayedOperation, Operation
from purgatory._purgatory.purgatory import DelayedOperationPurgatory
from purgatory._support.edition import CORE
from purgatory._support.errors import InvalidSetting, WaitDrained, unhashable
from purgatory._support.fork import free, start_over_in_child
from timer import checked_delay_ms

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory._purgatory.snapshot import PurgatorySnapshot, ShutdownReport
    from timer import Timer

__all__ = ["KeyedThresholdPurgatory", "ThresholdPurgatory"]


#: Thresholds without waiters that a heap may hold in any case.
_SPARE = 64


class ThresholdWait(Operation):
    """What of a waiter may be native: not the hook that answers, as in ``purgatory._future``."""

    __slots__ = ("error", "future", "number", "threshold", "value")

    def __init__(self, threshold: int, delay_ms: int, number: _Number) -> None:
        super().__init__(delay_ms)
        self.threshold = threshold
        self.number = number
        self.future: Future[int] = Future()
        self.value: int | None = None
        self.error: BaseException | None = None

    def try_complete(self) -> bool:
        """Complete if the number is high enough, or gone."""
        error = self.number.error
        if error is not None:
            self.error = error
            return self.force_complete()
        value = self.number.value
        if value is None or value < self.threshold:
            return False
        self.value = value
        return self.force_complete()


if not TYPE_CHECKING and CORE is not None:
    ThresholdWait = CORE.ThresholdWait


class _Waiter(ThresholdWait, DelayedOperation):
    """Waits until a number has reached a threshold."""

    __slots__ = ()

    def on_complete(self) -> None:
        try:
            if self.drained:
                name = self._home.observers.name
                self.future.set_exception(WaitDrained(name, f"the value reached {self.threshold}"))
            elif self.outcome is Outcome.EXPIRED:
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


class _Number:
    """One number that rises, and the thresholds that are waited for.

    Args:
        purgatory: where its waiters wait.
        watch_key: the key that those of a threshold wait under.
        value: what it is.

    Attributes:
        error: what its waiters fail with, from the moment that the number is gone.
    """

    __slots__ = ("_arriving", "_heap", "_known", "_lock", "_most", "_purgatory", "_watch_key", "error", "value")

    def __init__(
        self, purgatory: DelayedOperationPurgatory[_Waiter], watch_key: Callable[[int], Hashable], value: int | None
    ) -> None:
        self._purgatory = purgatory
        self._watch_key = watch_key
        self._lock = threading.Lock()
        self._heap: list[int] = []
        self._known: set[int] = set()  # what the heap holds
        self._most = _SPARE  # how many it may hold before it is tidied
        self._arriving: Counter[int] = Counter()  # thresholds of waiters on their way into the purgatory
        self.value = value
        self.error: BaseException | None = None

    def start_over(self) -> None:
        """In a forked child, where another thread may have had the lock, and stopped between two lines behind it."""
        self._lock = threading.Lock()
        self._heap = sorted(self._known)  # what goes into the heap is known before, and until it is out

    def wait(self, threshold: int, timeout_ms: int) -> Future[int]:
        """A future for the first value at or above ``threshold``."""
        _whole("threshold", threshold)
        waiter = _Waiter(threshold, timeout_ms, self)
        with self._lock:
            if len(self._heap) > self._most:
                self._tidy()
            if threshold not in self._known:
                self._known.add(threshold)
                heapq.heappush(self._heap, threshold)
            self._arriving[threshold] += 1
        try:
            self._purgatory.try_complete_else_watch(waiter, [self._watch_key(threshold)])
        finally:
            with self._lock:
                self._arriving[threshold] -= 1
                if not self._arriving[threshold]:
                    del self._arriving[threshold]
        waiter.future.add_done_callback(lambda _: waiter.cancel())
        return waiter.future

    def rise(self, value: int) -> int:
        """Complete the waiters at or below a value; how many."""
        _whole("value", value)
        with self._lock:
            if self.value is None or value > self.value:
                self.value = value
            reached = []
            while self._heap and self._heap[0] <= self.value:
                threshold = heapq.heappop(self._heap)
                self._known.discard(threshold)
                reached.append(threshold)
        return self._check(reached)

    def waiters(self) -> list[_Waiter]:
        """Who waits."""
        with self._lock:
            thresholds = list(self._known)
        return [
            waiter
            for threshold in thresholds
            for waiter in self._purgatory.operations_for_key(self._watch_key(threshold))
        ]

    def end(self, error: BaseException) -> int:
        """Fail whoever waits, and whoever will; how many that do."""
        with self._lock:
            self.error = error
            thresholds = list(self._known)
        return self._check(thresholds)

    def _check(self, thresholds: Iterable[int]) -> int:
        return sum(self._purgatory.check_and_complete(self._watch_key(threshold)) for threshold in thresholds)

    def _tidy(self) -> None:
        """Forget the thresholds that nobody waits for. The lock is held."""
        self._heap = [
            threshold
            for threshold in self._heap
            if threshold in self._arriving or self._purgatory.operations_for_key(self._watch_key(threshold))
        ]
        heapq.heapify(self._heap)
        self._known = set(self._heap)
        self._most = max(_SPARE, 2 * len(self._heap))


def _whole(setting: str, value: object) -> None:
    if type(value) is not int:
        raise InvalidSetting(setting, value, "an int")


def _complete(waiters: Iterable[_Waiter], *, value: int | None = None, error: BaseException | None = None) -> int:
    completed = 0
    for waiter in waiters:
        waiter.value, waiter.error = value, error
        completed += waiter.force_complete()
    return completed


class _Thresholds:
    """What a purgatory of one number and one of many have in common."""

    __slots__ = ("__weakref__", "_purgatory")

    def __init__(self, name: str, timer: Timer | None, shards: int, *, reaper_enabled: bool) -> None:
        self._purgatory: DelayedOperationPurgatory[_Waiter] = DelayedOperationPurgatory(
            name, timer=timer, shards=shards, reaper_enabled=reaper_enabled
        )

    def start_over(self) -> None:
        """In a forked child: the locks of the numbers, and of the futures that wait."""
        for number in self._all():
            number.start_over()
        for waiter in self._purgatory.operations():
            free(waiter.future)

    def _all(self) -> Iterable[_Number]:
        raise NotImplementedError

    @property
    def purgatory(self) -> DelayedOperationPurgatory[DelayedOperation]:
        """The purgatory that the waiters wait in."""
        return self._purgatory  # type: ignore[return-value]  # nobody parks in it but this

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return self._purgatory.parked

    def fail_all(self, error: BaseException) -> int:
        """Fail every waiter with ``error``. Returns how many."""
        return _complete(self._purgatory.operations(), error=error)

    def snapshot(self) -> PurgatorySnapshot:
        """The purgatory as it is now."""
        return self._purgatory.snapshot()

    def shutdown(self) -> ShutdownReport[Any]:
        """Fail whoever waits with ``WaitDrained``, which is a ``PurgatoryClosed`` and a ``TimeoutError``, and stop."""
        return self._purgatory.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


class ThresholdPurgatory(_Thresholds):
    """Futures on a number that only rises.

    Small enough to have one for each job or stream, if they share a ``timer``; for a number a key, see
    :class:`KeyedThresholdPurgatory`.

    Args:
        name: names it in logs and metrics.
        timer: expires the waiters; one of its own, with a thread, if not given.
        value: what the number is at first; None: nothing yet.
        reaper_enabled: if False, the timer is driven by whoever calls its ``advance_clock``.
        shards: how many parts the watch lists are split in.

    >>> with ThresholdPurgatory("high-watermark") as watermark:
    ...     third = watermark.wait(3, timeout_ms=5_000)
    ...     watermark.maybe_complete(2)
    ...     watermark.maybe_complete(4)
    ...     third.result()
    0
    1
    4
    """

    __slots__ = ("_number",)

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        value: int | None = None,
        reaper_enabled: bool = True,
        shards: int = 1,
    ) -> None:
        if value is not None:
            _whole("value", value)
        super().__init__(name, timer, shards, reaper_enabled=reaper_enabled)
        self._number = _Number(self._purgatory, int, value)
        start_over_in_child(self)

    @property
    def value(self) -> int | None:
        """The highest value so far; None before the first."""
        return self._number.value

    def wait(self, threshold: int, timeout_ms: int) -> Future[int]:
        """A future for the first value at or above ``threshold``; it fails with ``TimeoutError`` if the time is up.

        If the purgatory is shut down first, it fails with ``WaitDrained``, a ``TimeoutError`` as well.
        Completing or cancelling the future from outside takes the waiter out.

        Raises:
            InvalidSetting: the threshold is no whole number.
            PurgatoryClosed: the purgatory is shut down.
        """
        return self._number.wait(threshold, timeout_ms)

    def maybe_complete(self, value: int) -> int:
        """Raise the value, completing every waiter at or below it. A lower value than before changes nothing.

        Returns:
            How many waiters this call completed.

        Raises:
            InvalidSetting: the value is no whole number.
        """
        return self._number.rise(value)

    def complete_all(self, value: int) -> int:
        """Complete every waiter with ``value``, whatever it waits for; the number itself stays. Returns how many."""
        _whole("value", value)
        return _complete(self._purgatory.operations(), value=value)

    def _all(self) -> Iterable[_Number]:
        return (self._number,)


class KeyedThresholdPurgatory(_Thresholds):
    """Futures on many numbers that only rise, each under a key: a watermark a partition, a version a document.

    A number is there from the first call that names its key until :meth:`forget`.

    Args:
        name: names it in logs and metrics.
        timer: expires the waiters; one of its own, with a thread, if not given.
        reaper_enabled: if False, the timer is driven by whoever calls its ``advance_clock``.
        shards: how many parts the watch lists are split in.

    >>> with KeyedThresholdPurgatory("high-watermarks") as watermarks:
    ...     third = watermarks.wait("orders-0", 3, timeout_ms=5_000)
    ...     watermarks.maybe_complete("orders-1", 7)
    ...     watermarks.maybe_complete("orders-0", 4)
    ...     third.result()
    0
    1
    4
    """

    __slots__ = ("_numbers",)

    def __init__(self, name: str, *, timer: Timer | None = None, reaper_enabled: bool = True, shards: int = 64) -> None:
        super().__init__(name, timer, shards, reaper_enabled=reaper_enabled)
        self._numbers: dict[Hashable, _Number] = {}
        start_over_in_child(self)

    def keys(self) -> list[Hashable]:
        """The keys of the numbers that there are."""
        return list(self._numbers)

    def value(self, key: Hashable) -> int | None:
        """The highest value of a number so far; None before the first."""
        number = self._find(key)
        return None if number is None else number.value

    def wait(self, key: Hashable, threshold: int, timeout_ms: int) -> Future[int]:
        """A future for a number's first value at or above ``threshold``, which fails with ``TimeoutError`` after that.

        Completing or cancelling the future from outside takes the waiter out.

        Raises:
            InvalidSetting: the threshold is no whole number.
            PurgatoryClosed: the purgatory is shut down.
            UnhashableKey: the key has no hash.
        """
        _whole("threshold", threshold)
        checked_delay_ms(timeout_ms)  # also before there is a number for the key
        return self._number(key).wait(threshold, timeout_ms)

    def maybe_complete(self, key: Hashable, value: int) -> int:
        """Raise a number, completing every waiter at or below it. A lower value than before changes nothing.

        Returns:
            How many waiters this call completed.

        Raises:
            InvalidSetting: the value is no whole number.
            UnhashableKey: the key has no hash.
        """
        _whole("value", value)
        return self._number(key).rise(value)

    def complete(self, key: Hashable, value: int) -> int:
        """Complete every waiter of one number with ``value``; the number itself stays. Returns how many."""
        _whole("value", value)
        return _complete(self._waiters(key), value=value)

    def fail(self, key: Hashable, error: BaseException) -> int:
        """Fail every waiter of one number with ``error``; the number itself stays. Returns how many."""
        return _complete(self._waiters(key), error=error)

    def forget(self, key: Hashable, error: BaseException) -> int:
        """The number is no more: fail its waiters with ``error``. Who names the key again starts afresh.

        Returns:
            How many waiters this call failed.
        """
        number = None if self._find(key) is None else self._numbers.pop(key, None)
        return 0 if number is None else number.end(error)

    def _all(self) -> Iterable[_Number]:
        return self._numbers.values()

    def _waiters(self, key: Hashable) -> list[_Waiter]:
        number = self._find(key)
        return [] if number is None else number.waiters()

    def _number(self, key: Hashable) -> _Number:
        number = self._find(key)
        if number is None:
            fresh = _Number(self._purgatory, lambda threshold: (key, threshold), None)
            number = self._numbers.setdefault(key, fresh)  # one step: of two threads both get the first one's
        return number

    def _find(self, key: Hashable) -> _Number | None:
        try:
            return self._numbers.get(key)
        except TypeError:
            raise unhashable([key]) from None
