"""The purgatory for asyncio: ``await`` an operation.

There are two ways to drive it. One contract suite runs over both:

- ``AsyncPurgatory(name)`` belongs to **one loop** and needs no thread. A :class:`LoopTimer` expires. Every check,
  predicate and hook runs on the loop, so the state that they read needs no lock. ``check_and_complete`` from another
  thread hands the key to the loop.
- ``AsyncPurgatory.over(purgatory)`` lets **one or several loops await in a thread-based purgatory**. Checks and hooks
  run on the threads of the core. Each loop is woken once for many completions.

**Cancelling** the task that awaits takes the operation out, in the same turn of the loop in which the cancellation
arrives. A completion, an expiry and a cancellation may race. The core gives the operation one outcome:

    1. the operation completes: its outcome is decided, its hooks run, the future is set, the task will be woken
    2. before that, the task is cancelled
    3. the task wakes with ``CancelledError``; ``cancel()`` returns False; **the error is raised all the same**

A cancellation is never swallowed (as ``asyncio.wait_for`` once did), and no completion is lost: the hooks have run, and
``operation.outcome`` says so. No wake-up is lost either (as with ``asyncio.Condition``, whose ``notify`` may choose a
task that was just cancelled): a check looks at every operation under the key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidSetting,
    Outcome,
    PurgatorySnapshot,
    ShutdownReport,
    Totals,
)
from purgatory._operations.operation_type import OperationT
from purgatory._threads.watchdog import watch
from purgatory.aio._checks import Checks
from purgatory.aio._shutdown import AsyncShutdown, Drain
from purgatory.aio._signals import forget
from purgatory.aio._timer import LoopTimer
from purgatory.aio._waiters import Waiters
from purgatory.aio._waits import result_of, taking, until
from timer import Timer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from purgatory._purgatory.settings import Settings

__all__ = ["AsyncPurgatory"]

ResultT = TypeVar("ResultT")
BeneathT = TypeVar("BeneathT", bound=DelayedOperation)


class AsyncPurgatory(Generic[OperationT]):
    """Where operations are awaited. An async context manager that shuts down, by ``drain="expire"``, on leaving.

    Belongs to the loop that first uses it, and that loop must stay on its thread. Only :meth:`check_and_complete` and
    the methods of an operation may be called from other threads.

    Args:
        name: the name in logs and metrics.
        timer: expires the operations. Purgatories of one loop may share it, and it is not shut down with them. The
            default is a :class:`LoopTimer` of the purgatory's own.
        slice_size: how many operations are checked, expired or woken before the loop runs other callbacks.
        settings: ``broker_id``, ``purge_interval``, ``shards``, ``max_parked``, ``tenant``, ``tenant_share``,
            ``keep_context`` and ``observers``, as :class:`~purgatory.DelayedOperationPurgatory` takes them.

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
        **settings: Unpack[Settings[OperationT]],
    ) -> None:
        if timer is not None and not (isinstance(timer, Timer) and timer.is_driven):
            raise InvalidSetting("timer", timer, "a LoopTimer, or another timer that is driven already")
        self._own_timer = LoopTimer(name, slice_size=_checked_slice(slice_size)) if timer is None else None
        purgatory: DelayedOperationPurgatory[OperationT] = DelayedOperationPurgatory(
            name, timer=timer or self._own_timer, reaper_enabled=False, **settings
        )
        self._set_up(purgatory, slice_size, owned=True)

    @classmethod
    def over(cls, purgatory: DelayedOperationPurgatory[BeneathT], *, slice_size: int = 512) -> AsyncPurgatory[BeneathT]:
        """Await in a thread-based purgatory, from one loop or several.

        Shutting this down settles the operations that were parked through it. The owner of the purgatory shuts that
        down.

        Raises:
            InvalidSetting: a setting that cannot work.
        """
        if not isinstance(purgatory, DelayedOperationPurgatory):
            raise InvalidSetting("purgatory", purgatory, "a DelayedOperationPurgatory")
        made = cast("AsyncPurgatory[BeneathT]", cls.__new__(cls))
        made._own_timer = None
        made._set_up(purgatory, _checked_slice(slice_size), owned=False)
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
        """Park the operation, and return how it left, after its hooks have run.

        Cancelling the task takes the operation out of the purgatory, unless it has completed (see the module's
        header). What hooks raise is logged and counted, not raised here.

        Returns:
            The outcome. ``CANCELLED`` if another task or thread took the operation out, or a shutdown did.

        Raises:
            NoKeys: there are no keys.
            WatchKeysType: ``keys`` is a ``str``, a named tuple, or no sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is not an operation, or it cannot have coroutines for hooks.
            AlreadyParked: the operation was given to a purgatory before.
            PurgatoryFull: ``max_parked`` operations wait, or as many of its tenant as may.
            InvalidTenant: the ``tenant`` function failed.
            PurgatoryClosed: the purgatory is shut down.
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
        """Park the operation at once, and do not await it: for leases, sessions and what else ends by its hooks.

        When this returns the operation is parked, so ``operation.extend()`` and :meth:`check_and_complete` count from
        here on. Coroutine hooks run in a task of their own, and :meth:`shutdown` waits for them.

        Returns:
            True if the operation completed at once.

        Raises:
            PurgatoryError: as :meth:`park`.
        """
        return self._waiters.start(operation, keys)

    async def wait_for(
        self, predicate: Callable[[], object], *, keys: Sequence[Hashable], timeout_ms: int, name: str | None = None
    ) -> Outcome:
        """Wait until ``predicate()`` holds, or the time is up. It is asked now, and at every check of one of the keys.

        Args:
            predicate: a plain function of no arguments.
            keys: the keys whose checks ask it again.
            timeout_ms: how long to wait.
            name: the name of the operation's type in logs, metrics, spans and the journal, instead of ``Until``. Use
                few different ones, because each is a type of its own.

        Returns:
            ``IMMEDIATE`` or ``SATISFIED`` if the predicate holds. ``EXPIRED`` if the time was up first. ``CANCELLED``
            if a shutdown, or another task or thread, ended the wait. Every outcome is true in a condition: compare it.

        Raises:
            InvalidSetting: the predicate cannot be called, or is a coroutine.
            Exception: whatever the predicate raises. That ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        wait = until(predicate, timeout_ms, name)
        waiters = self._waiters
        if waiters.wait(wait, keys):
            del keys  # as in park
            try:
                await wait.future
            finally:
                waiters.waited(wait)
        if wait.error is not None:
            raise wait.error
        outcome = wait.outcome
        assert outcome is not None
        return outcome

    async def wait_for_result(
        self,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: int,
        give_back: Callable[[ResultT], object] | None = None,
        name: str | None = None,
    ) -> ResultT:
        """Wait until ``find()`` returns something other than None, and return that.

        It is asked as a predicate of :meth:`wait_for` is, in order of arrival, and may *take* what it returns. Of three
        tasks that wait for one item, the first gets it, and the others find nothing and keep waiting.

        Args:
            find: a plain function of no arguments.
            keys: the keys whose checks ask it again.
            timeout_ms: how long to wait.
            give_back: is called with a result that could not be delivered, because the awaiting task was cancelled
                after it was found. Put the result back there, and check its key.
            name: as in :meth:`wait_for`, instead of ``Taking``.

        Raises:
            TimeoutError: the time was up first.
            PurgatoryClosed: the purgatory is shut down, or was while this waited.
            WaitCancelled: another task or thread took the wait out.
            InvalidSetting: ``find`` cannot be called, or is a coroutine.
            Exception: whatever ``find`` raises. That ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        wait = taking(find, give_back, timeout_ms, name)
        waiters = self._waiters
        if waiters.wait(wait, keys):
            try:
                await wait.future
            except BaseException:
                waiters.waited(wait)
                wait.give_back()
                raise
            waiters.waited(wait)
        return result_of(wait, self, keys)

    # -- satisfy

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in the order in which they came. From any thread.

        On a loop, a key under which more than ``slice_size`` wait is checked a slice at a time, and the loop runs other
        callbacks in between. From another thread, a purgatory that belongs to one loop has the loop check the key soon.

        Args:
            key: the key.
            limit: stop once this many were completed, later slices included: for an event that can satisfy this many
                and no more. The limits of several events add up. An operation whose ``lock=`` another thread holds
                does not count, as in the core.

        Returns:
            How many operations were completed before this returned: not those of later slices, or of the loop.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is not an ``int``, or is less than 1.
        """
        return self._check(key, limit)

    def check_and_complete_all(self, keys: Iterable[Hashable]) -> int:
        """Check the operations parked under many keys, for an event that touches many keys. From any thread.

        On a loop, an operation under several of the keys is checked once. If more than ``slice_size`` operations are
        parked under the keys, and from another thread, each key is checked as by :meth:`check_and_complete`.

        Args:
            keys: any iterable of keys, but not a ``str`` or ``bytes``.

        Returns:
            The number of operations that were completed before this returned.

        Raises:
            WatchKeysType: ``keys`` is a ``str`` or ``bytes``, or not iterable. Nothing was checked.
            UnhashableKey: a key has no hash. Nothing was checked.
        """
        return self._check_all(keys)

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Remove every operation under a key, and return the operations.

        A task that awaits one of them gets ``Outcome.CANCELLED``.

        An exception that strikes this thread meanwhile costs the list, as it does in the core.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.cancel_for_key(key)

    # -- looking in

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return self._purgatory.name

    @property
    def purgatory(self) -> DelayedOperationPurgatory[OperationT]:
        """The purgatory beneath."""
        return self._purgatory

    @property
    def timer(self) -> Timer | None:
        """What expires the operations."""
        return self._purgatory.timer

    @property
    def waiting(self) -> int:
        """How many calls of :meth:`park` and :meth:`wait_for` have not returned, and started operations not ended."""
        return self._waiters.count

    @property
    def parked(self) -> int:
        """How many operations wait. Those of :attr:`waiting` whose answer is on its way are not among them."""
        return self._purgatory.parked

    @property
    def watched(self) -> int:
        """The number of entries in the watch lists: one per operation and key."""
        return self._purgatory.watched

    @property
    def num_delayed(self) -> int:
        """How many operations wait for their expiry."""
        return self._purgatory.num_delayed

    @property
    def capacity(self) -> int | None:
        """``max_parked``."""
        return self._purgatory.capacity

    @property
    def rejected(self) -> int:
        """How many operations were refused because ``max_parked`` waited."""
        return self._purgatory.rejected

    def totals(self) -> Totals:
        """Operations since the start, by outcome."""
        return self._purgatory.totals()

    def operations(self) -> list[OperationT]:
        """The operations that wait, those of :meth:`wait_for` included: a copy, in no particular order."""
        return self._purgatory.operations()

    def operations_for_key(self, key: Hashable) -> list[OperationT]:
        """The operations that wait under a key, in order of arrival: a copy.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.operations_for_key(key)

    def watching(self, key: Hashable) -> int:
        """The number of entries under a key, which a check of it may have to look at.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.watching(key)

    @property
    def is_closed(self) -> bool:
        """Whether it refuses operations."""
        return self._waiters.closed or self._purgatory.is_closed

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, as a frozen value."""
        return self._purgatory.snapshot(largest=largest)

    # -- the end

    async def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[OperationT]:
        """Reject new operations, settle those that wait, and return when every task that awaits one has its answer.

        Args:
            drain: ``"expire"`` completes and expires every operation now; ``"cancel"`` takes them out, into the report,
                and whoever awaits one gets ``Outcome.CANCELLED``; ``"wait"`` lets them complete or expire by themselves
                up to ``timeout_ms``, then expires the rest. A later call with ``"expire"`` ends that wait.
            timeout_ms: how long ``"wait"`` waits, and how long those who got their answer are given to take it.

        Returns:
            What became of the operations. The same report when called again.

        Raises:
            InvalidSetting: no such policy.
        """
        report = await self._shutdown.run(drain, timeout_ms)
        self._waiters.detach_if_done()
        if self._own_timer is not None:
            self._own_timer.shutdown()
        forget(self)
        return report

    async def __aenter__(self) -> Self:
        if not self._waiters.closed:
            self._waiters.here()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.waiting} waiting{', shut down' if self.is_closed else ''}>"


def _checked_slice(slice_size: Any) -> int:
    if type(slice_size) is not int or slice_size < 1:
        raise InvalidSetting("slice_size", slice_size, "an int, 1 or more")
    return slice_size
