"""Waiting for a set of futures without a thread: an operation that completes when all of them are done."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic

from purgatory._core.errors import InvalidSetting, checked_int
from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._core.subclasses import with_normal_ends
from timer._base import JOIN_ERRORS, ShutdownOnExit
from timer._fork import call_after_fork, free_future

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar

    from purgatory._core.observers import Observer
    from purgatory._core.outcome import Outcome
    from purgatory._core.shutdown import Drain
    from purgatory._core.snapshot import PurgatorySnapshot, ShutdownReport
    from timer import Executor, Timer

    FutureT = TypeVar("FutureT", bound=Future[Any], default=Future[Any])  # as in purgatory._core.subclasses
else:
    from typing import TypeVar

    FutureT = TypeVar("FutureT", bound="Future[Any]")


#: The states of a future that is not done. ``Future.done()`` reads the same, under a lock that costs more than a check.
_OPEN: Final = ("PENDING", "RUNNING")


class DelayedFuture(DelayedOperation, Generic[FutureT]):
    """Completes when every one of ``futures`` is done, and then calls ``callback(futures)``.

    A future is done when it has a result or an exception, or when it was cancelled. If the time is up first, the
    callback is called all the same. The purgatory never sets, fails or cancels a future.

    With ``needed``, a quorum, it completes when so many futures have a result, or when so many have none that the
    others cannot be enough.
    """

    __slots__ = ("_callback", "_done", "_futures", "_needed")

    def __init__(
        self,
        delay_ms: float | None,
        futures: Sequence[FutureT],
        callback: Callable[[Sequence[FutureT]], object],
        needed: int | None = None,
    ) -> None:
        DelayedOperation.__init__(self, delay_ms)  # super() costs a twentieth of a whole set
        self._futures = tuple(futures)
        self._callback = callback
        self._needed = None if needed is None else checked_int("needed", needed, 1, len(self._futures))
        self._done = 0  # index of the first future that is not known to be done

    @property
    def futures(self) -> tuple[FutureT, ...]:
        """The futures that the operation waits for."""
        return self._futures

    @property
    def succeeded(self) -> int:
        """How many futures have a result."""
        return sum(map(_has_result, self._futures))

    def try_complete(self) -> bool:
        """Complete if all futures are done, or if it is clear whether there are as many results as needed."""
        if self._needed is not None:
            return self._is_quorum_known(self._needed) and self.force_complete()
        futures, done = self._futures, self._done
        while done < len(futures):
            future = futures[done]
            # as _is_done(), without a call
            is_open = future._state in _OPEN if type(future) is Future else not future.done()
            if is_open:
                return False
            self._done = done = done + 1
        return self.force_complete()

    def on_complete(self) -> None:
        """Call the callback with all futures."""
        self._callback(self._futures)

    def _is_quorum_known(self, needed: int) -> bool:
        """Whether so many futures have a result, or can no longer have one. Each future is looked at once."""
        results = possible = 0
        for future in self._futures:
            if not _is_done(future):
                possible += 1
            elif _has_result(future):
                results += 1
        return results >= needed or results + possible < needed


def _is_done(future: Future[Any]) -> bool:
    """Whether a future is done. One of a subclass, which may keep its state elsewhere, is asked."""
    if type(future) is Future:
        return future._state not in _OPEN
    return future.done()


def _has_result(future: Future[Any]) -> bool:
    """Whether a future has neither failed nor been cancelled."""
    return _is_done(future) and not future.cancelled() and future.exception() is None


class DelayedFuturePurgatory(ShutdownOnExit):
    """A purgatory for sets of ``concurrent.futures.Future``.

    A set that is done already calls back on the caller's thread. A set that had to wait calls back on ``executor``. A
    set whose time is up calls back on the timer's executor.

    Args:
        name: the name in logs and metrics.
        timer: expires the sets. The default is a timer of the purgatory's own.
        broker_id: a number that snapshots carry, for a process with several brokers.
        reaper_enabled: drive the timer from a thread. If False, call ``purgatory.advance_clock``.
        max_parked: reject further sets with ``PurgatoryFull`` while this many wait.
        observers: are notified of each set that is parked, and of its outcome.
        executor: any object with ``submit``. Its owner closes it. The default is one thread, ``<name>-executor``.
        normal_ends: the ends that are no failure of its sets, such as ``{Outcome.EXPIRED}``. See
            ``DelayedOperation.normal_ends``.
    """

    __slots__ = ("__weakref__", "_executor", "_operation", "_own_executor", "_purgatory", "_serial")

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        broker_id: int = 0,
        reaper_enabled: bool = True,
        max_parked: int | None = None,
        observers: Iterable[Observer] = (),
        executor: Executor | None = None,
        normal_ends: Collection[Outcome] = (),
    ) -> None:
        self._operation = with_normal_ends(DelayedFuture, normal_ends)
        self._purgatory: DelayedOperationPurgatory[DelayedFuture[Any]] = DelayedOperationPurgatory(
            name,
            timer=timer,
            broker_id=broker_id,
            purge_interval=0,  # each set has a key of its own, which nothing names again
            reaper_enabled=reaper_enabled,
            max_parked=max_parked,
            observers=observers,
        )
        self._serial = itertools.count(1)  # the watch keys: short labels in a journal
        self._own_executor = ThreadPoolExecutor(1, f"{name}-executor")  # starts its thread when it is first needed
        self._executor = executor
        call_after_fork(self)

    @property
    def purgatory(self) -> DelayedOperationPurgatory[DelayedFuture[Any]]:
        """The purgatory that the sets wait in. Attach observers here."""
        return self._purgatory

    def try_complete_else_watch(
        self,
        timeout_ms: float | None,
        futures: Iterable[FutureT],
        callback: Callable[[Sequence[FutureT]], object],
        *,
        needed: int | None = None,
    ) -> DelayedFuture[FutureT]:
        """Call ``callback(futures)`` once, when all are done or the time is up.

        With ``needed``, a quorum such as 2 of 3, the callback comes when so many futures have a result, or when too
        many have failed or were cancelled for that. It gets all futures, those that are not done included.

        A future keeps one small callback per wait until it is done, because ``concurrent.futures`` cannot remove one.

        Returns:
            The operation. Its ``cancel()`` ends the wait without a call of the callback. Its ``outcome`` is None while
            it waits, ``IMMEDIATE`` if all futures were done already, ``SATISFIED`` if all became done in time, or
            ``EXPIRED``. In that case, ``drained`` is True after a shutdown.

        Raises:
            InvalidSetting: the callback cannot be called, an element is not a future, or ``needed`` is not an ``int``
                from 1 to the number of futures.
            PurgatoryFull: ``max_parked`` sets wait.
            PurgatoryClosed: the purgatory is shut down.
        """
        if not callable(callback):
            raise InvalidSetting("callback", callback, "callable with the futures")
        if not isinstance(futures, Iterable):
            raise InvalidSetting("futures", futures, "a sequence of concurrent.futures.Future objects")
        futures = tuple(futures)
        for future in futures:
            if not isinstance(future, Future):
                raise InvalidSetting("futures", future, "concurrent.futures.Future objects")
        operation = self._operation(timeout_ms, futures, callback, needed)
        key = next(self._serial)
        if not self._purgatory.try_complete_else_watch(operation, [key]):
            self._check_when_done(operation, key)
        return operation

    def _check_when_done(self, operation: DelayedFuture[FutureT], key: int) -> None:
        """Have each future check the operation. They refer to it weakly, because they may outlive it."""
        found = weakref.ref(operation)

        def check(_: Future[Any]) -> None:
            operation = found()
            if operation is None or operation.outcome is not None:
                return
            executor = self._own_executor if self._executor is None else self._executor
            try:
                executor.submit(self._purgatory.check_and_complete, key)
            except Exception:  # noqa: BLE001  # shut down or full: check on the thread that completed the future
                self._purgatory.check_and_complete(key)

        for future in operation.futures:
            future.add_done_callback(check)

    def after_fork(self) -> None:
        """In a forked child: forget the executor's thread, and free the futures' locks."""
        self._own_executor = ThreadPoolExecutor(1, f"{self._purgatory.name}-executor")
        for operation in self._purgatory.operations():
            for future in operation.futures:
                free_future(future)

    def snapshot(self) -> PurgatorySnapshot:
        """The purgatory as it is now."""
        return self._purgatory.snapshot()

    def __enter__(self) -> Self:
        self._purgatory.__enter__()  # which rejects one that is shut down
        return self

    def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[Any]:
        """Settle the sets that wait as ``DelayedOperationPurgatory.shutdown`` does, and end the executor's thread.

        If a callback on that thread calls this method, or runs until the timeout, the thread ends after the callback.
        """
        report = self._purgatory.shutdown(drain, timeout_ms=timeout_ms)
        with contextlib.suppress(*JOIN_ERRORS):  # also if this is the executor's thread, which cannot wait for itself
            self._own_executor.shutdown(wait=not report.timed_out)
        return report
