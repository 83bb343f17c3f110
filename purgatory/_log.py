"""What the library says in the log: lifecycle, contained errors, refusals; nothing per operation that goes well.

The library configures no logging. Events and their fields, all with ``purgatory`` (the name):

    callback_failed     operation (type), keys, hook, error; with the traceback
    observer_failed     operation (type), observer (type), error; with the traceback
    purgatory_started   shards, timer
    purgatory_shut_down drain, expired, cancelled, stuck, elapsed_ms
    purgatory_full      limit; at most once a second
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation

__all__ = ["log", "log_callback_error"]

log: Any = structlog.get_logger("purgatory")


def log_callback_error(purgatory: str | None, operation: DelayedOperation, hook: str, error: BaseException) -> None:
    """Log what a hook raised, with the operation's type and keys."""
    log.error(
        "callback_failed",
        purgatory=purgatory,
        operation=type(operation).__qualname__,
        keys=operation.keys,
        hook=hook,
        error=repr(error),
        exc_info=error,
    )
