"""The live purgatories of this process, held weakly, and callbacks for each new one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from purgatory._core.log import log
from timer._fork import new_lock, report_failures_to

if TYPE_CHECKING:
    from purgatory._core.purgatory import DelayedOperationPurgatory

    OnStart = Callable[[DelayedOperationPurgatory[Any]], object]

_purgatories: weakref.WeakSet[DelayedOperationPurgatory[Any]] = weakref.WeakSet()
_callbacks: dict[object, OnStart] = {}  # by a token for each call of on_start()
_lock = new_lock()


def _not_renewed(thing: object, error: Exception) -> None:
    log.error("not_renewed_in_child", what=type(thing).__qualname__, error=repr(error))


report_failures_to(_not_renewed)


def live() -> list[DelayedOperationPurgatory[Any]]:
    """Every purgatory that was neither shut down nor collected, sorted by name."""
    with _lock:
        return sorted((p for p in _purgatories if not p.is_closed), key=lambda p: p.name)


def on_start(callback: OnStart, /) -> Callable[[], None]:
    """Call ``callback(purgatory)`` for each live purgatory and each later one. Returns a function that ends this.

    If ``callback`` raises for a live purgatory, it is not called for later ones.
    """
    token = object()

    def stop() -> None:
        with _lock:
            _callbacks.pop(token, None)

    with _lock:
        _callbacks[token] = callback
        present = [p for p in _purgatories if not p.is_closed]
    try:
        for purgatory in present:
            callback(purgatory)
    except BaseException:
        stop()
        raise
    return stop


def register(purgatory: DelayedOperationPurgatory[Any]) -> None:
    """Add a purgatory to the live ones, and run the callbacks. The last step of its constructor."""
    with _lock:
        _purgatories.add(purgatory)
        callbacks = list(_callbacks.values())
    for callback in callbacks:
        try:
            callback(purgatory)
        except Exception as error:  # noqa: BLE001  # contained: a monitor must not break the constructor
            log.error("on_start_failed", purgatory=purgatory.name, error=repr(error), exc_info=error)
