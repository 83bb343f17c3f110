"""The purgatory for asyncio: ``await`` an operation.

Two ways to drive it, the same behaviour (one contract suite runs over both):

- ``AsyncPurgatory(name)`` lives **on one loop**, without a thread. A :class:`LoopTimer` expires; every check, predicate
  and hook runs on the loop, so the state they look at needs no lock. ``check_and_complete`` from another thread hands
  the key to the loop.
- ``AsyncPurgatory.over(purgatory)`` lets **one or several loops await in a thread-based purgatory**. Checks and hooks
  run where the core runs them, on whatever thread; each loop is woken once for many completions.

**Cancelling** the task that awaits takes the operation out, in the same turn of the loop in which the cancellation
arrives. Three things may race: a completion, an expiry, a cancellation. The core gives the operation one outcome, once,
so ``operation.cancel()`` answers who was first:

    1. the operation completes: its outcome is decided, its hooks run, the future is set, the task will be woken
    2. before that, the task is cancelled
    3. the task wakes with ``CancelledError``; ``cancel()`` answers False; **the error is raised all the same**

A cancellation is never swallowed (as ``asyncio.wait_for`` once did), and no completion is lost: the hooks have run, and
``operation.outcome`` says so. Nor is there a wake-up to lose (as with ``asyncio.Condition``, whose ``notify`` may pick
a task that was just cancelled): a check looks at everyone who waits, and whoever is cancelled takes nothing away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from purgatory import (
    AlreadyParked,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    Observer,
    Outcome,
    PurgatoryClosed,
    PurgatorySnapshot,
    ShutdownReport,
    Totals,
    WaitCancelled,
    WrongLoop,
)
from purgatory._events.outcome import PARKED
from purgatory._operations.operation_type import OperationT
from purgatory._support.errors import whole
from purgatory._threads.watchdog import watch
from purgatory.aio._operation import Hooked, Taking, Until, has_async_hooks
from purgatory.aio._shutdown import Drain, Shutdown
from purgatory.aio._signals import forget
from purgatory.aio._sweep import Sweeps
from purgatory.aio._timer import LoopTimer
from purgatory.aio._waiters import Waiters
from timer import Timer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory.aio._mailbox import Mailbox

__all__ = ["AsyncPurgatory"]

ResultT = TypeVar("ResultT")
BeneathT = TypeVar("BeneathT", bound=DelayedOperation)


class AsyncPurgatory(Generic[OperationT]):
    """Where operations are awaited. An async context manager that shuts down, by ``drain="expire"``, on leaving.

    Belongs to the loop it is first used on. Only :meth:`check_and_complete` and what an operation offers itself may be
    called from other threads.

    Args:
        name: names it in logs and metrics.
        timer: expires the operations; may be shared by purgatories of one loop, and is not shut down with them. A
            :class:`LoopTimer` of its own if not given.
        broker_id: carried along for whoever runs several.
        purge_interval: how many keys that nobody waits under are remembered in any case, for the next who comes.
        shards: how many parts the watch lists are split in.
        max_parked: refuse to park more operations than this.
        tenant: says whose an operation is, for limits by tenant within ``max_parked``. Called, with the operation, for
            each that has to wait.
        tenant_share: how much of ``max_parked`` one tenant may hold, of 1. The last tenth is kept for tenants that hold
            less than their fair part.
        keep_context: run plain hooks in a copy of the context of whoever parked, as coroutine hooks do anyway.
        observers: are told of each operation that comes and goes.
        slice_size: how many operations are checked, expired or woken before the loop goes round.

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

    __slots__ = (
        "__weakref__",
        "_asked",
        "_entries",
        "_kinds",
        "_own_timer",
        "_owned",
        "_purgatory",
        "_shutdown",
        "_sweeps",
        "_waiters",
    )

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        broker_id: int = 0,
        purge_interval: int = 1000,
        shards: int = 512,
        max_parked: int | None = None,
        tenant: Callable[[OperationT], Hashable] | None = None,
        tenant_share: float = 1.0,
        keep_context: bool = False,
        observers: Iterable[Observer] = (),
        slice_size: int = 512,
    ) -> None:
        if timer is not None and not (isinstance(timer, Timer) and timer.is_driven):
            raise InvalidSetting("timer", timer, "a LoopTimer, or another timer that is driven already")
        self._own_timer = LoopTimer(name, slice_size=_checked_slice(slice_size)) if timer is None else None
        purgatory: DelayedOperationPurgatory[OperationT] = DelayedOperationPurgatory(
            name,
            timer=timer or self._own_timer,
            broker_id=broker_id,
            purge_interval=purge_interval,
            reaper_enabled=False,
            shards=shards,
            max_parked=max_parked,
            tenant=tenant,
            tenant_share=tenant_share,
            keep_context=keep_context,
            observers=observers,
        )
        self._set_up(purgatory, slice_size, owned=True)

    @classmethod
    def over(cls, purgatory: DelayedOperationPurgatory[BeneathT], *, slice_size: int = 512) -> AsyncPurgatory[BeneathT]:
        """Await in a thread-based purgatory, from one loop or several.

        Shutting this down settles the operations that were parked through it; the purgatory itself is its owner's.

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
        self._owned = owned
        self._kinds: dict[type, bool] = {}  # types seen, and whether their hooks are coroutines
        self._asked: dict[Hashable, None] = {}  # keys that another thread has asked the loop to check
        self._waiters = Waiters(purgatory, slice_size)
        self._entries = self._waiters.entries  # of whoever awaits, looked up twice a wait
        self._sweeps = Sweeps(purgatory, slice_size)
        self._shutdown = Shutdown(purgatory, self._waiters, slice_size, owned=owned)
        purgatory.attach(self._waiters)
        if owned:
            watch(purgatory)  # with no reaper it wasn't looked after; its shutdown ends that

    # -- await

    async def park(self, operation: OperationT, keys: Sequence[Hashable]) -> Outcome:
        """Park the operation, and return how it left, after its hooks have run.

        Being cancelled takes the operation out of the purgatory, unless it has completed; see the module's header. What
        hooks raise is logged and counted, not raised here.

        Returns:
            The outcome: ``CANCELLED`` if somebody else took the operation out, or a shutdown did.

        Raises:
            NoKeys: there are no keys.
            WatchKeysType: ``keys`` is a ``str``, a named tuple, or no sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is no operation, or one that can't have coroutines for hooks.
            AlreadyParked: the operation was given to a purgatory before.
            PurgatoryFull: ``max_parked`` operations wait, or as many of its tenant as may.
            InvalidTenant: the ``tenant`` function failed.
            PurgatoryClosed: the purgatory is shut down.
            WrongLoop: the purgatory belongs to another loop.
        """
        kind = type(operation)
        hooked = self._kinds.get(kind)
        if hooked is None:
            hooked = self._admit(operation)
        if hooked:
            return await self._park_hooked(operation, keys)
        answer = self._enter(operation, keys)
        del keys  # for each who waits, a list less that the garbage collector goes through
        try:
            return await answer
        except BaseException:  # cancelled, or the coroutine is being closed: out it goes, if it is still in
            operation.cancel()
            raise
        finally:
            self._entries.pop(operation, None)

    def _enter(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> asyncio.Future[Outcome]:
        """Park an operation with plain hooks; the future of its outcome, which has an entry until it is forgotten.

        No coroutine, and so called by all that await: each on the way is one more object and frame for every waiter.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._waiters.mailboxes or self._shutdown.begun:
            loop = self._here()
        future: asyncio.Future[Outcome] = loop.create_future()
        entries = self._entries
        # The entry first: whoever completes the operation must find it.
        if entries.setdefault(operation, future) is not future:
            raise AlreadyParked(operation)
        try:
            if self._purgatory.try_complete_else_watch(operation, keys):  # type: ignore[arg-type]  # or one of our own
                if not future.done():
                    future.set_result(Outcome.IMMEDIATE)
            elif operation._state > PARKED and not operation.keys and not future.done():
                assert operation.outcome is not None
                future.set_result(operation.outcome)  # it was completed before it came here: nobody will say so again
        except BaseException:
            del entries[operation]
            raise
        return future

    def _here(self) -> asyncio.AbstractEventLoop:
        """The loop that runs here, if one may wait on it."""
        loop = asyncio.get_running_loop()
        if loop not in self._waiters.mailboxes:
            self._seat(loop)
        if self._shutdown.begun:
            raise PurgatoryClosed(self.name)
        return loop

    async def _park_hooked(self, operation: OperationT, keys: Sequence[Hashable]) -> Outcome:
        """Park an operation whose hooks are coroutines."""
        future: asyncio.Future[Outcome] = self._here().create_future()
        entries = self._waiters.entries
        if operation in entries:
            raise AlreadyParked(operation)
        entries[operation] = entry = Hooked(operation, future, self._waiters)
        try:
            completed = self._purgatory.try_complete_else_watch(operation, keys)
        except BaseException:
            self._waiters.forget(operation)
            entry.undo()
            raise
        outcome = operation.outcome
        if not completed and outcome is not None and not operation.keys:
            self._waiters.forget(operation)
            return outcome
        try:
            outcome = await future
        except BaseException:
            if future.done() and not future.cancelled():
                self._waiters.forget(operation)  # the hooks have run, and left that to whoever awaits
            else:
                future.cancel()
                operation.cancel()  # if that comes too late the hooks run, and the entry is theirs
            raise
        self._waiters.forget(operation)
        return outcome

    async def wait_for(self, predicate: Callable[[], object], *, keys: Sequence[Hashable], timeout_ms: int) -> Outcome:
        """Wait until ``predicate()`` holds, or the time is up. It is asked now, and at every check of one of the keys.

        Returns:
            ``IMMEDIATE`` or ``SATISFIED`` if the predicate holds; ``EXPIRED`` if the time was up first; ``CANCELLED``
            if a shutdown, or somebody else, ended the wait. Every outcome is true in a condition: compare it.

        Raises:
            InvalidSetting: the predicate can't be called, or is a coroutine.
            Exception: whatever the predicate raises; that ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        if not callable(predicate):
            raise InvalidSetting("predicate", predicate, "a plain function of no arguments")
        operation = Until(timeout_ms)
        operation.predicate = predicate
        operation.error = None
        answer = self._enter(operation, keys)
        del keys  # as in park
        try:
            outcome = await answer
        except BaseException:  # as in park
            operation.cancel()
            raise
        finally:
            self._entries.pop(operation, None)
        if operation.error is not None:
            raise operation.error
        return outcome

    async def wait_for_result(
        self,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: int,
        give_back: Callable[[ResultT], object] | None = None,
    ) -> ResultT:
        """Wait until ``find()`` gives something other than None, and return that.

        It is asked as a predicate of :meth:`wait_for` is, in order of arrival, and may *take* what it gives: of three
        that wait for one item, the first gets it, and the others find nothing and wait on.

        Args:
            find: a plain function of no arguments.
            keys: what it may be asked again for.
            timeout_ms: how long it may take.
            give_back: is called with a result that could no longer be delivered, because the awaiting task was
                cancelled after it was found. Put it back there, and check its key.

        Raises:
            TimeoutError: the time was up first.
            PurgatoryClosed: the purgatory is shut down, or was while this waited.
            WaitCancelled: somebody took the wait out.
            InvalidSetting: ``find`` can't be called, or is a coroutine.
            Exception: whatever ``find`` raises; that ends the wait.
            PurgatoryError: as :meth:`park`.
        """
        if not callable(find):
            raise InvalidSetting("find", find, "a plain function of no arguments")
        operation = Taking(find, give_back, timeout_ms)
        try:
            outcome = await self.park(operation, keys)  # type: ignore[arg-type]  # one of our own among the user's
        except BaseException:
            operation.give_back()
            raise
        if operation.error is not None:
            raise operation.error
        if operation.result is not None:
            return operation.result
        if operation.drained or (outcome is Outcome.CANCELLED and self.is_closed):
            raise PurgatoryClosed(self.name)
        if outcome is Outcome.EXPIRED:
            raise TimeoutError(f"nothing was found within {timeout_ms} ms")
        raise WaitCancelled(self.name)

    # -- satisfy

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Check the operations parked under a key, in the order in which they came. From any thread.

        On a loop, a key under which more than ``slice_size`` wait is checked a slice at a time, letting the loop go
        round in between. From a thread other than the loop's, a purgatory on one loop has the loop check the key soon.

        Args:
            key: the key.
            limit: stop once so many have been completed, later slices included: for an event that is good for so many
                and no more. Of several such events each is good for its own number. One whose ``lock=`` another thread
                holds counts for nothing, as in the core.

        Returns:
            How many operations were completed before this returned: not those of later slices, or of the loop.

        Raises:
            UnhashableKey: the key has no hash.
            InvalidSetting: the limit is no whole number, or less than 1.
        """
        if limit is not None:
            whole("limit", limit, 1)
        mailboxes = self._waiters.mailboxes
        loop = asyncio._get_running_loop()  # None if there is none, where get_running_loop() would raise
        mailbox = None if loop is None else mailboxes.get(loop)
        if mailbox is not None:
            return self._sweeps.check(key, mailbox, limit)
        try:
            hash(key)
        except TypeError:
            return self._purgatory.check_and_complete(key)  # which knows what to say to that
        if self._owned:
            for home in list(mailboxes.values()):
                if home.thread != get_ident() and not home.loop.is_closed():
                    self._ask(key, home, limit)
                    return 0
        return self._purgatory.check_and_complete(key, limit)

    def _ask(self, key: Hashable, home: Mailbox, limit: int | None) -> None:
        """Have the loop check a key; once, if many ask before it gets to it, unless each has a limit of its own."""
        if limit is not None:
            home.post(self._sweeps.check, key, home, limit)
        elif key not in self._asked:
            self._asked[key] = None
            home.post(self._check_asked, key, home)

    def _check_asked(self, key: Hashable, home: Mailbox) -> None:
        # Taken out before the check: whoever finds the key in here may count on a check that is yet to come.
        self._asked.pop(key, None)
        self._sweeps.check(key, home)

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Take every operation under a key out; whoever awaits one gets ``Outcome.CANCELLED``. Returns the operations.

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
        """How many calls of :meth:`park` and :meth:`wait_for` have not returned."""
        return len(self._waiters.entries)

    @property
    def parked(self) -> int:
        """How many operations wait. Those of :attr:`waiting` whose answer is on its way are not among them."""
        return self._purgatory.parked

    @property
    def watched(self) -> int:
        """How many entries the watch lists have: one an operation and key."""
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
        """How many entries there are under a key: what a check of it may have to look at.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return self._purgatory.watching(key)

    @property
    def is_closed(self) -> bool:
        """Whether it refuses operations."""
        return self._shutdown.begun or self._purgatory.is_closed

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, as a frozen value."""
        return self._purgatory.snapshot(largest=largest)

    # -- the end

    async def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[OperationT]:
        """Refuse new operations, settle those that wait, and return when everyone who awaits one has had the answer.

        Args:
            drain: ``"expire"`` completes and expires every operation now; ``"cancel"`` takes them out, into the report,
                and whoever awaits one gets ``Outcome.CANCELLED``; ``"wait"`` lets them complete or expire by themselves
                up to ``timeout_ms``, then expires the rest.
            timeout_ms: how long ``"wait"`` waits, and how long those who got their answer are given to take it.

        Returns:
            What became of the operations. The same report when called again.

        Raises:
            InvalidSetting: no such policy.
        """
        report = await self._shutdown.run(drain, timeout_ms)
        self._purgatory.detach(self._waiters)
        if self._own_timer is not None:
            self._own_timer.shutdown()
        forget(self)
        return report

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if loop not in self._waiters.mailboxes:
            self._seat(loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.waiting} waiting{', shut down' if self.is_closed else ''}>"

    # -- small things

    def _seat(self, loop: asyncio.AbstractEventLoop) -> None:
        """See this loop for the first time."""
        if self._owned:
            if self._waiters.mailboxes:
                raise WrongLoop(self.name, "make a purgatory for each loop, or use AsyncPurgatory.over() for several")
            if isinstance(self._purgatory.timer, LoopTimer):
                self._purgatory.timer.bind()
        self._waiters.seat(loop)

    def _admit(self, operation: object) -> bool:
        """Look at a type once; whether its hooks are coroutines."""
        if not isinstance(operation, DelayedOperation):
            raise InvalidOperation(operation, "it is no DelayedOperation")
        hooked = self._kinds[type(operation)] = has_async_hooks(type(operation))
        return hooked


def _checked_slice(slice_size: Any) -> int:
    if type(slice_size) is not int or slice_size < 1:
        raise InvalidSetting("slice_size", slice_size, "a whole number of operations, 1 or more")
    return slice_size
