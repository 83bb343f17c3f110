"""The orders in which waiting callers are admitted. A gate uses its queue with its own lock held.

A queue holds callers by *share*: their priority or their tenant. Within a share, they are in order of arrival.

``arrival``   one share. First come, first admitted.
``priority``  the smallest priority first. Every :data:`OLDEST_EVERY` th admission goes to the caller that has waited
              longest. So a caller that came after n others is admitted within ``OLDEST_EVERY * (n + 1)`` admissions,
              whatever the priorities of those that come later.
``fair``      deficit round robin. The tenants that have waiting callers form a ring. The tenant at its head gets its
              weight as credit, and each admission costs 1. Without credit it goes to the end of the ring:

                  weights a: 2, b: 1     waiting a1 a2 a3 a4 a5, b1 b2     admitted a1 a2 b1 a3 a4 b2 a5

              A tenant without waiting callers leaves the ring.

The callers of a share are the keys of an ``OrderedDict``, so one that gives up is removed in O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int

if TYPE_CHECKING:
    from purgatory.gates._waits import GateWait

#: In a gate with priorities, one admission of so many goes to the caller that has waited longest.
OLDEST_EVERY: Final = 8


class ArrivalQueue:
    """Waiting callers, in order of arrival if all have the same share.

    Raises:
        InvalidSetting: there are weights, which only a fair queue has.
    """

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        if weights is not None:
            raise InvalidSetting("weights", weights, "None with this order", 'pass order="fair" too')
        self._by_share: OrderedDict[Any, OrderedDict[GateWait, None]] = OrderedDict()  # no share is empty
        self._count = 0

    def add(self, wait: GateWait) -> None:
        """Put a caller at the end of its share."""
        waits = self._by_share.get(wait.share)
        if waits is None:
            waits = self._by_share[wait.share] = OrderedDict()
        waits[wait] = None
        self._count += 1

    def discard(self, wait: GateWait) -> None:
        """Remove a caller, if it is here."""
        waits = self._by_share.get(wait.share)
        if waits is not None and wait in waits:
            del waits[wait]
            self._count -= 1
            if not waits:
                del self._by_share[wait.share]

    def pop(self) -> GateWait | None:
        """Remove and return the next caller. None if there is none."""
        if not self._count:
            return None
        share = self._next_share()
        waits = self._by_share[share]
        wait = waits.popitem(last=False)[0]
        self._count -= 1
        if not waits:
            del self._by_share[share]
        return wait

    def place(self, share: Any) -> float:  # noqa: ARG002  # the other orders need it
        """The place that a caller would have that came now. 1 is the next."""
        return self._count + 1

    def _next_share(self) -> Any:
        return next(iter(self._by_share))


class PriorityQueue(ArrivalQueue):
    """Waiting callers by priority."""

    _admitted = 0

    def place(self, share: int) -> float:
        """The place that a caller would have, if no more urgent one comes later."""
        place = 1
        for priority, waits in self._by_share.items():
            if priority <= share:
                place += len(waits)
        return place

    def _next_share(self) -> Any:
        self._admitted += 1
        if self._admitted % OLDEST_EVERY:
            return min(self._by_share)
        return min(self._by_share, key=lambda share: next(iter(self._by_share[share])).created_ns)


class FairQueue(ArrivalQueue):
    """Waiting callers by tenant.

    Raises:
        InvalidSetting: the weights are not a mapping from a tenant to an ``int``, 1 or more.
    """

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        super().__init__()
        weights = {} if weights is None else weights
        if not isinstance(weights, Mapping):
            raise InvalidSetting("weights", weights, "a dict from tenant to weight")
        self._weights: dict[Any, int] = {name: checked_int("weights", weight, 1) for name, weight in weights.items()}
        self._head: str | None = None  # the tenant that has the credit
        self._credit = 0

    def place(self, share: Any) -> float:
        """About which place a caller would have, if the tenants that wait now go on to have callers waiting."""
        others = len(self._by_share) - (share in self._by_share)
        for tenant, weight in self._weights.items():
            if tenant != share and tenant in self._by_share:
                others += weight - 1
        mine = len(self._by_share.get(share, ())) + 1
        return min(self._count + 1, mine + others * mine / self._weights.get(share, 1))

    def _next_share(self) -> Any:
        tenant = next(iter(self._by_share))
        if tenant != self._head or not self._credit:
            self._head, self._credit = tenant, self._weights.get(tenant, 1)
        self._credit -= 1
        if not self._credit:
            self._by_share.move_to_end(tenant)
        return tenant
