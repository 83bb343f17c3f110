"""How many operations a purgatory may hold."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from purgatory._core.errors import PurgatoryFull
from purgatory._core.log import log, throttle
from timer._fork import new_rlock


@attrs.define(eq=False)
class Tenant:
    """The number of places of one tenant, and of its rejected operations. Guarded by the lock."""

    name: Hashable
    parked: int = 0
    rejected: int = 0


class Capacity:
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

    def tenants(self) -> list[Tenant]:  # for TenantCapacity
        return []
