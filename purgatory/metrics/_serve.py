"""Serving ``/metrics``: on a thread and a port of its own, or as an ASGI app inside a service that has both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app, make_wsgi_app

from purgatory._wsgi import WsgiServer
from purgatory.metrics._collector import register

if TYPE_CHECKING:
    from collections.abc import Callable


class MetricsServer(WsgiServer):
    """A running server of ``/metrics``, which are at ``url``. A context manager that closes on leaving."""


def serve(
    port: int,
    addr: str = "127.0.0.1",
    *,
    registry: CollectorRegistry = REGISTRY,
    histograms: bool = False,
    callbacks: bool = False,
    types: bool = False,
    tenants: bool = False,
) -> MetricsServer:
    """Register, and serve ``/metrics`` from a daemon thread until the process ends or the server is closed.

    On loopback, requests that name another host are rejected (421), so that pages of other sites cannot read the
    metrics.

    Args:
        port: 0 for a free one, which :attr:`MetricsServer.port` then is.
        addr: the address to listen on; ``"0.0.0.0"`` for all networks.
        registry: what to serve.
        histograms: see :func:`purgatory.metrics.register`.
        callbacks: likewise.
        types: likewise.
        tenants: likewise.

    Raises:
        InvalidSetting: the port is not a port.
        AddressUnusable: the port is taken, or the address is not one of this machine.
    """
    register(registry, histograms=histograms, callbacks=callbacks, types=types, tenants=tenants)
    return MetricsServer(make_wsgi_app(registry), port, addr, path="/metrics", thread="purgatory-metrics")


def app(
    registry: CollectorRegistry = REGISTRY,
    *,
    histograms: bool = False,
    callbacks: bool = False,
    types: bool = False,
    tenants: bool = False,
) -> Callable[..., Any]:
    """Register, and give an ASGI app that answers every path with the metrics.

    In Starlette and FastAPI it is a route: ``app.add_route("/metrics", purgatory.metrics.app())``. (A mount would
    answer at ``/metrics/``, and would redirect a scrape of ``/metrics``.)
    """
    register(registry, histograms=histograms, callbacks=callbacks, types=types, tenants=tenants)
    return _App(make_asgi_app(registry))


class _App:
    """An ASGI app that is an object, because a route takes a function for a request handler."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)
