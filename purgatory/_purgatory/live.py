"""The live purgatories of this process, for whoever looks in, and a way to be told of newcomers. Weakly held."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from purgatory._events.log import log
from purgatory._support.fork import in_child, start_over
from timer._fork import report_failures_to

if TYPE_CHECKING:
    from purgatory._purgatory.purgatory import DelayedOperationPurgatory

    Greet = Callable[[DelayedOperationPurgatory[Any]], object]

__all__ = ["enroll", "live", "on_start"]

_purgatories: weakref.WeakSet[DelayedOperationPurgatory[Any]] = weakref.WeakSet()
_greeters: list[Greet] = []
_lock = threading.Lock()


@in_child
def _renew() -> None:
    global _lock  # noqa: PLW0603  # a fork may have copied it while another thread held it
    _lock = threading.Lock()
    for purgatory in list(_purgatories):
        purgatory._start_over()
    start_over(_not_renewed)


def _not_renewed(thing: object, error: Exception) -> None:
    log.error("not_renewed_in_child", what=type(thing).__qualname__, error=repr(error))


report_failures_to(_not_renewed)


def live() -> list[DelayedOperationPurgatory[Any]]:
    """Every purgatory that is neither shut down nor garbage, by name."""
    with _lock:
        return sorted((p for p in _purgatories if not p.is_closed), key=lambda p: p.name)


def on_start(greet: Greet, /) -> Callable[[], None]:
    """Call ``greet(purgatory)`` for each live purgatory, now, and for each made later. Returns a call that ends it."""
    with _lock:
        _greeters.append(greet)
        present = [p for p in _purgatories if not p.is_closed]
    for purgatory in present:
        greet(purgatory)

    def stop() -> None:
        with _lock:
            if greet in _greeters:
                _greeters.remove(greet)

    return stop


def enroll(purgatory: DelayedOperationPurgatory[Any]) -> None:
    """Count a purgatory among the living. The last step of making one."""
    with _lock:
        _purgatories.add(purgatory)
        greeters = list(_greeters)
    for greet in greeters:
        try:
            greet(purgatory)
        except Exception as error:  # noqa: BLE001  # contained: who looks on must not stop who works
            log.error("greeter_failed", purgatory=purgatory.name, error=repr(error), exc_info=error)
