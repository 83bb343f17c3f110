"""The figures of the Prometheus metrics, through OpenTelemetry's SDK."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from purgatory import DelayedOperationPurgatory
from purgatory.feeds import MemoryFeed
from purgatory.gates import Gate
from purgatory.metrics import register, unregister
from purgatory.otel import export_metrics
from tests.support import Waiting, park


class Exported:
    """A meter provider that keeps in memory what it exports."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def collect(self):
        """The values by the metric's name and its attributes, and the kinds and units by name."""
        data = self.reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        self.kinds = {
            metric.name: (type(metric.data).__name__, getattr(metric.data, "is_monotonic", None), metric.unit)
            for metric in metrics
        }
        return {
            (metric.name, frozenset(point.attributes.items())): point.value
            for metric in metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def exported():
    """What is exported, until the test ends."""
    exported = Exported()
    exported.stop = export_metrics(exported.provider)
    yield exported
    exported.stop()
    exported.provider.shutdown()


@pytest.fixture
def registry():
    """A registry of Prometheus that exports the same objects."""
    registry = CollectorRegistry()
    register(registry)
    yield registry
    unregister(registry)


#: Values that go on between two reads.
MOVING = ("purgatory_reaper_heartbeat_age_seconds", "purgatory_feed_lag_seconds", "purgatory_overdue_seconds")


async def test_values_are_those_of_prometheus(exported, registry, mock_timer):
    """Each series of the collector has the same value under the same name and labels."""
    names = {"otel fetch", "otel model", "otel inbox", mock_timer.inner.name}
    feed = MemoryFeed("otel inbox")
    await feed.publish("key", b"")
    with (
        DelayedOperationPurgatory("otel fetch", timer=mock_timer, max_parked=5) as fetch,
        Gate("otel model", 2, max_waiting=1, timer=mock_timer) as gate,
    ):
        park(fetch, "k")
        fetch.try_complete_else_watch(Waiting(5), ["k"])
        mock_timer.advance_clock(10)
        with gate.enter(timeout_ms=0):
            found = exported.collect()
            wanted = {
                (sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value
                for family in registry.collect()
                for sample in family.samples
                if family.name not in {*MOVING, "purgatory_timer_info", "purgatory_slow_callbacks"}
                and not sample.name.endswith(("_bucket", "_created"))
                and names & set(sample.labels.values())
            }
    assert wanted == {
        (name, labels): value
        for (name, labels), value in found.items()
        if name not in MOVING and names & set(dict(labels).values())
    }
    assert 1 == found["purgatory_feed_publish_seconds_count", frozenset({("feed", "otel inbox")})]
    assert (
        1 == found["purgatory_operations_completed", frozenset({("purgatory", "otel fetch"), ("outcome", "expired")})]
    )
    await feed.aclose()


def test_instruments_are_of_the_right_kind(exported, mock_timer):
    """Counters are monotonic sums, gauges that are added up are sums, and ages are gauges in seconds."""
    with DelayedOperationPurgatory("fetch", timer=mock_timer):
        exported.collect()
    assert ("Sum", True, "") == exported.kinds["purgatory_operations_started"]
    assert ("Sum", False, "") == exported.kinds["purgatory_parked_operations"]
    assert ("Gauge", None, "s") == exported.kinds["purgatory_overdue_seconds"]
    assert ("Sum", True, "s") == exported.kinds["purgatory_expiry_lateness_seconds_sum"]
    assert ("Sum", True, "") == exported.kinds["purgatory_expiry_lateness_seconds_count"]


def test_every_collection_reads_once(exported, mock_timer, monkeypatch):
    """All instruments of a collection are served by one reading, and the next collection reads again."""
    reads = []
    with DelayedOperationPurgatory("fetch", timer=mock_timer) as fetch:
        totals = fetch.totals
        monkeypatch.setattr(DelayedOperationPurgatory, "totals", lambda self: reads.append(self) or totals())
        exported.collect()
        count = reads.count(fetch)
        park(fetch, "k")
        assert 1 == exported.collect()["purgatory_operations_started", frozenset({("purgatory", "fetch")})]
        assert 2 * count == reads.count(fetch)


def test_nothing_is_exported_after_the_end(exported, mock_timer):
    """The function that export_metrics returns ends the export."""
    with DelayedOperationPurgatory("fetch", timer=mock_timer):
        assert exported.collect()
        exported.stop()
        assert {} == exported.collect()
