"""A number that only rises, and the thresholds that operations wait for.

Each threshold that is waited for is a watch key. A heap of the distinct thresholds gives those that a new value
reaches. The cost of an event depends on the completed operations only. The purgatory provides deadlines, exactly-once
completion and shutdown.

Order matters in two places. A waiter's threshold is put in the heap *before* it is parked, and a new value is set
*before* the heap is read. If the value rises in between, either the event finds the key, or the second check of the
waiter finds the value.

A threshold whose waiters expired or were cancelled stays in the heap until the heap has doubled. Then it is compacted.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from purgatory._operations.operation import Operation
from purgatory._support.edition import CORE, native_class
from purgatory._support.errors import InvalidSetting, unhashable
from timer._fork import new_rlock

if TYPE_CHECKING:
    from purgatory._operations.operation import DelayedOperation

#: The key of the number that has no key.
NO_KEY: Final = None

#: How many thresholds without waiters a heap may hold in any case.
_SPARE = 64


class CheckablePurgatory(Protocol):
    """A purgatory, for threads or for asyncio, that the waiters of a number are parked in."""

    def check_and_complete_all(self, keys: Iterable[Hashable], /) -> int: ...

    def operations_for_key(self, key: Hashable, /) -> list[Any]: ...


class ThresholdWait(Operation):
    """The data and the check of an operation that waits for a number. The native implementation replaces this class.

    Attributes:
        threshold: completes when the number is at least this.
        number: the number.
        answer: the value and the error that :func:`complete` gave it. None: it waits for the number.
        value: what the number was when the operation completed, or the value it was completed with.
        error: what the operation fails with instead.
    """

    # value and error are written by the thread that has the turn.
    __slots__ = ("answer", "error", "number", "threshold", "value")

    def __init__(self, threshold: int, delay_ms: int, number: Number) -> None:
        super().__init__(delay_ms)
        self.threshold = threshold
        self.number = number
        self.answer: tuple[int | None, BaseException | None] | None = None
        self.value: int | None = None
        self.error: BaseException | None = None

    def try_complete(self) -> bool:
        """Complete if the number has reached the threshold or was forgotten, or if there is an answer."""
        if self.answer is not None:
            self.value, self.error = self.answer
            return self.force_complete()
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
    ThresholdWait = native_class(ThresholdWait)


class Number:
    """One number that rises, and the thresholds that are waited for.

    Args:
        purgatory: where its waiters are parked.
        watch_key: the key that the waiters of a threshold are parked under.
        value: the first value.

    Attributes:
        error: what its waiters fail with after the number was forgotten.
    """

    __slots__ = ("_heap", "_known", "_lock", "_most", "_parking", "_purgatory", "_watch_key", "error", "value")

    def __init__(
        self, purgatory: CheckablePurgatory, watch_key: Callable[[int], Hashable], value: int | None = None
    ) -> None:
        self._purgatory = purgatory
        self._watch_key = watch_key
        self._lock = new_rlock()  # re-entrant, because _compact() calls the users' keys, whose code may fork
        self._heap: list[int] = []
        self._known: set[int] = set()  # the thresholds in the heap
        self._most = _SPARE  # the heap is compacted when it is longer than this
        self._parking: Counter[int] = Counter()  # thresholds of waiters that are being parked
        self.value = value
        self.error: BaseException | None = None

    def after_fork(self) -> None:
        """Repair the heap in a forked child. Another thread may have been changing it."""
        self._heap = sorted(self._known.union(self._heap))
        self._known = set(self._heap)

    def park(self, threshold: int, park: Callable[[Sequence[Hashable]], bool]) -> bool:
        """Put a threshold in the heap, then return ``park([its key])``."""
        with self._lock:
            if len(self._heap) > self._most:
                self._compact()
            self._put(threshold)
            self._parking[threshold] += 1
        try:
            return park([self._watch_key(threshold)])
        finally:
            with self._lock:
                self._parking[threshold] -= 1
                if not self._parking[threshold]:
                    del self._parking[threshold]

    def rise(self, value: int) -> int:
        """Complete the waiters at or below a value. Returns how many. The caller has checked the value."""
        reached: list[int] = []
        try:
            with self._lock:
                if self.value is None or value > self.value:
                    self.value = value
                while self._heap and self._heap[0] <= self.value:
                    reached.append(self._heap[0])
                    self._known.discard(self._heap[0])
                    heapq.heappop(self._heap)
            return self._check(reached)
        except BaseException:  # this thread is interrupted: the next value reaches the thresholds again
            with self._lock:
                for threshold in reached:
                    self._put(threshold)
            raise

    def waiters(self) -> list[DelayedOperation]:
        """The operations that wait for this number."""
        with self._lock:
            thresholds = list(self._known)
        return [
            waiter
            for threshold in thresholds
            for waiter in self._purgatory.operations_for_key(self._watch_key(threshold))
        ]

    def end(self, error: BaseException) -> int:
        """Fail the waiters, and those that arrive later. Returns how many of the present ones this call failed."""
        with self._lock:
            self.error = error
            thresholds = list(self._known)
        return self._check(thresholds)

    def _check(self, thresholds: Sequence[int]) -> int:
        """Check the waiters of some thresholds. If this thread is interrupted, the retrier makes the checks."""
        return self._purgatory.check_and_complete_all([*map(self._watch_key, thresholds)])

    def _put(self, threshold: int) -> None:
        """Put a threshold in the heap. The lock is held.

        If an interrupt comes between the two steps, the threshold may be there twice, which does no harm.
        """
        if threshold not in self._known:
            heapq.heappush(self._heap, threshold)
            self._known.add(threshold)

    def _compact(self) -> None:
        """Forget the thresholds that nothing waits for. The lock is held."""
        self._heap = [
            threshold
            for threshold in self._heap
            if threshold in self._parking or self._purgatory.operations_for_key(self._watch_key(threshold))
        ]
        heapq.heapify(self._heap)
        self._known = set(self._heap)
        self._most = max(_SPARE, 2 * len(self._heap))


def complete(
    waiters: Iterable[DelayedOperation], *, value: int | None = None, error: BaseException | None = None
) -> int:
    """Complete waiters with a value or an error, whatever their thresholds. Returns how many this thread completed."""
    completed = 0
    for waiter in waiters:
        assert isinstance(waiter, ThresholdWait)
        # A check in place of force_complete(): only the thread that has the turn writes the value and the error.
        waiter.answer = value, error
        completed += waiter.maybe_try_complete()
    return completed


class Numbers:
    """The numbers of one purgatory, by key. The number without a key has the key None.

    Args:
        purgatory: where their waiters are parked.
    """

    __slots__ = ("_numbers", "_purgatory")

    def __init__(self, purgatory: CheckablePurgatory) -> None:
        self._purgatory = purgatory
        self._numbers: dict[Hashable, Number] = {}

    def keys(self) -> list[Hashable]:
        """The keys of the numbers that exist."""
        return list(self._numbers)

    def all(self) -> list[Number]:
        """The numbers that exist."""
        return list(self._numbers.values())

    def get(self, key: Hashable) -> Number:
        """The number of a key. It exists from now on."""
        number = self.find(key)
        if number is None:
            fresh = Number(self._purgatory, int if key is NO_KEY else partial(_watch_key, key))
            number = self._numbers.setdefault(key, fresh)  # atomic: two threads get the same number
        return number

    def find(self, key: Hashable) -> Number | None:
        """The number of a key, or None if there is none."""
        try:
            return self._numbers.get(key)
        except TypeError as error:
            raise unhashable([key], error) from None

    def value(self, key: Hashable) -> int | None:
        """The highest value of a number so far. None before the first."""
        number = self.find(key)
        return None if number is None else number.value

    def rise(self, key: Hashable, value: int) -> int:
        """Raise a number, and complete its waiters at or below it. Returns how many."""
        check_int("value", value)
        return self.get(key).rise(value)

    def complete(self, key: Hashable, *, value: int | None = None, error: BaseException | None = None) -> int:
        """Complete every waiter of a number with a value or an error. Returns how many."""
        if error is None:
            check_int("value", value)
        else:
            check_exception(error)
        number = self.find(key)
        return 0 if number is None else complete(number.waiters(), value=value, error=error)

    def forget(self, key: Hashable, error: BaseException) -> int:
        """Forget a number and fail its waiters. Returns how many."""
        check_exception(error)
        number = None if self.find(key) is None else self._numbers.pop(key, None)
        return 0 if number is None else number.end(error)


def _watch_key(key: Hashable, threshold: int) -> Hashable:
    return key, threshold


def check_int(setting: str, value: object) -> None:
    """Raise ``InvalidSetting`` unless a threshold or a value is an ``int``."""
    if type(value) is not int:
        raise InvalidSetting(setting, value, "an int")


def check_exception(error: object) -> None:
    """Raise ``InvalidSetting`` unless waiters can fail with an error. The threads that wait would find it too late."""
    if not isinstance(error, BaseException):
        raise InvalidSetting("error", error, "an exception, such as RuntimeError('closed')")
