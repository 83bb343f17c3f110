"""Who is told: observers of operations, and the counters and the log of what callbacks raise.

Nothing that a hook or an observer raises gets past here: it is counted, always, and logged, at most once a second for
each cause. None attached costs the hot path one truth test.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from purgatory._log import log, log_callback_error, throttle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from purgatory._operation import DelayedOperation
    from purgatory._outcome import Observer, Outcome

__all__ = ["Audience"]


class Audience:
    """The observers of one purgatory, and what its callbacks raised.

    Attributes:
        observers: those attached; replaced as a whole, so that it may be read without a lock.
        leavers: those of them that want to know before the hooks run.
    """

    __slots__ = ("_errors", "_lock", "_name", "leavers", "observers")

    def __init__(self, name: str, observers: Iterable[Observer]) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self.observers: tuple[Observer, ...] = ()
        self.leavers: tuple[Any, ...] = ()
        for observer in observers:
            self.attach(observer)

    def attach(self, observer: Observer) -> None:
        """Tell ``observer`` from now on. Twice is as once."""
        with self._lock:
            if all(other is not observer for other in self.observers):
                self._replace((*self.observers, observer))

    def detach(self, observer: Observer) -> None:
        """Tell ``observer`` no more."""
        with self._lock:
            self._replace(tuple(other for other in self.observers if other is not observer))

    def errors(self) -> dict[str, int]:
        """What callbacks raised, counted by hook."""
        with self._lock:
            return dict(self._errors)

    def contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        """Count and log what a hook raised."""
        with self._lock:
            self._errors[hook] += 1
        log_callback_error(self._name, operation, hook, error)

    def parked(self, operation: DelayedOperation) -> None:
        """An operation was parked."""
        for observer in self.observers:
            try:
                observer.parked(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, error)

    def leaving(self, operation: DelayedOperation) -> None:
        """An operation has got its outcome; its hooks come next."""
        for observer in self.leavers:
            try:
                observer.leaving(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, error)

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None) -> None:
        """An operation has left, and its hooks have run."""
        for observer in self.observers:
            try:
                observer.finished(operation, outcome, error)
            except Exception as raised:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, raised)

    def _replace(self, observers: tuple[Observer, ...]) -> None:
        self.observers = observers
        self.leavers = tuple(observer for observer in observers if hasattr(observer, "leaving"))

    def _contain_observer(self, operation: DelayedOperation, observer: Observer, error: BaseException) -> None:
        with self._lock:
            self._errors["observer"] += 1
        kind = type(observer).__qualname__
        suppressed = throttle.admit("observer_failed", self._name, kind, type(error).__qualname__)
        if suppressed is not None:
            log.error(
                "observer_failed",
                purgatory=self._name,
                operation=type(operation).__qualname__,
                observer=kind,
                error=repr(error),
                suppressed=suppressed,
                exc_info=error,
            )
