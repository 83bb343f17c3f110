"""The purgatory for asyncio: ``await`` an operation.

There are two kinds, and one contract suite covers both:

- ``AsyncPurgatory(name)`` belongs to **one loop** and needs no thread. A :class:`LoopTimer` expires the operations.
  Checks, predicates and hooks run on the loop, so the state that they read needs no lock. ``check_and_complete`` from
  another thread passes the key to the loop.
- ``AsyncPurgatory.over(purgatory)`` awaits in a **thread-based purgatory**, from one loop or several. Checks and hooks
  run on the threads of the core. Each loop is woken once for many completions.

**Cancelling** the task that awaits removes the operation at once. If the operation has completed before, it stays
completed: its hooks have run, and ``operation.outcome`` says so. The task raises ``CancelledError`` in both cases, so a
cancellation is never swallowed (as ``asyncio.wait_for`` once did). No other task loses a wake-up (as with the
``notify`` of ``asyncio.Condition``), because a check looks at every operation under the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidSetting,
    Observer,
    Outcome,
    PurgatoryClosed,
    PurgatorySnapshot,
    ShutdownReport,
    Totals,
)
from purgatory._core.errors import checked_int
from purgatory._core.subclasses import OperationT
from purgatory._core.waits import NO_ENDS, raise_error_of, result_of
from purgatory._core.watchdog import watch
from purgatory.aio._checks import Checks
from purgatory.aio._shutdown import AsyncShutdown
from purgatory.aio._timer import LoopTimer
from purgatory.aio._waiters import Waiters
from purgatory.aio._waits import taking
from timer import Timer

if TYPE_CHECKING:
    from typing import Self

    from purgatory._core.shutdown import Drain

ResultT = TypeVar("ResultT")
InnerT = TypeVar("InnerT", bound=DelayedOperation)


class AsyncPurgatory(Generic[OperationT]):
    """Parks operations and lets tasks await them. An async context manager that calls :meth:`shutdown` on leaving.

    It belongs to the loop that first uses it. That loop must stay on its thread. Other threads may call only
    :meth:`check_and_complete`, :meth:`check_and_complete_all` and the methods of an operation.

    Args:
        name: the name in logs and metrics.
        timer: expires the operations. Purgatories of one loop may share it. They do not shut it down. The default is a
            :class:`LoopTimer` of the purgatory's own.
        slice_size: how many operations are checked, expired or woken before the loop runs other callbacks.
        broker_id, purge_interval, shards, max_parked, tenant, tenant_share, keep_context, observers: as
            :class:`~purgatory.DelayedOperationPurgatory` takes them.

    Raises:
        InvalidSetting: a setting that cannot work.

    >>> import asyncio
    >>> async def main() -> None:
    ...     basket: list[str] = []
    ...     async with AsyncPurgatory("basket") as purgatory:
    ...         waiting = asyncio.ensure_future(purgatory.wait_for(lambda: basket, keys=["basket"], timeout_ms=1_000))
    ...         await asyncio.sleep(0)
    ...         basket.append("apple")
    ...         purgatory.check_and_complete("basket")
    ...         print(await waiting)
    >>> asyncio.run(main())
    Outcome.SATISFIED
    """

    __slots__ = ("__weakref__", "_check", "_check_all", "_own_timer", "_purgatory", "_shutdown", "_waiters")

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        slice_size: int = 512,
        broker_id: int = 0,
        purge_interval: int = 1000,
        shards: int = 512,
        max_parked: int | None = None,
        tenant: Callable[[OperationT], Hashable] | None = None,
        tenant_share: float = 1.0,
        keep_context: bool = False,
        observers: Iterable[Observer] = (),
    ) -> None:
        if timer is not None and not (isinstance(timer, Timer) and timer.is_driven):
            raise InvalidSetting("timer", timer, "a LoopTimer, or another timer that is driven already")
        checked_int("slice_size", slice_size, 1)
        self._own_timer = LoopTimer(name, slice_size=slice_size) if timer is None else None
        purgatory: DelayedOperationPurgatory[OperationT] = DelayedOperationPurgatory(
            name,
            timer=timer or self._own_timer,
            reaper_enabled=False,
            broker_id=broker_id,
            purge_interval=purge_interval,
            shards=shards,
            max_parked=max_parked,
            tenant=tenant,
            tenant_share=tenant_share,
            keep_context=keep_context,
            observers=observers,
        )
        self._set_up(purgatory, slice_size, owned=True)

    @classmethod
    def over(cls, purgatory: DelayedOperationPurgatory[InnerT], *, slice_size: int = 512) -> AsyncPurgatory[InnerT]:
        """Await in a thread-based purgatory, from one loop or several.

        :meth:`shutdown` settles the operations that were parked through this object. It does not shut ``purgatory``
        down.

        Raises:
            InvalidSetting: a setting that cannot work.
        """
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise InvalidSetting("purgatory", purgatory, "a DelayedOperationPurgatory")
        checked_int("slice_size", slice_size, 1)
        made = cast("AsyncPurgatory[InnerT]", cls.__new__(cls))
        made._own_timer = None
        made._set_up(purgatory, slice_size, owned=False)
        return made

    def _set_up(self, purgatory: DelayedOperationPurgatory[OperationT], slice_size: int, *, owned: bool) -> None:
        self._purgatory = purgatory
        self._waiters = Waiters(purgatory, slice_size, owned=owned)
        checks = Checks(purgatory, self._waiters, slice_size)
        self._check, self._check_all = checks.check, checks.check_all
        self._shutdown = AsyncShutdown(purgatory, self._waiters, slice_size, owned=owned)
        if owned:
            watch(purgatory)  # a purgatory without a reaper is watched only here, until its shutdown

    # -- park

    async def park(self, operation: OperationT, keys: Sequence[Hashable]) -> Outcome:
        """Park the operation, and return its outcome after its hooks have run.

        Cancelling the task removes the operation, unless it has completed. What hooks raise is logged and counted, not
        raised here.

        Returns:
            The outcome. It is ``CANCELLED`` if another task, another thread or a shutdown removed the operation.

        Raises:
            PurgatoryError: as ``DelayedOperationPurgatory.try_complete_else_watch``.
            InvalidOperation: also if the operation has coroutine hooks and no ``__dict__``.
            WrongLoop: the purgatory belongs to another loop.
            NoRunningLoop: no asyncio loop runs here.
        """
        waiters = self._waiters
        future = waiters.begin(operation, keys)
        del keys  # the garbage collector visits one list fewer for each task that waits
        if future is not None:
            try:
                await future
            finally:
                waiters.end(operation)
        outcome = operation.outcome
        assert outcome is not None
        return outcome

    def start(self, operation: OperationT, keys: Sequence[Hashable]) -> bool:
        """Park the operation and do not await it: for leases, sessions and others that end by their hooks.

        The operation is parked when this returns. Coroutine hooks run in a task of their own, and :meth:`shutdown`
        waits for them.

        Returns:
            True if the operation completed at once.

        Raises:
            PurgatoryError: as :meth:`park`.
        """
        return self._waiters.start(operation, keys)

    async def wait_for(
        self,
        predicate: Callable[[], object],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NO_ENDS,
    ) -> Outcome:
        """Wait until ``predicate()`` is true or the time is up. It is called now, and at every check of a key.

        Args:
            predicate: a plain function without arguments.
            keys: the keys whose checks call it again.
            timeout_ms: how long to wait. None: no deadline.
            name: the name of the operation's type in logs, metrics, spans and the journal, instead of ``Until``. Use
                few different names, because each makes a type.
            normal_ends: the ends that are no failure of this wait, such as ``{Outcome.EXPIRED}``. See
                ``DelayedOperation.normal_ends``. Waits of one name should have the same. Without a name, the type is
                called after them: ``UntilOrExpired``.

        Returns:
            ``IMMEDIATE`` or ``SATISFIED`` if the predicate is true, ``EXPIRED`` if the time was up first, and
            ``CANCELLED`` if a shutdown, a task or a thread removed the wait. The first two are true in a condition,
            the others are false: ``if await purgatory.wait_for(...)``.

        Raises:
            InvalidSetting: the predicate cannot be called, or it is a coroutine function, the name is not a ``str``, or
                an end cannot be normal.
            Exception: what the predicate raises. That ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        waiters = self._waiters
        wait = waiters.until(predicate, timeout_ms, name, normal_ends)
        if waiters.begin_wait(wait, keys):
            del keys  # as in park
            try:
                await wait.future
            finally:
                waiters.end_wait(wait)
        if wait.error is not None:
            raise_error_of(wait)
        outcome = wait.outcome
        assert outcome is not None
        return outcome

    async def wait_for_result(
        self,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        give_back: Callable[[ResultT], object] | None = None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NO_ENDS,
    ) -> ResultT:
        """Wait until ``find()`` returns something other than None, and return that.

        ``find`` is called as the predicate of :meth:`wait_for` is, and may remove what it returns from your own state.
        Of three tasks that wait for one item, the first gets it. The others find nothing and keep waiting.

        Args:
            find: a plain function without arguments.
            keys: the keys whose checks call it again.
            timeout_ms: how long to wait. None: no deadline.
            give_back: is called with a result that was found and cannot be delivered, because the task was cancelled.
                Put the result back in it, and check its key.
            name: as in :meth:`wait_for`, instead of ``Taking``.
            normal_ends: as in :meth:`wait_for`.

        Raises:
            TimeoutError: the time was up first.
            PurgatoryClosed: the purgatory is shut down, or was shut down during the wait.
            WaitCancelled: another task or thread removed the wait.
            InvalidSetting: as in :meth:`wait_for`.
            Exception: what ``find`` raises. That ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        wait = taking(find, give_back, timeout_ms, name, normal_ends)
        waiters = self._waiters
        if waiters.begin_wait(wait, keys):
            try:
                try:
                    await wait.future
                finally:
                    waiters.end_wait(wait)
            except BaseException:
                wait.give_back()
                raise
        return result_of(wait, self, keys)

    # -- satisfy

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in order of arrival. Any thread may call it.

        On a loop, a key with more than ``slice_size`` operations is checked one slice at a time, and the loop runs
        other callbacks in between. From another thread, a purgatory of one loop has that loop check the key soon.

        Args:
            key: the key.
            limit: stop after this many completions, later slices included. The limits of several events add up. An
                operation whose ``lock=`` another thread holds does not count, as in the core.

        Returns:
            How many operations were completed before this returned. Later slices, and checks by the loop, do not count.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        return self._check(key, limit)

    def check_and_complete_all(self, keys: Iterable[Hashable]) -> int:
        """Check the operations parked under many keys. Any thread may call it.

        On a loop, an operation under several of the keys is checked once. If more than ``slice_size`` operations are
        parked under the keys, or from another thread, each key is checked as by :meth:`check_and_complete`.

        Args:
            keys: any iterable of keys, but not a ``str`` or ``bytes``.

        Returns:
            As :meth:`check_and_complete`.

        Raises:
            WatchKeysType: ``keys`` is a ``str`` or ``bytes``, or not iterable. Nothing was checked.
            UnhashableKey: a key has no hash. Nothing was checked.
        """
        return self._check_all(keys)

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Remove every operation under a key, and return them. A task that awaits one gets ``Outcome.CANCELLED``.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.cancel_for_key(key)

    # -- inspect

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return self._purgatory.name

    @property
    def purgatory(self) -> DelayedOperationPurgatory[OperationT]:
        """The purgatory of the core that holds the operations."""
        return self._purgatory

    @property
    def timer(self) -> Timer | None:
        """The timer that expires the operations."""
        return self._purgatory.timer

    @property
    def waiting(self) -> int:
        """How many awaits have not returned, plus how many started operations have not ended."""
        return self._waiters.count

    @property
    def parked(self) -> int:
        """How many operations are parked. One that has completed and whose task is not awake yet is not counted."""
        return self._purgatory.parked

    @property
    def watched(self) -> int:
        """The number of entries in the watch lists: one per operation and key."""
        return self._purgatory.watched

    @property
    def num_delayed(self) -> int:
        """How many parked operations have a deadline."""
        return self._purgatory.num_delayed

    @property
    def capacity(self) -> int | None:
        """``max_parked``."""
        return self._purgatory.capacity

    @property
    def rejected(self) -> int:
        """How many operations were rejected because a limit was reached."""
        return self._purgatory.rejected

    @property
    def missed_checks(self) -> int:
        """How many waits of :meth:`wait_for` expired although their predicate was true, and no check came."""
        return self._purgatory.missed_checks

    def totals(self) -> Totals:
        """Operations since the start, by outcome."""
        return self._purgatory.totals()

    def operations(self) -> list[OperationT]:
        """A list of the parked operations, those of :meth:`wait_for` included, in no particular order."""
        return self._purgatory.operations()

    def operations_for_key(self, key: Hashable) -> list[OperationT]:
        """A list of the operations under a key, in order of arrival.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.operations_for_key(key)

    def watching(self, key: Hashable) -> int:
        """The number of entries under a key.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.watching(key)

    @property
    def is_closed(self) -> bool:
        """Whether it rejects operations."""
        return self._waiters.closed or self._purgatory.is_closed

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, as a frozen value."""
        return self._purgatory.snapshot(largest=largest)

    # -- shut down

    async def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[OperationT]:
        """Reject new operations, settle the parked ones, and return when every task that awaits one has its outcome.

        Args:
            drain: ``"expire"`` expires every operation now. ``"cancel"`` removes them. The report lists them, and their
                tasks get ``Outcome.CANCELLED``. ``"wait"`` lets them end by themselves for ``timeout_ms``, then expires
                the rest. A later call with ``"expire"`` ends that wait.
            timeout_ms: how long ``"wait"`` waits, and then how long tasks and hooks may take to end.

        Returns:
            The report. A second call returns the same one.

        Raises:
            InvalidSetting: no such policy.
        """
        report = await self._shutdown.run(drain, timeout_ms)
        self._waiters.detach_if_done()
        if self._own_timer is not None:
            self._own_timer.shutdown()
        self._waiters.at_end()
        return report

    async def __aenter__(self) -> Self:
        if self.is_closed:
            raise PurgatoryClosed(self.name, "cannot be entered; make a purgatory for each block")
        self._waiters.current_mailbox()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.waiting} waiting{', shut down' if self.is_closed else ''}>"
