"""The controller's metrics, as they are scraped."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from examples.broker.controller.events import EventQueue
from examples.broker.service.cluster.metrics import ControllerMetrics


def test_events_are_shown_by_kind():
    events, registry = EventQueue(), CollectorRegistry()
    registry.register(ControllerMetrics(SimpleNamespace(events=events, is_active=True)))
    events.put("brokers", lambda: None)
    events.put("brokers", lambda: 1 / 0)
    events.run_pending()
    events.put("topics", lambda: None)

    shown = generate_latest(registry).decode()
    assert "broker_controller_active 1.0" in shown
    assert "broker_controller_events_queued 1.0" in shown
    assert 'broker_controller_events_total{kind="brokers"} 2.0' in shown
    assert 'broker_controller_events_failed_total{kind="brokers"} 1.0' in shown
    assert 'broker_controller_event_seconds_total{kind="brokers"}' in shown
