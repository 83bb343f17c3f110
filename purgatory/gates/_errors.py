"""The errors of a gate. Each says after how long a client may ask again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from purgatory import PurgatoryError, PurgatoryFull


class GateRejected(PurgatoryFull):
    """The gate ``name`` rejected a caller at once: it could not be admitted in time, or too many callers wait.

    ``limit`` is the gate's ``max_waiting``. ``tenant`` is the caller's tenant, or None if the order is not ``"fair"``.
    After ``retry_after_ms`` the callers that wait now are probably served.
    """

    def __init__(self, name: str, limit: int | None, tenant: Hashable, why: str, retry_after_ms: int) -> None:
        super().__init__(name, limit or 0, tenant, why)
        self.args: tuple[Any, ...] = (f"gate {name!r} rejected a caller: {why}; ask again in {retry_after_ms} ms",)
        self.retry_after_ms = retry_after_ms


class GateTimeout(PurgatoryError, TimeoutError):
    """A caller waited for the gate ``name`` until its time was up. It may ask again after ``retry_after_ms``."""

    if not TYPE_CHECKING:
        __new__ = TimeoutError.__new__  # the other base has another layout in memory

    def __init__(self, name: str, timeout_ms: int | None, retry_after_ms: int) -> None:
        super().__init__(
            f"gate {name!r} had no permit within {timeout_ms} ms; ask again in {retry_after_ms} ms, or raise timeout_ms"
        )
        self.name = name
        self.timeout_ms = timeout_ms
        self.retry_after_ms = retry_after_ms


class BlockingEnter(PurgatoryError, RuntimeError):
    """A caller of the gate ``name`` would have to wait in a ``with`` block on a thread that runs an event loop."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"gate {name!r} must not block the thread of an event loop; write 'async with' instead of 'with'"
        )
        self.name = name
