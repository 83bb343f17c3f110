"""The collector: turns purgatories, timers, feeds and gates of the process into metric families, one series per name.

``purgatory._series`` says how objects of one name are added up.

**Timers** are exported once each, under the label ``timer``, however many purgatories share one. Under the label
``purgatory`` every sum over them would count the timer several times. ``purgatory_timer_info`` shows which purgatory
uses which timer.

Nothing here keeps a purgatory alive, and nothing runs between scrapes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory import InvalidSetting
from purgatory._core.watchdog import slow_callbacks
from purgatory._readings import FAMILIES, Family, Kind, Observed, Series, Subject, encodable
from purgatory._series import SeriesByName
from purgatory.metrics._attach import AttachedObservers
from purgatory.metrics._by_tenant import ByTenant
from purgatory.metrics._by_type import ByType
from purgatory.metrics._histograms import EXPONENTS, CallbackTime, ParkedTime, cumulative_buckets
from timer._fork import new_lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from purgatory import DelayedOperationPurgatory

_PREFIX: Final = "purgatory_"


class PurgatoryCollector(Collector):
    """All live purgatories of the process, their timers, feeds and gates, as metric families. Any thread may scrape.

    Attributes:
        parked_time: measures time parked, once started.
        callback_time: measures callback time, once started.
        by_type: counts by operation type, once started.
        by_tenant: reads tenants, once started.
    """

    def __init__(self) -> None:
        self._scraping = new_lock()
        self._series = SeriesByName()
        self.parked_time: AttachedObservers[ParkedTime] = AttachedObservers(_parked_time)
        self.callback_time: AttachedObservers[CallbackTime] = AttachedObservers(lambda _: CallbackTime())
        self.by_type: ByType = ByType()
        self.by_tenant: ByTenant = ByTenant()

    def close(self) -> None:
        """Measure no more."""
        self.parked_time.stop()
        self.callback_time.stop()
        self.by_type.stop()
        self.by_tenant.stop()

    def describe(self) -> Iterable[Metric]:
        """The families without samples, in which a registry looks for duplicates. Reads nothing."""
        yield _timer_info()
        yield _slow_callbacks()
        for family in FAMILIES:
            yield _empty(family)
        yield from self.by_type.describe()
        yield from self.by_tenant.describe()

    def collect(self) -> Iterator[Metric]:
        """The families now."""
        with self._scraping:
            by_tenant = list(self.by_tenant.families())
            sums = self._series.read(self.parked_time.of, self.callback_time.of)
            info = _timer_info()
            for user, used in sorted(self._series.users):
                info.add_metric([user, used], 1)
        yield info
        counts: Counter[str] = Counter()
        for (whose, _), count in slow_callbacks().items():
            counts[encodable(whose or "")] += count
        slow = _slow_callbacks()
        for subject, name in sums:
            if subject is Subject.PURGATORY:
                slow.add_metric([name], counts[name])
        yield slow
        for family in FAMILIES:
            filled = _empty(family)
            for (subject, name), (values, observed) in sums.items():
                if subject is family.subject:
                    _fill(filled, family, name, values, observed)
            yield filled
        yield from self.by_type.families([name for subject, name in sums if subject is Subject.PURGATORY])
        yield from by_tenant


def _slow_callbacks() -> CounterMetricFamily:
    return CounterMetricFamily(
        f"{_PREFIX}slow_callbacks",
        "Hooks that ran longer than slow_callback_ms. The log has each one, as callback_slow.",
        labels=["purgatory"],
    )


def _parked_time(member: DelayedOperationPurgatory[Any]) -> ParkedTime:
    return ParkedTime() if member.timer is None else ParkedTime(member.timer.now_ns)


def _timer_info() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        f"{_PREFIX}timer_info", "The timer that a purgatory uses. Always 1.", labels=["purgatory", "timer"]
    )


def _empty(family: Family) -> Metric:
    labels = [family.subject.value, "outcome"] if family.by_outcome else [family.subject.value]
    name = _PREFIX + family.name
    if family.kind is Kind.COUNTER:
        return CounterMetricFamily(name, family.text, labels=labels)
    if family.kind is Kind.HISTOGRAM:
        return HistogramMetricFamily(name, family.text, labels=labels)
    return GaugeMetricFamily(name, family.text, labels=labels)


def _fill(
    filled: Metric, family: Family, name: str, values: dict[Series, float], observed: dict[Series, Observed]
) -> None:
    if isinstance(filled, HistogramMetricFamily):
        for (series, outcome), (counts, sum_ns) in observed.items():
            if series == family.name:
                labels = [name] if outcome is None else [name, outcome]
                filled.add_metric(labels, cumulative_buckets(counts, EXPONENTS), sum_ns / 1e9)
        return
    assert isinstance(filled, (CounterMetricFamily, GaugeMetricFamily))
    for (series, outcome), value in values.items():
        if series == family.name:
            filled.add_metric([name] if outcome is None else [name, outcome], value)


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, PurgatoryCollector] = weakref.WeakKeyDictionary()
_registering = new_lock()


def register(
    registry: CollectorRegistry = REGISTRY,
    *,
    histograms: bool = False,
    callbacks: bool = False,
    types: bool = False,
    tenants: bool = False,
) -> PurgatoryCollector:
    """Export every live purgatory, timer, feed and gate through ``registry``. Registering again changes nothing.

    Args:
        registry: the one that the process serves.
        histograms: also measure how long operations are parked, by outcome. This adds a cost to every operation. All
            other metrics cost nothing between scrapes.
        callbacks: also measure how long hooks take, at about twice that cost.
        types: also count operations, and how long they were parked, by type, at about the cost of ``histograms``.
        tenants: also export what is parked and rejected by tenant, for purgatories with limits by tenant, at no cost.

    Returns:
        The registry's collector: the same one each time.

    Raises:
        InvalidSetting: ``registry`` is not a registry.
        ValueError: another collector in the registry exports a metric of the same name.
    """
    if not isinstance(registry, CollectorRegistry):
        raise InvalidSetting("registry", registry, "a prometheus_client.CollectorRegistry", "leave it out for REGISTRY")
    with _registering:
        collector = _collectors.get(registry)
        if collector is None:
            collector = PurgatoryCollector()
            registry.register(collector)
            _collectors[registry] = collector
    if histograms:
        collector.parked_time.start()
    if callbacks:
        collector.callback_time.start()
    if types:
        collector.by_type.start()
    if tenants:
        collector.by_tenant.start()
    return collector


def unregister(registry: CollectorRegistry = REGISTRY) -> None:
    """Take back :func:`register`: export nothing, and detach the histograms. Harmless if nothing is registered."""
    with _registering:
        collector = _collectors.pop(registry, None)
        if collector is not None:
            registry.unregister(collector)
            collector.close()
