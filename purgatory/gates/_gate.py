"""A gate admits callers to a scarce thing: at most ``permits`` at a time.

    enter     a permit is free -> take it, and touch no operation
              otherwise        -> reject at once, or park an operation -> join the queue -> wait
    leave     the next caller of the queue gets the permit by ``force_complete()`` of its operation
    expire    timer -> the operation leaves the queue -> the caller raises GateTimeout

:mod:`purgatory.gates._permits` says why no permit is lost or granted twice.

**Early rejection.** A caller is rejected at once if its estimated wait, with :data:`HEADROOM`, is longer than its
timeout. Without it an overloaded gate keeps all callers waiting until their time is up, and serves the ones that are
about to give up.

Any thread and any loop may use a gate.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from purgatory import (
    DelayedOperationPurgatory,
    InvalidSetting,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    WaitCancelled,
)
from purgatory._core.blocking import sleep_on, taken_lock
from purgatory._core.errors import checked_int
from purgatory._gate_records import GateStatistics, register
from purgatory.aio import AsyncPurgatory
from purgatory.gates._errors import BlockingEnter, GateRejected, GateTimeout
from purgatory.gates._orders import ArrivalQueue, FairQueue, PriorityQueue
from purgatory.gates._permits import Permits
from purgatory.gates._waits import GateWait, TaskAtGate, ThreadAtGate
from timer._task import checked_delay_ms

if TYPE_CHECKING:
    from typing import Self

    from purgatory import ShutdownReport
    from purgatory._core.shutdown import Drain
    from timer import Timer

WaitT = TypeVar("WaitT", bound=GateWait)

#: The order in which a gate admits the callers that wait.
Order = Literal["arrival", "priority", "fair"]

_QUEUES: Final = {"arrival": ArrivalQueue, "priority": PriorityQueue, "fair": FairQueue}

#: A caller is rejected if its estimated wait times this is longer than its timeout. The estimate is a mean: without
#: headroom, many callers would wait in vain. It costs no throughput, because the queue is long then.
HEADROOM: Final = 1.25
#: The part of ``max_waiting`` that one tenant may hold. So a flood of one tenant leaves places to the others.
LARGEST_SHARE: Final = 0.9
#: The least priority.
_LEAST: Final = -(2**63)
#: ``retry_after_ms`` before the first release.
UNKNOWN_MS: Final = 1_000


class Gate(AbstractContextManager["Gate"], AbstractAsyncContextManager["Gate"]):
    """Admits at most ``permits`` callers at a time. The others wait, each until its own deadline.

    As a context manager, ``with`` or ``async with``, it shuts down on leaving.

    Args:
        name: the name in logs, metrics and errors, and of the purgatory that callers wait in.
        permits: how many callers may be inside at a time. 0: none, until :meth:`resize`.
        max_waiting: reject callers at once while this many wait. None: no limit.
        order: which caller is admitted next. ``"arrival"``: the one that came first. ``"priority"``: the one with the
            smallest priority. ``"fair"``: one of each tenant in turn.
        weights: for ``"fair"``: how many callers of a tenant are admitted in its turn. The default is 1.
        hold_ms: how long a caller is expected to keep a permit, until the gate has measured it. 0: not known, so
            no caller is rejected early before the first has left.
        timer: expires the callers that wait. The default is a timer of the gate's own.

    Raises:
        InvalidSetting: a setting that cannot work.

    >>> import asyncio
    >>> async def main() -> None:
    ...     async with Gate("model", permits=1, max_waiting=10) as gate:
    ...         async with gate.enter(timeout_ms=1_000):
    ...             print(gate)
    >>> asyncio.run(main())
    <Gate 'model': 1 of 1 inside, 0 waiting>
    """

    def __init__(
        self,
        name: str,
        permits: int,
        *,
        max_waiting: int | None,
        order: Order = "arrival",
        weights: Mapping[str, int] | None = None,
        hold_ms: int = 0,
        timer: Timer | None = None,
    ) -> None:
        if order not in _QUEUES:
            raise InvalidSetting("order", order, '"arrival", "priority" or "fair"')
        if max_waiting is not None:
            checked_int("max_waiting", max_waiting, 1)
        self._permits = Permits(
            checked_int("permits", permits, 0), _QUEUES[order](weights), checked_int("hold_ms", hold_ms, 0)
        )
        self._order = order
        self._closed = False
        limits: dict[str, Any] = {}
        if order == "fair" and max_waiting is not None:
            limits = {"tenant": attrgetter("share"), "tenant_share": LARGEST_SHARE}
        self._purgatory: DelayedOperationPurgatory[GateWait] = DelayedOperationPurgatory(
            name, timer=timer, max_parked=max_waiting, **limits
        )
        self._async: AsyncPurgatory[GateWait] = AsyncPurgatory.over(self._purgatory)
        register(self)

    def enter(self, *, timeout_ms: int | None, priority: int = 0, tenant: str | None = None) -> Entry:
        """A block for one caller: ``async with gate.enter(...)`` on a loop, ``with gate.enter(...)`` on a thread.

        The permit comes back at the end of the block, however it ends. Nothing happens before the block is entered.

        Args:
            timeout_ms: how long to wait for a permit. None: without a deadline. 0: do not wait.
            priority: for the order ``"priority"``. The smallest is the most urgent. Use few different ones.
            tenant: for the order ``"fair"``: whose caller this is.

        Raises:
            InvalidSetting: an argument cannot work.
            GateRejected: on entering, at once: the caller could not be admitted in time, or too many wait.
            GateTimeout: on entering: the time was up.
            PurgatoryClosed: on entering: the gate is shut down, or was shut down during the wait.
            WaitCancelled: on entering: the operation was cancelled, by ``cancel_for_key`` for example.
            BlockingEnter: on entering: ``with`` would have to wait on the thread of an event loop.
        """
        if timeout_ms is not None and type(timeout_ms) is not int:
            timeout_ms = checked_delay_ms(timeout_ms)
        if type(priority) is not int or priority < _LEAST:
            checked_int("priority", priority, _LEAST)
        if tenant is not None and type(tenant) is not str:
            raise InvalidSetting("tenant", tenant, "a str or None")
        return Entry(self, timeout_ms, priority if self._order == "priority" else tenant)

    def resize(self, permits: int) -> None:
        """Change the number of permits. More admit waiting callers at once. Fewer take effect as callers leave.

        Raises:
            InvalidSetting: ``permits`` is not an ``int``, or is negative.
        """
        self._permits.resize(checked_int("permits", permits, 0))

    # -- inspect

    @property
    def name(self) -> str:
        """The gate's name."""
        return self._purgatory.name

    @property
    def purgatory(self) -> DelayedOperationPurgatory[GateWait]:
        """The purgatory that callers wait in. Attach a journal or other observers here."""
        return self._purgatory

    @property
    def async_purgatory(self) -> AsyncPurgatory[GateWait]:
        """The same purgatory for tasks. Pass it to :func:`~purgatory.aio.drain_on_signals`."""
        return self._async

    def statistics(self) -> GateStatistics:
        """The gate as it is now, as a frozen value."""
        purgatory = self._purgatory
        total, in_use, hold_s = self._permits.read()
        totals = purgatory.totals()
        granted = self._permits.taken + totals.forced + totals.satisfied
        return GateStatistics(
            purgatory.name, total, in_use, purgatory.parked, granted, self._permits.late, purgatory.rejected, hold_s
        )

    # -- shut down

    def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[GateWait]:
        """Admit no more callers. Those that wait get ``PurgatoryClosed``. Those that are inside are not disturbed.

        With ``drain="wait"``, waiting callers may still be admitted for ``timeout_ms``. On a loop, await
        :meth:`aclose`.
        """
        self._closed = True
        return self._purgatory.shutdown(drain, timeout_ms=timeout_ms)

    async def aclose(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[GateWait]:
        """Shut down as :meth:`shutdown` does, while the loop runs on."""
        self._closed = True
        report = await asyncio.to_thread(self.shutdown, drain, timeout_ms=timeout_ms)
        await self._async.shutdown(timeout_ms=timeout_ms)  # returns when the tasks have their answers
        return report

    def __enter__(self) -> Self:
        self._purgatory.__enter__()  # which rejects one that is shut down
        return self

    async def __aenter__(self) -> Self:
        return self.__enter__()

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        closed = ", shut down" if self._closed else ""
        now = self.statistics()
        return f"<Gate {now.name!r}: {now.in_use} of {now.permits} inside, {now.waiting} waiting{closed}>"


class Entry:
    """A block for one caller of a gate. :meth:`Gate.enter` makes it.

    Attributes:
        gate: the gate.
    """

    __slots__ = ("_share", "_since_ns", "_timeout_ms", "gate")

    def __init__(self, gate: Gate, timeout_ms: int | None, share: Hashable) -> None:
        self.gate: Gate = gate
        self._timeout_ms = timeout_ms
        self._share = share
        self._since_ns = 0

    async def __aenter__(self) -> None:
        if self._take():
            return
        waiters, wait = self.gate._async._waiters, self._wait(TaskAtGate)
        self._park(waiters.begin_wait, wait)
        try:
            wait.permits.join(wait)
            await wait.future
        except BaseException:
            wait.permits.give_up(wait)
            raise
        finally:
            waiters.end_wait(wait)
        self._since_ns = self._granted_ns(wait)

    async def __aexit__(self, *_: object) -> None:
        self.gate._permits.release(self._since_ns)

    def __enter__(self) -> None:
        if self._take():
            return
        if asyncio._get_running_loop() is not None:
            raise BlockingEnter(self.gate.name)
        wait = self._wait(ThreadAtGate)
        wait.wake = taken_lock()
        self._park(self.gate._purgatory.try_complete_else_watch, wait)
        try:
            wait.permits.join(wait)
            sleep_on(wait.wake)
        except BaseException:
            wait.permits.give_up(wait)
            raise
        self._since_ns = self._granted_ns(wait)

    def __exit__(self, *_: object) -> None:
        self.gate._permits.release(self._since_ns)

    def _take(self) -> bool:
        """Take a free permit. False if the caller has to wait, and may expect to be admitted in time."""
        gate = self.gate
        if gate._closed:
            raise PurgatoryClosed(gate.name)
        self._since_ns = gate._permits.take()
        if self._since_ns:
            return True
        timeout_ms = self._timeout_ms
        if timeout_ms is None:
            return False
        wait_ms = gate._permits.estimate_ms(self._share)
        if timeout_ms > 0 and wait_ms * HEADROOM <= timeout_ms:
            return False
        with gate._permits.lock:
            gate._permits.late += 1
        wait, most = math.ceil(wait_ms), math.ceil(wait_ms * HEADROOM)
        raise self._rejected(f"it would wait for about {wait} ms, {most} ms with headroom, and has {timeout_ms} ms")

    def _wait(self, kind: type[WaitT]) -> WaitT:
        wait = kind(self._timeout_ms)
        wait.permits, wait.share, wait.since_ns = self.gate._permits, self._share, 0
        return wait

    def _park(self, park: Callable[[Any, list[Hashable]], bool], wait: GateWait) -> None:
        """Park an operation. Its key is shown by the console, and cancelled by ``cancel_for_key``."""
        try:
            park(wait, [self.gate.name if self._share is None else self._share])
        except PurgatoryFull as error:
            raise self._rejected(f"{error.limit} callers may wait") from None

    def _granted_ns(self, wait: GateWait) -> int:
        """When the permit was granted. Raises the error that says why there is none."""
        gate, outcome = self.gate, wait.outcome
        if outcome:  # only a grant completes the operation: FORCED, or SATISFIED if a thread was checking it
            return wait.since_ns
        if wait.drained or (outcome is Outcome.CANCELLED and gate._purgatory.is_closed):
            raise PurgatoryClosed(gate.name)
        if outcome is Outcome.CANCELLED:
            raise WaitCancelled(gate.name)
        raise GateTimeout(gate.name, wait.delay_ms, self._retry_after_ms())

    def _rejected(self, why: str) -> GateRejected:
        gate = self.gate
        tenant = self._share if gate._order == "fair" else None
        return GateRejected(gate.name, gate._purgatory.capacity, tenant, why, self._retry_after_ms())

    def _retry_after_ms(self) -> int:
        """After how long the callers that would be admitted before this one are probably gone."""
        return math.ceil(self.gate._permits.estimate_ms(self._share)) or UNKNOWN_MS
