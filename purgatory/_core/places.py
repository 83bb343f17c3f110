"""How many operations a purgatory may hold, and limits that keep one tenant from taking all places.

A purgatory with ``max_parked`` and ``tenant=`` calls that function for each operation that has to wait. Three rules
apply, in this order. The examples have 20 places, ``tenant_share=0.6`` and the tenants a, b and c:

1. **The total**: at most ``max_parked`` places are taken. If 20 operations are parked, every further one is rejected.
2. **The share**: a tenant holds at most ``tenant_share * max_parked`` places, rounded down, or one. If a holds 12, it
   is rejected, although 8 places are free.
3. **The fair part** is ``max_parked`` divided by the number of tenants that hold a place, including the new one. The
   last tenth of the places, at least one, is reserved for tenants with less than that. If a holds 8 places and b 10,
   2 places are free. The fair part is 20 / 3 = 6.67, so a and b are rejected, and c is accepted.

With a share of 1, one tenant can take all places. From its first place on, a second tenant gets each place that becomes
free, until both hold the same number.

**Counting.** An exception (``KeyboardInterrupt`` or ``RecursionError``) can come between the removal from the dict and
the change of the counts. The sum of the counts is then not the length of the dict, and the next reader repairs it.
``__eq__`` and ``__hash__`` of the tenants run with the lock held.

Rejected: weights of tenants, because a service can give one tenant several names (``("gold", hash(id) % 4)``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

import attrs

from purgatory._core.errors import InvalidSetting, InvalidTenant, PurgatoryFull
from purgatory._core.label import label
from purgatory._core.log import log, throttle
from timer._fork import new_rlock

#: How many tenants without a place are remembered in any case, with their numbers of rejections.
REMEMBERED: Final = 1000

#: One in this number of places is reserved for tenants that hold less than their fair part.
RESERVED_ONE_IN: Final = 10


@attrs.define(eq=False)
class Tenant:
    """The number of places of one tenant, and of its rejected operations. Guarded by the lock."""

    name: Hashable
    held: int = 0
    rejected: int = 0


class Places:
    """The places of a purgatory with ``max_parked``. An operation that has to wait takes one and gives it back.

    ``taken`` contains the operations that have a place. ``taken.pop(operation, None)`` gives it back, also after a
    ``RecursionError``. An interrupted thread can repeat it.
    """

    __slots__ = ("_lock", "_name", "limit", "rejected", "taken")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._lock = new_rlock()
        self.limit: int = limit
        self.taken: dict[Any, None] = {}
        self.rejected: int = 0

    def take(self, operation: Any) -> None:
        with self._lock:
            if len(self.taken) < self.limit:
                self.taken[operation] = None
                return
            self.rejected += 1
        suppressed = throttle.admit("purgatory_full", self._name)
        if suppressed is not None:
            log.warning("purgatory_full", purgatory=self._name, limit=self.limit, suppressed=suppressed)
        raise PurgatoryFull(self._name, self.limit)

    def tenants(self) -> list[Tenant]:  # for TenantPlaces
        return []


class _Taken(dict[Any, Tenant]):
    """The operations that have a place, with their tenants.

    ``counted`` is the sum of the tenants' counts, and ``present`` the number of tenants that hold a place.
    """

    __slots__ = ("_lock", "counted", "present")

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self._lock = lock
        self.counted = 0
        self.present = 0

    def pop(self, operation: Any, default: Any = None) -> Any:
        """Give a place back. A second call has no effect."""
        with self._lock:
            tenant = dict.pop(self, operation, default)
            if tenant is not None:
                tenant.held -= 1
                self.counted -= 1
                self.present -= not tenant.held
            return tenant


class TenantPlaces(Places):
    """The places of a purgatory, by tenant. See the module's header."""

    __slots__ = ("_most", "_reserved", "_tenant_of", "_tenants")

    taken: _Taken  # type: ignore[assignment]  # its values are tenants, those of the base class are None

    def __init__(self, name: str, limit: int, tenant: Callable[[Any], Hashable], share: float) -> None:
        super().__init__(name, limit)
        self.taken = _Taken(self._lock)
        self._tenant_of = tenant
        self._most = max(1, int(round(share * limit, 6)))  # 0.29 * 100 is less than 29
        self._reserved = max(1, limit // RESERVED_ONE_IN)
        self._tenants: dict[Hashable, Tenant] = {}

    def take(self, operation: Any) -> None:
        name = self._tenant_name(operation)
        with self._lock:
            self._repair_counts()
            tenant = self._find(name)
            reached = self._reached_limit(tenant)
            if reached is None:
                self.taken[operation] = tenant
                tenant.held += 1
                self.taken.counted += 1
                self.taken.present += tenant.held == 1
                return
            self.rejected += 1
            tenant.rejected += 1
            held = tenant.held
        limit, reason = reached
        text = label(name)
        suppressed = throttle.admit("tenant_full", self._name, text)
        if suppressed is not None:
            log.warning(
                "tenant_full",
                purgatory=self._name,
                tenant=text,
                parked=held,
                limit=limit,
                reason=reason,
                suppressed=suppressed,
            )
        raise PurgatoryFull(self._name, limit, name, reason)

    def tenants(self) -> list[Tenant]:
        """The tenants, the largest first."""
        with self._lock:
            self._repair_counts()
            found = list(self._tenants.values())
        return sorted(found, key=lambda tenant: (-tenant.held, -tenant.rejected))

    def _tenant_name(self, operation: Any) -> Hashable:
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

    def _reached_limit(self, tenant: Tenant) -> tuple[int, str] | None:
        """The limit that leaves no place for the tenant, and why. None if there is a place."""
        free = self.limit - len(self.taken)
        if free <= 0:
            return self.limit, f"all {self.limit} places are taken; answer 'busy', or raise max_parked"
        if tenant.held >= self._most:
            return (
                self._most,
                f"it holds its share of {self._most} of {self.limit} places; answer 'busy', or raise tenant_share",
            )
        present = self.taken.present + (not tenant.held)
        if free <= self._reserved and tenant.held * present >= self.limit:
            reason = (
                f"it holds {tenant.held} of {self.limit} places, its fair part among {present} tenants, and the last "
                f"{self._reserved} are reserved for tenants with fewer places; answer 'busy', or raise max_parked"
            )
            return tenant.held, reason
        return None

    def _find(self, name: Hashable) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= 2 * self.taken.present + REMEMBERED:
                self._tenants = {other.name: other for other in self._tenants.values() if other.held}
            tenant = self._tenants[name] = Tenant(name)
        return tenant

    def _repair_counts(self) -> None:
        taken = self.taken
        if taken.counted == len(taken):
            return
        places = list(taken.values())
        for tenant in self._tenants.values():
            tenant.held = 0
        for tenant in places:
            tenant.held += 1
        taken.present = sum(tenant.held > 0 for tenant in self._tenants.values())
        taken.counted = len(places)


def places_of(name: str, limit: int | None, tenant: Callable[[Any], Hashable] | None, share: float) -> Places | None:
    """The places of a purgatory, from its settings. None if there is no limit. ``limit`` was checked before."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise InvalidSetting("tenant_share", share, "a number above 0 and up to 1")
    if tenant is None:
        if share != 1:
            raise InvalidSetting("tenant_share", share, "1.0 without tenant=", "pass tenant= too")
        return None if limit is None else Places(name, limit)
    if not callable(tenant):
        raise InvalidSetting("tenant", tenant, "a function of one operation")
    if limit is None:
        raise InvalidSetting("tenant", tenant, "None without max_parked", "pass max_parked too")
    return TenantPlaces(name, limit, tenant, share)
