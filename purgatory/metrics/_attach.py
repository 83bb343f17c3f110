"""Attach one observer to each purgatory that exists or is made later. Keeps no purgatory alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import purgatory
from timer._fork import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from purgatory import DelayedOperationPurgatory

ObserverT = TypeVar("ObserverT", bound=purgatory.Observer)


class AttachedObservers(Generic[ObserverT]):
    """Observers of one kind, one per purgatory. Any thread may call it.

    Args:
        make: makes the observer of a purgatory.
    """

    def __init__(self, make: Callable[[DelayedOperationPurgatory[Any]], ObserverT]) -> None:
        self._make = make
        self._lock = new_lock()
        self._stop: Callable[[], None] | None = None
        self._observers: weakref.WeakKeyDictionary[DelayedOperationPurgatory[Any], ObserverT]
        self._observers = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Attach to all purgatories, from now on. A second call changes nothing."""
        with self._lock:
            if self._stop is not None:
                return
            # Weakly: a collector that was dropped with its registry must not measure any more.
            mine = weakref.WeakMethod(self._attach)

            def attach(member: DelayedOperationPurgatory[Any]) -> None:
                method = mine()
                if method is not None:
                    method(member)

            self._stop = purgatory.on_start(attach)

    def stop(self) -> None:
        """Detach from all purgatories. Harmless if not started."""
        with self._lock:
            stop, self._stop = self._stop, None
            if stop is not None:
                stop()
            for member, observer in list(self._observers.items()):
                member.detach(observer)
            self._observers.clear()

    def of(self, member: DelayedOperationPurgatory[Any]) -> ObserverT | None:
        """The observer of a purgatory, if there is one."""
        return self._observers.get(member)

    def _attach(self, member: DelayedOperationPurgatory[Any]) -> None:
        if member not in self._observers:  # one that is made during start() comes twice
            observer = self._observers.setdefault(member, self._make(member))
            member.attach(observer)
