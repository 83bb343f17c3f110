"""Waiting for a set of futures, without a thread: a delayed operation that completes when all of them are done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic

from purgatory._operations.operation import DelayedOperation, Operation
from purgatory._purgatory.purgatory import DelayedOperationPurgatory
from purgatory._support.edition import CORE
from purgatory._support.errors import InvalidSetting, WaitDrained
from purgatory._support.fork import free, start_over_in_child

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from typing_extensions import TypeVar

    from purgatory._purgatory.snapshot import PurgatorySnapshot, ShutdownReport
    from timer import Submits, Timer

    ResultT = TypeVar("ResultT", default=Any)  # a default, as in purgatory._operations.operation_type
else:
    from typing import TypeVar

    ResultT = TypeVar("ResultT")

__all__ = ["DelayedFuture", "DelayedFuturePurgatory"]


def fail_pending(operation: Operation, futures: Sequence[Future[Any]]) -> None:
    """Fail those that are not done, as the time is up, or the purgatory's."""
    error: Exception
    for future in futures:
        if not future.done():
            if operation.drained:
                error = WaitDrained(operation._home.observers.name, "this was done")
            else:
                error = TimeoutError(f"not done within {operation.delay_ms} ms")
            try:
                future.set_exception(error)
            except InvalidStateError:  # it got done, or was cancelled, at this very moment
                continue


class FuturesWait(Operation, Generic[ResultT]):
    """What of a :class:`DelayedFuture` may be native.

    Not the hook that calls the user's code: whoever looks for hooks on a thread's stack is to find that one there.
    """

    __slots__ = ("_callback", "_done", "_futures")

    def __init__(
        self,
        delay_ms: int,
        futures: Sequence[Future[ResultT]],
        callback: Callable[[Sequence[Future[ResultT]]], object],
    ) -> None:
        super().__init__(delay_ms)
        self._futures = tuple(futures)
        self._callback = callback
        self._done = 0  # so many from the front are known to be done: no future is looked at twice

    @property
    def futures(self) -> tuple[Future[ResultT], ...]:
        """The futures that are waited for."""
        return self._futures

    def try_complete(self) -> bool:
        """Complete if all futures are done."""
        futures = self._futures
        while self._done < len(futures):
            if not futures[self._done].done():
                return False
            self._done += 1
        return self.force_complete()

    def _settle(self) -> tuple[Future[ResultT], ...]:
        """Fail what is pending; all of them."""
        if self._done < len(self._futures):
            fail_pending(self, self._futures[self._done :])
        return self._futures


if not TYPE_CHECKING and CORE is not None:
    FuturesWait = CORE.FuturesWait


class DelayedFuture(FuturesWait[ResultT], DelayedOperation, Generic[ResultT]):
    """Completes when every one of ``futures`` is done, well or not; then calls ``callback(futures)``.

    If the time is up first, those still pending fail with ``TimeoutError``, and the callback is called all the same; so
    they do, with ``WaitDrained``, if the purgatory is shut down first.
    So the futures should be promises that your own code fulfils, not an executor's: an executor that finds its future
    failed by somebody else complains.
    """

    __slots__ = ()

    def on_complete(self) -> None:
        """Fail what is pending, then call back."""
        self._callback(self._settle())


class DelayedFuturePurgatory(Generic[ResultT]):
    """A purgatory for sets of ``concurrent.futures.Future``.

    Callbacks of sets that had to wait run on ``executor``; those of sets that are done already run inline; those at a
    timeout on the timer's executor.

    Args:
        name: names it in logs and metrics.
        timer: expires the sets; one of its own if not given.
        broker_id: carried along for whoever runs several.
        reaper_enabled: if False, the timer is driven by whoever calls its ``advance_clock``.
        executor: anything with ``submit``; stays its owner's to close. If not given, one thread, ``<name>-executor``,
            made when the first is needed.

    >>> from concurrent.futures import Future
    >>> answers = [Future(), Future()]
    >>> for answer in answers:
    ...     answer.set_result("yes")
    >>> with DelayedFuturePurgatory("votes") as votes:
    ...     votes.try_complete_else_watch(1_000, answers, lambda futures: print([f.result() for f in futures]))
    ['yes', 'yes']
    True
    """

    __slots__ = ("__weakref__", "_executor", "_lock", "_name", "_own_executor", "_purgatory")

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        broker_id: int = 0,
        reaper_enabled: bool = True,
        executor: Submits | None = None,
    ) -> None:
        self._purgatory: DelayedOperationPurgatory[DelayedFuture[ResultT]] = DelayedOperationPurgatory(
            name, timer=timer, broker_id=broker_id, reaper_enabled=reaper_enabled
        )
        self._name = name
        self._lock = threading.Lock()
        self._executor = executor
        self._own_executor: ThreadPoolExecutor | None = None
        start_over_in_child(self)

    @property
    def purgatory(self) -> DelayedOperationPurgatory[DelayedFuture[ResultT]]:
        """The purgatory that the sets wait in."""
        return self._purgatory

    def try_complete_else_watch(
        self,
        timeout_ms: int,
        futures: Sequence[Future[ResultT]],
        callback: Callable[[Sequence[Future[ResultT]]], object],
    ) -> bool:
        """Call ``callback(futures)`` when all are done, or the time is up. Returns whether it was called inline.

        Raises:
            InvalidSetting: the callback can't be called, or what is waited for is no future.
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
        operation = DelayedFuture(timeout_ms, futures, callback)
        if self._purgatory.try_complete_else_watch(operation, [operation]):
            return True

        def check(_: Future[Any]) -> None:
            if operation.is_completed:
                return
            try:
                self._executor_now().submit(self._purgatory.check_and_complete, operation)
            except RuntimeError:  # shut down meanwhile: on the thread that completed the future, then
                self._purgatory.check_and_complete(operation)

        for future in operation.futures:
            future.add_done_callback(check)
        return False

    def start_over(self) -> None:
        """In a forked child, which has no thread of the executor; another is made when it is needed."""
        self._lock = threading.Lock()
        self._own_executor = None
        for operation in self._purgatory.operations():
            for future in operation.futures:
                free(future)

    def snapshot(self) -> PurgatorySnapshot:
        """The purgatory as it is now."""
        return self._purgatory.snapshot()

    def shutdown(self) -> ShutdownReport[Any]:
        """Expire what is parked, so that every callback is called, and end the thread."""
        report = self._purgatory.shutdown()
        with self._lock:
            executor = self._own_executor
        if executor is not None:
            executor.shutdown()
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _executor_now(self) -> Submits:
        if self._executor is not None:
            return self._executor
        with self._lock:
            if self._own_executor is None:
                self._own_executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-executor")
            return self._own_executor
