"""Who is told: observers of operations, and the counters and the log of what callbacks raise.

Nothing that a hook or an observer raises gets past here: it is counted, always, and logged, at most once a second for
each cause. None attached costs the hot path one truth test.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from purgatory._log import log, log_callback_error, throttle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from purgatory._operation import DelayedOperation
    from purgatory._outcome import Observer, Outcome
    from purgatory._room import Room

    _Told = Callable[[DelayedOperation], object]
    _ToldTheEnd = Callable[[DelayedOperation, Outcome, BaseException | None], object]

__all__ = ["Audience"]


class Audience:
    """The observers of one purgatory, and what its callbacks raised.

    Args:
        name: the purgatory's name.
        observers: those attached from the start.
        room: is told of all who leave, before any observer.

    Attributes:
        parkers: the ``parked`` methods of those attached. Each tuple is replaced as a whole, so that it may be read
            without a lock, and holds bound methods, which spares a look-up an operation.
        leavers: the ``leaving`` methods.
        finishers: the ``finished`` methods.
    """

    __slots__ = ("_errors", "_lock", "_observers", "_room", "finishers", "leavers", "name", "parkers")

    def __init__(self, name: str, observers: Iterable[Observer], room: Room | None = None) -> None:
        self.name = name
        self._room: tuple[_Told, ...] = () if room is None else (room.leaving,)
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self._observers: tuple[Observer, ...] = ()
        self.parkers: tuple[_Told, ...] = ()
        self.leavers: tuple[_Told, ...] = self._room
        self.finishers: tuple[_ToldTheEnd, ...] = ()
        for observer in observers:
            self.attach(observer)

    def attach(self, observer: Observer) -> None:
        """Tell ``observer`` from now on. Twice is as once."""
        with self._lock:
            if all(other is not observer for other in self._observers):
                self._replace((*self._observers, observer))

    def detach(self, observer: Observer) -> None:
        """Tell ``observer`` no more."""
        with self._lock:
            self._replace(tuple(other for other in self._observers if other is not observer))

    def errors(self) -> dict[str, int]:
        """What callbacks raised, counted by hook."""
        with self._lock:
            return dict(self._errors)

    def contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        """Count and log what a hook raised."""
        with self._lock:
            self._errors[hook] += 1
        log_callback_error(self.name, operation, hook, error)

    def parked(self, operation: DelayedOperation) -> None:
        """An operation was parked."""
        for parked in self.parkers:
            try:
                parked(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, parked, error)

    def leaving(self, operation: DelayedOperation) -> None:
        """An operation has got its outcome; its hooks come next."""
        for leaving in self.leavers:
            try:
                leaving(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, leaving, error)

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None) -> None:
        """An operation has left, and its hooks have run."""
        for finished in self.finishers:
            try:
                finished(operation, outcome, error)
            except Exception as raised:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, finished, raised)

    def _replace(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self.parkers = tuple(filter(None, (getattr(observer, "parked", None) for observer in observers)))
        leavers = tuple(filter(None, (getattr(observer, "leaving", None) for observer in observers)))
        self.leavers = self._room + leavers
        self.finishers = tuple(filter(None, (getattr(observer, "finished", None) for observer in observers)))

    def _contain_observer(
        self, operation: DelayedOperation, method: Callable[..., object], error: BaseException
    ) -> None:
        with self._lock:
            self._errors["observer"] += 1
        kind = type(getattr(method, "__self__", method)).__qualname__
        suppressed = throttle.admit("observer_failed", self.name, kind, type(error).__qualname__)
        if suppressed is not None:
            log.error(
                "observer_failed",
                purgatory=self.name,
                operation=type(operation).__qualname__,
                observer=kind,
                error=repr(error),
                suppressed=suppressed,
                exc_info=error,
            )
