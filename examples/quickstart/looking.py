"""Lets a person look in while it runs: the console's page and the metrics, on loopback."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from purgatory import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol

    class Server(AbstractContextManager["Server"], Protocol):
        @property
        def url(self) -> str: ...


__all__ = ["looked_at"]

CONSOLE_PORT = 9099
METRICS_PORT = 9100


@contextlib.contextmanager
def looked_at() -> Iterator[dict[str, str]]:
    """Serve both, on their usual ports if these are free. Returns what is served, and where."""
    registry = CollectorRegistry()
    with contextlib.ExitStack() as stack:
        urls = {}
        try:
            from purgatory import console  # noqa: PLC0415  (an extra)

            urls["console"] = stack.enter_context(_on(CONSOLE_PORT, console.serve)).url
        except ImportError:
            pass
        urls["metrics"] = stack.enter_context(
            _on(METRICS_PORT, lambda port: metrics.serve(port, registry=registry, histograms=True))
        ).url
        stack.callback(metrics.unregister, registry)
        yield urls


def _on(port: int, serve: Callable[[int], Server]) -> Server:
    try:
        return serve(port)
    except OSError:  # taken: any other will do
        return serve(0)
