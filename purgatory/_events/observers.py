"""Who is told of operations that come and go, and the counters and the log of what callbacks raise.

Nothing that a hook or an observer raises gets past here: it is counted, always, and logged, at most once a second for
each cause. None attached costs the hot path one truth test.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from purgatory._events.log import log, log_callback_error, throttle
from purgatory._support.edition import CORE
from purgatory._support.errors import InvalidSetting

if TYPE_CHECKING:
    from purgatory._events.outcome import Outcome

__all__ = ["Observer", "Observers", "Told"]


class Observer:
    """Someone who is told of each operation that comes and goes. Subclass it and define what you want to be told.

    Called on whatever thread parks or finishes the operation, perhaps with the operation's lock held: be quick, and
    call nothing that waits. What an observer raises is contained, logged and counted. A method that is left as it is
    here is not called, and costs nothing.
    """

    __slots__ = ()

    def parked(self, operation: Any, /) -> None:
        """``operation`` was parked. It may have finished already, or finish meanwhile."""

    def leaving(self, operation: Any, /) -> None:
        """``operation`` has got its outcome; its hooks come next."""

    def finished(self, operation: Any, outcome: Outcome, error: BaseException | None, /) -> None:
        """``operation`` left, its hooks have run; ``error`` is what one of them raised."""


class Told:
    """Who is told of what: looked at once an operation; a type of its own, as it may be native.

    Attributes:
        parked: the ``parked`` methods of those attached. Each tuple is replaced as a whole, so that it may be read
            without a lock, and holds bound methods, which spares a look-up an operation.
        leaving: the ``leaving`` methods.
        finished: the ``finished`` methods.
    """

    __slots__ = ("finished", "leaving", "parked")

    def __init__(self) -> None:
        self.parked: tuple[Callable[[Any], object], ...] = ()
        self.leaving: tuple[Callable[[Any], object], ...] = ()
        self.finished: tuple[Callable[[Any, Outcome, BaseException | None], object], ...] = ()


if CORE is not None:
    Told = CORE.Told  # type: ignore[misc]


class Observers(Told):
    """The observers of one purgatory, and what its callbacks raised.

    Args:
        name: the purgatory's name.
        observers: those attached from the start.
    """

    __slots__ = ("_errors", "_lock", "_observers", "name")

    def __init__(self, name: str, observers: Iterable[Observer] = ()) -> None:
        super().__init__()
        self.name = name
        self._lock = threading.RLock()  # re-entrant: a signal's handler may come here, too
        self._errors: Counter[str] = Counter()
        self._observers: tuple[Observer, ...] = ()
        if not isinstance(observers, Iterable):
            raise InvalidSetting("observers", observers, "a list of Observer objects")
        for observer in observers:
            self.attach(observer)

    def attach(self, observer: Observer) -> None:
        """Tell ``observer`` from now on. Twice is as once.

        Raises:
            InvalidSetting: it has no method of an observer.
        """
        if not any(callable(getattr(observer, name, None)) for name in ("parked", "leaving", "finished")):
            raise InvalidSetting("observer", observer, "an Observer with at least one method")
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

    def contain(self, operation: Any, hook: str, error: BaseException, keys: Sequence[Hashable] = ()) -> None:
        """Count and log what a hook raised; ``keys`` are those that the operation is about to be parked under."""
        with self._lock:
            self._errors[hook] += 1
        log_callback_error(self.name or None, operation, hook, error, keys)

    def tell_parked(self, operation: Any) -> None:
        """An operation was parked."""
        for parked in self.parked:
            try:
                parked(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, parked, error)

    def tell_leaving(self, operation: Any) -> None:
        """An operation has got its outcome; its hooks come next."""
        for leaving in self.leaving:
            try:
                leaving(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, leaving, error)

    def tell_finished(self, operation: Any, outcome: Outcome, error: BaseException | None) -> None:
        """An operation has left, and its hooks have run."""
        for finished in self.finished:
            try:
                finished(operation, outcome, error)
            except Exception as raised:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, finished, raised)

    def start_over(self) -> None:
        """In a forked child, where another thread may have had the lock."""
        self._lock = threading.RLock()

    def _replace(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self.parked = _methods(observers, "parked")
        self.leaving = _methods(observers, "leaving")
        self.finished = _methods(observers, "finished")

    def _contain_observer(self, operation: Any, method: Callable[..., object], error: BaseException) -> None:
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


def _methods(observers: tuple[Observer, ...], name: str) -> tuple[Callable[..., object], ...]:
    """The methods of that name, but those that are the base class's own, which are empty."""
    found = (getattr(observer, name, None) for observer in observers)
    empty = getattr(Observer, name)
    return tuple(method for method in found if method is not None and getattr(method, "__func__", None) is not empty)
