"""Numbers that only rise, such as a high watermark, a committed offset or a version, and waits for them.

``ThresholdPurgatory`` gives threads futures: on one number, or on one per key. ``purgatory.aio`` awaits them.

Each threshold that is waited for is a watch key. A heap of the distinct thresholds gives those that a new value
reaches. The cost of an event depends on the completed operations only.

**No value is missed.** A threshold is put in the heap *before* its waiter is parked. A new value is set *before* the
heap is read. So either the event finds the waiter, or the second check of the waiter finds the value. A compaction may
remove the threshold before its waiter is parked. So it is put in the heap again afterwards, and the waiter is checked
once more if the value has changed since.

A threshold whose waiters expired or were cancelled stays in the heap until the heap has doubled. Then it is compacted.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from purgatory._core.errors import InvalidSetting, WaitDrained, unhashable
from purgatory._core.operation import DelayedOperation
from purgatory._core.outcome import Outcome
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._core.subclasses import with_normal_ends
from timer._base import ShutdownOnExit
from timer._fork import call_after_fork, free_future, new_rlock
from timer._task import whole_delay_ms

if TYPE_CHECKING:
    from typing import Self

    from purgatory._core.snapshot import PurgatorySnapshot, ShutdownReport
    from timer import Timer

#: The key of the number that has no key.
NO_KEY: Final = None

#: How many thresholds without waiters a heap may hold in any case.
_SPARE = 64


class AnyPurgatory(Protocol):
    """A purgatory, for threads or for asyncio, that the waiters of a number are parked in."""

    @property
    def parked(self) -> int: ...

    def check_and_complete_all(self, keys: Iterable[Hashable], /) -> int: ...

    def operations(self) -> list[Any]: ...

    def operations_for_key(self, key: Hashable, /) -> list[Any]: ...

    def snapshot(self) -> PurgatorySnapshot: ...


class ThresholdWait(DelayedOperation):
    """An operation that waits for a number. Its subclasses say whom it answers.

    ``answer`` is the value and the error that :func:`_complete` gave it, or None. The operation completes with
    ``value``, or fails with ``error``. Only the thread that has the turn writes these two.
    """

    __slots__ = ("answer", "error", "number", "threshold", "value")

    def __init__(self, threshold: int, delay_ms: float | None, number: Number) -> None:
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


class Number:
    """One number that rises, and the thresholds that are waited for. If ``error`` is set, its waiters fail with it."""

    __slots__ = ("_heap", "_key", "_known", "_lock", "_most", "_purgatory", "error", "value")

    def __init__(self, purgatory: AnyPurgatory, key: Hashable) -> None:
        self._purgatory = purgatory
        self._key = key
        self._lock = new_rlock()  # re-entrant, because _compact() calls the users' keys, whose code may fork
        self._heap: list[int] = []
        self._known: set[int] = set()  # the thresholds in the heap
        self._most = _SPARE  # the heap is compacted when it is longer than this
        self.value: int | None = None
        self.error: BaseException | None = None

    def after_fork(self) -> None:
        """Repair the heap in a forked child: another thread may have been changing it."""
        self._heap = sorted(self._known.union(self._heap))
        self._known = set(self._heap)

    def park(self, threshold: int, park: Callable[[Sequence[Hashable]], bool]) -> bool:
        """Put a threshold in the heap, and return ``park([its key])``."""
        before = self.value
        try:
            with self._lock:
                self._put(threshold)
            return park([self._watch_key(threshold)])
        finally:
            with self._lock:
                self._put(threshold)  # a compaction may have removed it
                if len(self._heap) > self._most:
                    self._compact()
                has_changed = self.value != before or self.error is not None
            if has_changed:
                self._check([threshold])

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
        with self._lock:
            keys = [*map(self._watch_key, self._known)]
        return [waiter for key in keys for waiter in self._purgatory.operations_for_key(key)]

    def end(self, error: BaseException) -> int:
        """Fail the waiters, and those that arrive later. Returns how many of the present ones this call failed."""
        with self._lock:
            self.error = error
            thresholds = list(self._known)
        return self._check(thresholds)

    def _check(self, thresholds: Sequence[int]) -> int:
        """Check the waiters of some thresholds. If this thread is interrupted, the retrier makes the checks."""
        return self._purgatory.check_and_complete_all([*map(self._watch_key, thresholds)])

    def _watch_key(self, threshold: int) -> Hashable:
        return threshold if self._key is NO_KEY else (self._key, threshold)

    def _put(self, threshold: int) -> None:
        """Put a threshold in the heap. The lock is held. After an interrupt it may be there twice, without harm."""
        if threshold not in self._known:
            heapq.heappush(self._heap, threshold)
            self._known.add(threshold)

    def _compact(self) -> None:
        """Forget the thresholds that nothing waits for. The lock is held."""
        waiters = self._purgatory.operations_for_key
        self._known = {threshold for threshold in self._heap if waiters(self._watch_key(threshold))}
        self._heap = sorted(self._known)
        self._most = max(_SPARE, 2 * len(self._heap))


def _complete(
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
    """The numbers of one purgatory, by key. ``value`` is the first value of the number without a key."""

    __slots__ = ("_numbers", "_purgatory")

    def __init__(self, purgatory: AnyPurgatory, value: int | None) -> None:
        self._purgatory = purgatory
        self._numbers: dict[Hashable, Number] = {}
        if value is not None:
            self._number(NO_KEY).value = value

    def _number(self, key: Hashable) -> Number:
        """The number of a key. It exists from now on."""
        number = self._find(key)
        if number is None:
            number = self._numbers.setdefault(key, Number(self._purgatory, key))  # atomic: one number for all threads
        return number

    def _find(self, key: Hashable) -> Number | None:
        try:
            return self._numbers.get(key)
        except TypeError as error:
            raise unhashable([key], error) from None

    def _waiting(self, key: Hashable) -> list[DelayedOperation]:
        number = self._find(key)
        return [] if number is None else number.waiters()

    @property
    def value(self) -> int | None:
        """The highest value so far of the number without a key. None before the first."""
        return self.value_of(NO_KEY)

    def value_of(self, key: Hashable) -> int | None:
        """The highest value so far of a number. None before the first."""
        number = self._find(key)
        return None if number is None else number.value

    def keys(self) -> list[Hashable]:
        """The keys of the numbers that exist. The number without a key has the key None."""
        return list(self._numbers)

    def maybe_complete(self, value: int, *, key: Hashable = NO_KEY) -> int:
        """Raise a number, and complete every waiter at or below it. A lower value than before changes nothing.

        Returns:
            How many waiters this call completed. Those on another thread's event loop complete soon, and do not count.

        Raises:
            InvalidSetting: ``value`` is not an ``int``.
            UnhashableKey: the key has no hash.
        """
        check_int("value", value)
        return self._number(key).rise(value)

    def complete(self, value: int, *, key: Hashable = NO_KEY) -> int:
        """Complete every waiter of one number with ``value``. The number itself stays. Returns how many."""
        check_int("value", value)
        return _complete(self._waiting(key), value=value)

    def fail(self, error: BaseException, *, key: Hashable = NO_KEY) -> int:
        """Fail every waiter of one number with ``error``. The number itself stays. Returns how many.

        All waiters raise the one object, as all tasks do that await one ``asyncio.Future``.
        """
        _check_exception(error)
        return _complete(self._waiting(key), error=error)

    def forget(self, error: BaseException, *, key: Hashable = NO_KEY) -> int:
        """Forget a number until its key is used again, and fail its waiters with ``error``. Returns how many."""
        _check_exception(error)
        number = None if self._find(key) is None else self._numbers.pop(key, None)
        return 0 if number is None else number.end(error)

    def complete_all(self, value: int) -> int:
        """Complete every waiter of every number with ``value``. The numbers stay. Returns how many."""
        check_int("value", value)
        return _complete(self._purgatory.operations(), value=value)

    def fail_all(self, error: BaseException) -> int:
        """Fail every waiter of every number with ``error``. The numbers stay. Returns how many."""
        _check_exception(error)
        return _complete(self._purgatory.operations(), error=error)

    @property
    def num_waiting(self) -> int:
        """How many waiters there are."""
        return self._purgatory.parked

    def snapshot(self) -> PurgatorySnapshot:
        """The purgatory as it is now."""
        return self._purgatory.snapshot()


def check_int(setting: str, value: object) -> None:
    if type(value) is not int:
        raise InvalidSetting(setting, value, "an int")


def _check_exception(error: object) -> None:
    if not isinstance(error, BaseException):
        raise InvalidSetting("error", error, "an exception, such as RuntimeError('closed')")


class ThresholdWaiter(ThresholdWait):
    """Waits until a number has reached a threshold, and then completes a future."""

    __slots__ = ("future",)

    future: Future[int]

    def on_complete(self) -> None:
        """Complete the future, unless the caller has completed it."""
        error = error_of(self)
        try:
            if error is not None:
                self.future.set_exception(error)
            else:
                assert self.value is not None
                self.future.set_result(self.value)
        except InvalidStateError:
            return


def error_of(waiter: ThresholdWait) -> BaseException | None:
    """The error of a waiter that has completed. None if the number reached its threshold."""
    error: BaseException | None = waiter.error
    if waiter.drained:
        error = WaitDrained(waiter._op_home_shard.observers.name, f"the value reached {waiter.threshold}")
    elif waiter.outcome is Outcome.EXPIRED:
        error = TimeoutError(f"the value did not reach {waiter.threshold} within {waiter.delay_ms} ms")
    elif error is None and waiter.value is None and waiter.is_completed:
        error = RuntimeError("the waiter was completed by force_complete(), which gives it no value")
    return error


def _cancel(reference: weakref.ref[ThresholdWaiter], _: Future[int]) -> None:
    """Cancel the waiter of a future that is done. A future keeps its callbacks, so a strong one would be a cycle."""
    waiter = reference()
    if waiter is not None:
        waiter.cancel()


class ThresholdPurgatory(Numbers, ShutdownOnExit):
    """Futures on a number that only rises, or on many of them, each under a key.

    Without ``key=`` a method concerns the number that has no key. A number exists from the first call that names its
    key until :meth:`forget`.

    Args:
        name: the name in logs and metrics.
        timer: expires the waiters. The default is a timer of the purgatory's own, with a thread.
        value: the first value of the number without a key. None: it has no value yet.
        reaper_enabled: drive the timer from a thread. If False, call ``purgatory.advance_clock``.
        shards: how many shards the watch lists are split in. Use more for many keys and threads.
        normal_ends: the ends that are no failure of its waits, such as ``{Outcome.EXPIRED}``. See
            ``DelayedOperation.normal_ends``.

    >>> with ThresholdPurgatory("high-watermarks", shards=64) as watermarks:
    ...     third = watermarks.wait(3, timeout_ms=5_000, key=("orders", 0))
    ...     watermarks.maybe_complete(7, key=("orders", 1))
    ...     watermarks.maybe_complete(4, key=("orders", 0))
    ...     third.result()
    0
    1
    4
    """

    __slots__ = ("__weakref__", "_waiter")

    _purgatory: DelayedOperationPurgatory[ThresholdWaiter]

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        value: int | None = None,
        reaper_enabled: bool = True,
        shards: int = 1,
        normal_ends: Collection[Outcome] = (),
    ) -> None:
        self._waiter = with_normal_ends(ThresholdWaiter, normal_ends)
        if value is not None:
            check_int("value", value)
        super().__init__(
            DelayedOperationPurgatory(name, timer=timer, shards=shards, reaper_enabled=reaper_enabled), value
        )
        call_after_fork(self)

    def wait(self, threshold: int, timeout_ms: float | None, *, key: Hashable = NO_KEY) -> Future[int]:
        """Return a future that gets the first value at or above ``threshold``.

        It fails with ``TimeoutError`` after ``timeout_ms``, unless that is None. If the purgatory is shut down first,
        it fails with ``WaitDrained``, which is a ``TimeoutError`` as well. Completing or cancelling the future removes
        the waiter.

        Raises:
            InvalidSetting: ``threshold`` is not an ``int``.
            PurgatoryClosed: the purgatory is shut down.
            UnhashableKey: the key has no hash.
        """
        check_int("threshold", threshold)
        whole_delay_ms(timeout_ms)  # before a number is made for the key
        number = self._number(key)
        waiter = self._waiter(threshold, timeout_ms, number)
        future: Future[int] = Future()
        waiter.future = future
        number.park(threshold, partial(self._purgatory.try_complete_else_watch, waiter))
        future.add_done_callback(partial(_cancel, weakref.ref(waiter)))
        return future

    @property
    def purgatory(self) -> DelayedOperationPurgatory[DelayedOperation]:
        """The purgatory that the waiters are parked in. Attach observers here."""
        return self._purgatory  # type: ignore[return-value]  # only this class parks in it

    def __enter__(self) -> Self:
        self._purgatory.__enter__()  # which rejects one that is shut down
        return self

    def shutdown(self) -> ShutdownReport[Any]:
        """Stop, and fail the waiters with ``WaitDrained``, which is a ``PurgatoryClosed`` and a ``TimeoutError``."""
        return self._purgatory.shutdown()

    def after_fork(self) -> None:
        """Repair, in a forked child, the numbers and the futures that wait."""
        for number in self._numbers.values():
            number.after_fork()
        for waiter in self._purgatory.operations():
            free_future(waiter.future)
            waiter.number._put(waiter.threshold)  # another thread may have removed it, to check the waiter
