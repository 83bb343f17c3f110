"""The settings that other classes pass to ``DelayedOperationPurgatory``, which describes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Generic, TypedDict

from purgatory._core.operation_type import OperationT

if TYPE_CHECKING:
    from purgatory._core.observers import Observer


class Settings(TypedDict, Generic[OperationT], total=False):
    """Keyword arguments of ``DelayedOperationPurgatory`` other than those about its timer."""

    broker_id: int
    purge_interval: int
    shards: int
    max_parked: int | None
    tenant: Callable[[OperationT], Hashable] | None
    tenant_share: float
    keep_context: bool
    observers: Iterable[Observer]
