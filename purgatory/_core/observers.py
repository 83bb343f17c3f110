"""Observers, which are notified of operations. Exceptions of hooks and observers end here, counted and logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from purgatory._core.errors import InvalidSetting
from purgatory._core.implementation import CORE
from purgatory._core.log import log, printable, throttle
from timer._fork import new_rlock
from timer._running import call

if TYPE_CHECKING:
    from purgatory._core.outcome import Outcome


class Observer:
    """Is notified of each operation that is parked, and of its outcome. Subclass it and define the methods you need.

    They are called on the thread that parks or completes the operation, perhaps with the operation's ``lock=`` held. So
    they must not wait. Their exceptions are counted and logged. A method that is not defined costs nothing.
    """

    __slots__ = ()

    def parked(self, operation: Any, /) -> None:
        """``operation`` was parked. It may already have an outcome, or get one during this call.

        Not called if parking failed. If that cancelled the operation, ``finished`` is called all the same.
        """

    def leaving(self, operation: Any, /) -> None:
        """``operation`` has its outcome. Its hooks are called next."""

    def finished(self, operation: Any, outcome: Outcome, error: BaseException | None, /) -> None:
        """The hooks of ``operation`` have ended. ``error`` is what one of them raised, or None."""


class ObserverFlags:
    """Whether there are observers of each event. C replaces this class."""

    __slots__ = ("any_finished", "any_leaving", "any_parked")

    any_finished: bool
    any_leaving: bool
    any_parked: bool


if CORE is not None:
    ObserverFlags = CORE.ObserverFlags  # type: ignore[misc]


class Observers(ObserverFlags):
    """The observers of one purgatory, and the number of exceptions that its callbacks raised.

    Their bound methods for each event are in tuples, which are read without a lock.
    """

    __slots__ = ("_errors", "_lock", "_observers", "finished", "leaving", "missed", "name", "parked")

    missed: Any  # the MissedChecks of the purgatory, whose waits report to it

    def __init__(self, name: str, observers: Iterable[Observer] = ()) -> None:
        self.name: str = name
        self._lock = new_rlock()  # re-entrant, because a signal handler may come here
        self._errors: Counter[str] = Counter()
        self._replace(())
        if not isinstance(observers, Iterable):
            raise InvalidSetting("observers", observers, "a list of Observer objects")
        for observer in observers:
            self.attach(observer)

    def attach(self, observer: Observer) -> None:
        if not any(callable(getattr(observer, name, None)) for name in ("parked", "leaving", "finished")):
            raise InvalidSetting("observer", observer, "an Observer with at least one method")
        with self._lock:
            if all(other is not observer for other in self._observers):
                self._replace((*self._observers, observer))

    def detach(self, observer: Observer) -> None:
        with self._lock:
            self._replace(tuple(other for other in self._observers if other is not observer))

    def errors(self) -> dict[str, int]:
        """The number of exceptions that callbacks raised, by the name of the hook."""
        with self._lock:
            return dict(self._errors)

    def contain(self, operation: Any, hook: str, error: BaseException, keys: Sequence[Hashable] = ()) -> None:
        """Count and log what a hook raised. ``keys`` are the keys that the operation is being parked under, if any."""
        with self._lock:
            self._errors[hook] += 1
        name, kind = self.name or None, type(operation).__qualname__
        suppressed = throttle.admit("callback_failed", name, kind, hook, type(error).__qualname__)
        if suppressed is not None:
            log.error(
                "callback_failed",
                purgatory=name,
                operation=kind,
                keys=tuple(keys) or operation.keys,
                hook=hook,
                error=repr(printable(error)),
                suppressed=suppressed,
                exc_info=error,
            )

    def notify(self, event: str, operation: Any, *details: object) -> None:
        """Call the observers' methods for one event: ``"parked"``, ``"leaving"`` or ``"finished"``."""
        for method in getattr(self, event):
            try:
                call(operation, event, method, operation, *details)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, method, error)

    def _replace(self, observers: tuple[Observer, ...]) -> None:
        self._observers: tuple[Observer, ...] = observers
        self.parked: tuple[Callable[..., object], ...] = _methods(observers, "parked")
        self.leaving: tuple[Callable[..., object], ...] = _methods(observers, "leaving")
        self.finished: tuple[Callable[..., object], ...] = _methods(observers, "finished")
        self.any_parked: bool = bool(self.parked)
        self.any_leaving: bool = bool(self.leaving)
        self.any_finished: bool = bool(self.finished)

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
                error=repr(printable(error)),
                suppressed=suppressed,
                exc_info=error,
            )


def _methods(observers: tuple[Observer, ...], name: str) -> tuple[Callable[..., object], ...]:
    """The observers' methods of that name, without those of :class:`Observer` itself, which do nothing."""
    found = (getattr(observer, name, None) for observer in observers)
    empty = getattr(Observer, name)
    return tuple(method for method in found if method is not None and getattr(method, "__func__", None) is not empty)
