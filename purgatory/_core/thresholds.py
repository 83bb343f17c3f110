"""Futures on numbers that rise, such as a high watermark, a committed offset or a version: one, or one per key."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any

from purgatory._core.errors import WaitDrained
from purgatory._core.number import NO_KEY, Numbers, ThresholdWait, check_int
from purgatory._core.outcome import Outcome
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._core.subclasses import with_normal_ends
from timer._base import ShutdownOnExit
from timer._fork import call_after_fork, free_future
from timer._task import whole_delay_ms

if TYPE_CHECKING:
    from typing import Self

    from purgatory._core.operation import DelayedOperation
    from purgatory._core.snapshot import ShutdownReport
    from timer import Timer


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
