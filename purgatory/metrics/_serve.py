"""Serving ``/metrics``: on a thread and a port of its own, or as an ASGI app inside a service that has both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app, start_http_server

from purgatory.metrics._collector import register

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import TracebackType
    from typing import Self
    from wsgiref.simple_server import WSGIServer

__all__ = ["MetricsServer", "app", "serve"]


class MetricsServer:
    """A running server of ``/metrics``. A context manager that closes on leaving."""

    def __init__(self, server: WSGIServer, thread: Thread, addr: str) -> None:
        self._server = server
        self._thread = thread
        self._addr = addr

    @property
    def port(self) -> int:
        """The port, also if 0 was asked for."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self._addr}]" if ":" in self._addr else self._addr
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving. Harmless twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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

    Args:
        port: 0 for one that is free; see :attr:`MetricsServer.port`.
        addr: who may connect; ``"0.0.0.0"`` for everyone.
        registry: what to serve.
        histograms: see :func:`purgatory.metrics.register`.
        callbacks: likewise.
        types: likewise.
        tenants: likewise.

    Raises:
        OSError: the port is taken.
    """
    register(registry, histograms=histograms, callbacks=callbacks, types=types, tenants=tenants)
    server, thread = start_http_server(port, addr, registry)
    return MetricsServer(server, thread, addr)


def app(
    registry: CollectorRegistry = REGISTRY,
    *,
    histograms: bool = False,
    callbacks: bool = False,
    types: bool = False,
    tenants: bool = False,
) -> Callable[..., Any]:
    """Register, and give an ASGI app that answers every path with the metrics.

    In Starlette and FastAPI it is a route: ``app.add_route("/metrics", purgatory.metrics.app())``. (Mounted, it would
    be found at ``/metrics/``, and a scrape of ``/metrics`` be redirected.)
    """
    register(registry, histograms=histograms, callbacks=callbacks, types=types, tenants=tenants)
    return _App(make_asgi_app(registry))


class _App:
    """An ASGI app that is no function, for a route takes a function to be one of a request."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)
