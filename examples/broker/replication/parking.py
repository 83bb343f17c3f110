"""Parking with a way out: what finds no room to wait is answered at once, as if its time had run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Op = TypeVar("Op", bound=DelayedOperation)
_log = structlog.get_logger(__name__)


def park(purgatory: DelayedOperationPurgatory[Op], operation: Op, keys: Sequence[Hashable]) -> bool:
    """Park an operation if it can't complete at once; tell whether it waits now."""
    try:
        purgatory.try_complete_else_watch(operation, keys)
    except PurgatoryFull as error:
        _log.warning("no room to park", purgatory=purgatory.name, reason=str(error))
        operation.force_complete()
    return not operation.is_completed
