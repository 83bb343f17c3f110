"""Prometheus metrics of every live purgatory, timer, feed and gate of the process, read from plain counters at scrape.

>>> from prometheus_client import CollectorRegistry, generate_latest
>>> from purgatory import DelayedOperationPurgatory
>>> from purgatory.metrics import register
>>> registry = CollectorRegistry()
>>> collector = register(registry)
>>> with DelayedOperationPurgatory("fetch"):
...     b'purgatory_parked_operations{purgatory="fetch"} 0.0' in generate_latest(registry)
True

A service that already serves ``/metrics`` needs only ``register``. Otherwise ``serve`` or ``app`` serves it.
"""

from purgatory._serving import AddressUnusable
from purgatory.metrics._collector import PurgatoryCollector, register, unregister
from purgatory.metrics._histograms import CallbackTime, ParkedTime
from purgatory.metrics._serve import MetricsServer, app, serve

__all__ = [
    "AddressUnusable",
    "CallbackTime",
    "MetricsServer",
    "ParkedTime",
    "PurgatoryCollector",
    "app",
    "register",
    "serve",
    "unregister",
]
