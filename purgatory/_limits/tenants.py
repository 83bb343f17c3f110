"""Places by tenant: no tenant takes them all, and when they run short those who have little come first.

A purgatory with ``max_parked`` and ``tenant=`` asks that function whose an operation is that has to wait. Three
rules, in this order; with 20 places, ``tenant_share=0.6`` and the tenants a, b and c:

1. **The whole**: all places together are ``max_parked``. 20 are parked: everyone is refused.
2. **The share**: a tenant holds at most ``max(1, int(tenant_share * max_parked))`` places. a holds 12: it is refused,
   though 8 are free.
3. **Fair when full**: the last tenth of the places, one at least, is kept for tenants who hold less than their fair
   part, ``max_parked`` divided by the tenants that are there (the one who asks included). a holds 8, b 10, c none; 2
   of 20 are free, and the fair part is 6.67: a and b are refused, c is let in, and so is all who have less than 7. A
   tenant alone has all places for its fair part.

Who fills the purgatory alone, as a share of 1 allows, is not thrown out for one who comes later, and who must find a
place that has just fallen free. Once it has one it is there, and each place that falls free from then on is its own,
until the parts are even. A share below 1 leaves room for the first, too.

**Counting.** A place is given back by ``taken.pop(operation, None)``, by whoever ended the operation's stay. Here
that is Python, and so may fail: on a stack that is used up, or because an exception from a signal strikes between the
step out of the dict and the step in the counts. Then the core takes the operation out of the dict alone. Both leave
the sum of the counts above the length of the dict, which ``take`` looks at each time, and counts anew. A place given
back twice is one place: what is not in the dict is not counted.

Rejected: a queue for each tenant, for who waits for a place is a second purgatory, whose limit is missing; a count
that the operation carries, for its tenant may be asked for by an operation that was never let in; weights of tenants,
which are a service's own affair and can be had by naming one tenant several (``("gold", hash(id) % 4)``).

Threads: any. The lock is a leaf; the tenants' own ``__eq__`` and ``__hash__`` run under it, the function itself
doesn't.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

from purgatory._events.log import log, throttle
from purgatory._limits.capacity import Capacity
from purgatory._support.errors import InvalidSetting, InvalidTenant, PurgatoryFull
from purgatory._support.label import label

__all__ = ["TenantCapacity", "capacity_of"]

#: Tenants who hold nothing and whose refusals are remembered all the same, beside one for each that is there.
REMEMBERED: Final = 1000

#: Of so many places one is kept for those who hold less than their fair part.
KEEPS_ONE_OF: Final = 10


class _Tenant:
    """What one tenant holds, and how often it was refused. Under the lock."""

    __slots__ = ("name", "parked", "rejected")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.parked = 0
        self.rejected = 0


class _Taken(dict[Any, _Tenant]):
    """Who has a place, and whose it is.

    Attributes:
        counted: the sum of what the tenants hold; more than there are if a place was given back without being counted.
        present: how many tenants hold any.
    """

    __slots__ = ("_lock", "counted", "present")

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self._lock = lock
        self.counted = 0
        self.present = 0

    def pop(self, operation: Any, default: Any = None) -> Any:
        """Give a place back. Twice is as once."""
        with self._lock:
            tenant = dict.pop(self, operation, None)
            if tenant is None:
                return default
            tenant.parked -= 1
            self.counted -= 1
            if not tenant.parked:
                self.present -= 1
            return tenant


class TenantCapacity(Capacity):
    """The places of a purgatory, by tenant; see the module's header.

    Args:
        name: the purgatory's.
        limit: how many places there are.
        tenant: whose an operation is.
        share: how much of the places one tenant may hold, of 1.
    """

    __slots__ = ("_kept", "_most", "_tenant_of", "_tenants")

    taken: _Taken  # type: ignore[assignment]  # with a tenant where there is none else

    def __init__(self, name: str, limit: int, tenant: Callable[[Any], Hashable], share: float) -> None:
        super().__init__(name, limit)
        self.taken = _Taken(self._lock)
        self._tenant_of = tenant
        self._most = max(1, int(share * limit))
        self._kept = max(1, limit // KEEPS_ONE_OF)
        self._tenants: dict[Hashable, _Tenant] = {}

    def start_over(self) -> None:
        """In a forked child, where another thread may have had the lock."""
        super().start_over()
        self.taken._lock = self._lock

    def take(self, operation: Any) -> None:
        """Take a place for an operation.

        Raises:
            PurgatoryFull: there is none for its tenant.
            InvalidTenant: whose it is can't be found out.
        """
        name = self._ask(operation)
        with self._lock:
            self._count_anew()
            tenant = self._find(name)
            refusal = self._refusal(tenant)
            if refusal is None:
                self.taken[operation] = tenant
                tenant.parked += 1
                self.taken.counted += 1
                if tenant.parked == 1:
                    self.taken.present += 1
                return
            self.rejected += 1
            tenant.rejected += 1
            parked = tenant.parked
        text = label(name)
        suppressed = throttle.admit("tenant_full", self._name, text)
        if suppressed is not None:
            log.warning(
                "tenant_full",
                purgatory=self._name,
                tenant=text,
                parked=parked,
                limit=self.limit,
                reason=refusal,
                suppressed=suppressed,
            )
        raise PurgatoryFull(self._name, self.limit, name, refusal)

    def tenants(self) -> list[tuple[Hashable, int, int]]:
        """Each tenant, how many of its operations are parked, and how many were refused; the largest first."""
        with self._lock:
            self._count_anew()
            found = [(tenant.name, tenant.parked, tenant.rejected) for tenant in self._tenants.values()]
        found.sort(key=lambda row: (-row[1], -row[2]))
        return found

    def _ask(self, operation: Any) -> Hashable:
        try:
            name = self._tenant_of(operation)
        except Exception as error:
            raise InvalidTenant(operation, f"it raised {error!r}") from error
        try:
            hash(name)
        except Exception as error:
            raise InvalidTenant(
                operation, f"it returned {type(name).__name__} {name!r}; return a str, a number or a tuple of these"
            ) from error
        return name

    def _refusal(self, tenant: _Tenant) -> str | None:
        """Why there is no place for the tenant; None if there is one."""
        free = self.limit - len(self.taken)
        if free <= 0:
            return f"all {self.limit} places are taken; answer 'busy', or raise max_parked"
        if tenant.parked >= self._most:
            return f"it holds its share of {self._most} of {self.limit} places; answer 'busy', or raise tenant_share"
        present = self.taken.present + (not tenant.parked)
        if free <= self._kept and tenant.parked * present >= self.limit:
            return (
                f"it holds {tenant.parked} of {self.limit} places, its fair part among {present} tenants, and the last "
                f"{self._kept} are kept for those who hold less; answer 'busy', or raise max_parked"
            )
        return None

    def _find(self, name: Hashable) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= 2 * self.taken.present + REMEMBERED:
                self._tenants = {other.name: other for other in self._tenants.values() if other.parked}
            tenant = self._tenants[name] = _Tenant(name)
        return tenant

    def _count_anew(self) -> None:
        """If somebody gave a place back and was stopped before it was counted."""
        taken = self.taken
        if taken.counted == len(taken):
            return
        places = list(taken.values())
        for tenant in self._tenants.values():
            tenant.parked = 0
        for tenant in places:
            tenant.parked += 1
        taken.present = sum(tenant.parked > 0 for tenant in self._tenants.values())
        taken.counted = len(places)


def capacity_of(
    name: str, limit: int | None, tenant: Callable[[Any], Hashable] | None, share: float
) -> Capacity | None:
    """The places of a purgatory by its settings, of which ``limit`` was looked at; None if there is no limit.

    Raises:
        InvalidSetting: a setting that cannot work.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise InvalidSetting("tenant_share", share, "a number above 0 and up to 1")
    if tenant is None:
        if share != 1:
            raise InvalidSetting("tenant_share", share, "1.0 without tenant=", "pass tenant= too")
        return None if limit is None else Capacity(name, limit)
    if not callable(tenant):
        raise InvalidSetting("tenant", tenant, "a function of one operation")
    if limit is None:
        raise InvalidSetting("tenant", tenant, "None without max_parked", "pass max_parked too")
    return TenantCapacity(name, limit, tenant, share)
