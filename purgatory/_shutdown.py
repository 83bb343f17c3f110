"""The end of a purgatory: refuse, settle what is parked, let go of the threads.

**Nothing slips through.** ``_closed`` is set first. Whoever is parking an operation at that moment watches first
and looks at ``_closed`` then: either the collection here sees the operation in the watch lists, or the parker sees
``_closed`` and takes its operation out again.

**Every client gets its answer.** An operation whose lock is held is left to the holder, or to the keeper, and waited
for. Only one whose lock somebody holds until the patience runs out stays open; the report names it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from purgatory._log import log
from purgatory._slow import unwatch
from purgatory._snapshot import ShutdownReport
from timer import TimerTask

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation
    from purgatory._purgatory import DelayedOperationPurgatory

__all__ = ["Drain", "let_go", "settle"]

Drain = Literal["expire", "cancel", "wait"]


def settle(purgatory: DelayedOperationPurgatory[Any], drain: Drain, timeout_ms: int) -> ShutdownReport:
    """Settle what is parked in a purgatory that refuses operations already."""
    started = time.monotonic()
    before = purgatory.totals()
    if drain == "wait":
        _wait_until_empty(purgatory, timeout_ms)
    waited = purgatory.totals()
    cancelled: list[DelayedOperation] = []
    for operation in purgatory.operations():
        if drain != "cancel":
            TimerTask.cancel(operation)
            operation.run()
        elif operation.cancel():
            cancelled.append(operation)
    stuck = _wait_until_empty(purgatory, timeout_ms)
    report = ShutdownReport(
        name=purgatory._name,
        drain=drain,
        satisfied=waited.satisfied - before.satisfied,
        expired=purgatory.totals().expired - before.expired,
        cancelled=tuple(cancelled),
        stuck=tuple(stuck),
        elapsed_ms=(time.monotonic() - started) * 1000,
    )
    log.info(
        "purgatory_shut_down",
        purgatory=purgatory._name,
        drain=drain,
        expired=report.expired,
        cancelled=len(cancelled),
        stuck=len(stuck),
        elapsed_ms=round(report.elapsed_ms, 3),
    )
    return report


def let_go(purgatory: DelayedOperationPurgatory[Any]) -> None:
    """End the threads and the timer, if they are the purgatory's own. Harmless twice.

    Not under the lock that makes the shutdown one: a hook that runs on one of these threads may be waiting for it in a
    ``shutdown()`` of its own.
    """
    unwatch(purgatory)
    if purgatory._driver is not None:
        purgatory._driver.stop()
    purgatory._graveyard.keeper.stop()
    if purgatory._own_timer and purgatory._timer is not None:
        purgatory._timer.shutdown()
    purgatory.purge()


def _wait_until_empty(purgatory: DelayedOperationPurgatory[Any], timeout_ms: int) -> list[DelayedOperation]:
    """Wait until no operation is open; those that are when the time is up."""
    give_up = time.monotonic() + timeout_ms / 1000
    while (open_ := purgatory.operations()) and time.monotonic() < give_up:
        time.sleep(0.001)
    return open_
