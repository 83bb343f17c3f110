"""Prometheus metrics of a node's controller.

broker_controller_active                  1 on the node that is the controller, as far as it knows
broker_controller_events_queued           events that wait
broker_controller_events_total            handled events, by kind
broker_controller_events_failed_total     handled events that raised
broker_controller_event_seconds_total     handling time, by kind
broker_controller_event_wait_seconds_total     time in the queue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from examples.broker.controller.controller import Controller


class ControllerMetrics(Collector):
    """Reads plain counters when it is scraped, on any thread."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        controller = self._controller
        active, queued = "Whether this node is the controller.", "Events that wait for the controller's thread."
        yield GaugeMetricFamily("broker_controller_active", active, value=float(controller.is_active))
        yield GaugeMetricFamily("broker_controller_events_queued", queued, value=len(controller.events))
        figures = sorted(controller.events.figures.copy().items())
        for name, text, attribute in (
            ("broker_controller_events", "Events handled.", "count"),
            ("broker_controller_events_failed", "Events whose handling raised.", "failed"),
            ("broker_controller_event_seconds", "Time that events took.", "seconds"),
            ("broker_controller_event_wait_seconds", "Time that events waited.", "waited_seconds"),
        ):
            family = CounterMetricFamily(name, text, labels=["kind"])
            for kind, each in figures:
                family.add_metric([kind], getattr(each, attribute))
            yield family
