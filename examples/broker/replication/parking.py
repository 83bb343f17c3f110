"""Parking in a purgatory of limited capacity. If it is full, the operation is answered as if it had expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Op = TypeVar("Op", bound=DelayedOperation)
_log = structlog.get_logger(__name__)


def park(purgatory: DelayedOperationPurgatory[Op], operation: Op, keys: Sequence[Hashable]) -> bool:
    """Park an operation unless it can complete at once. Returns whether it waits now."""
    try:
        purgatory.try_complete_else_watch(operation, keys)
    except PurgatoryFull as error:
        _log.warning("purgatory full", purgatory=purgatory.name, reason=str(error))
        operation.force_complete()
    return not operation.is_completed
