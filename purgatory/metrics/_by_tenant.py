"""Operations by tenant: how many are parked, and how many were rejected. Optional and bounded.

A purgatory with limits by tenant counts by tenant anyway. ``register(tenants=True)`` exports these counts, which are
read at a scrape.

**Bounded**: the first :data:`MOST_TENANTS` tenants of a purgatory's name get a series, those with the most operations
first. All further tenants are added up under ``other``. The labels are keys' labels: one line of text, and short.

**The count of rejections never falls.** A purgatory eventually drops the counts of tenants without parked operations.
So the increase since the last scrape is added up here, and kept for as long as a purgatory of that name lives.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

import purgatory
from purgatory._core.label import label
from purgatory._readings import encodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from purgatory import DelayedOperationPurgatory
    from purgatory._core.places import Tenant

#: Tenants of one purgatory that get a series of their own.
MOST_TENANTS: Final = 50
#: What all further tenants are counted under.
OTHER: Final = "other"


class _NameTenants:
    """The tenants of the purgatories of one name."""

    def __init__(self) -> None:
        self.parked: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self._named: set[str] = set()

    def add(self, tenant: Hashable, parked: int, rejected: int) -> None:
        text = label(tenant)
        if text not in self._named:
            if len(self._named) < MOST_TENANTS:
                self._named.add(text)
            else:
                text = OTHER
        self.parked[text] += parked
        self.rejected[text] += rejected


class ByTenant:
    """Reads the tenants of every live purgatory, once started. For one scrape at a time."""

    def __init__(self) -> None:
        self._started = False
        self._names: dict[str, _NameTenants] = {}
        self._last: weakref.WeakKeyDictionary[DelayedOperationPurgatory[Any], dict[Tenant, int]]
        self._last = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Export them from now on. Once is enough."""
        self._started = True

    def stop(self) -> None:
        """Export them no more."""
        self._started = False
        self._names.clear()
        self._last.clear()

    def describe(self) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
        """The families without samples."""
        return _parked(), _rejected()

    def families(self) -> Iterator[Metric]:
        """The current families, or nothing if the option is off."""
        if not self._started:
            return
        members = [member for member in purgatory.live() if member._places is not None]  # noqa: SLF001
        self._names = {
            name: self._names.get(name) or _NameTenants() for name in (encodable(member.name) for member in members)
        }
        for tenants in self._names.values():
            tenants.parked.clear()
        for member in members:
            before = self._last.get(member, {})
            current = member._places.tenants()  # type: ignore[union-attr]  # noqa: SLF001
            last = self._last[member] = {}
            for tenant in current:
                # A tenant that was forgotten and has come again is another object, which counts from zero.
                so_far = tenant.rejected
                if so_far:
                    last[tenant] = so_far
                new = so_far - before.get(tenant, 0)
                self._names[encodable(member.name)].add(tenant.name, tenant.held, new)
        parked, rejected = self.describe()
        for name, tenants in sorted(self._names.items()):
            for text in sorted(tenants.rejected):
                parked.add_metric([name, text], tenants.parked[text])
                rejected.add_metric([name, text], tenants.rejected[text])
        yield parked
        yield rejected


def _parked() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "purgatory_parked_operations_by_tenant", "Parked operations, by tenant.", labels=["purgatory", "tenant"]
    )


def _rejected() -> CounterMetricFamily:
    return CounterMetricFamily(
        "purgatory_operations_rejected_by_tenant",
        "Operations rejected because a limit was reached, by tenant.",
        labels=["purgatory", "tenant"],
    )
