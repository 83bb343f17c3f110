"""Locks that are free in a forked child, and a call for everything else that a child must change.

A fork copies every lock as it is, but only the thread that forked. A lock that another thread held at that moment would
stay locked in the child for ever. So the library makes its locks here, and each child reinitializes them before any
other code runs in it. Two rules follow:

1. A plain lock, a condition or an event must not be held while code of the user runs. That code may fork, and the
   child would leave a ``with`` block whose lock is already free. A re-entrant lock may be held.
2. Data behind a lock may be half changed in a child. What a child needs must be written in one step, or repaired by
   :func:`call_after_fork`.

An object that must do more, for example forget a thread, defines ``after_fork()`` and calls :func:`call_after_fork` at
the end of its constructor. All locks made here are free by then. A purgatory also replaces its other locks there.

Rejected: acquire all locks before a fork and release them after it. The fork would wait for the slowest holder.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar


class AfterFork(Protocol):
    def after_fork(self) -> None:
        """Make this copy usable in a forked child, which has none of the parent's other threads."""


Report = Callable[[AfterFork, Exception], None]

Lock = TypeVar("Lock")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_rlocks: weakref.WeakSet[Any] = weakref.WeakSet()
_objects: weakref.WeakValueDictionary[int, AfterFork] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _kept(lock: Lock, among: weakref.WeakSet[Any]) -> Lock:
    among.add(lock)
    return lock


def new_lock() -> threading.Lock:
    """Return a new lock that is free in a forked child."""
    return _kept(threading.Lock(), _locks)


def new_rlock() -> threading.RLock:
    """Return a new re-entrant lock that is free in a forked child, unless the thread that forks owns it."""
    return _kept(threading.RLock(), _rlocks)


def new_condition(lock: threading.Lock | None = None) -> threading.Condition:
    """Return a new condition on ``lock``, or on a new plain lock. In a forked child it is free and no thread waits."""
    return _kept(threading.Condition(threading.Lock() if lock is None else lock), _locks)  # its own is freed with it


def new_event() -> threading.Event:
    """Return a new event. A forked child finds it set or not set, as it was, and can wait for it."""
    return _kept(threading.Event(), _locks)


def call_after_fork(thing: AfterFork) -> None:
    """Call ``thing.after_fork()`` in each forked child, in order of registration, while ``thing`` is referenced."""
    _objects[next(_numbers)] = thing


def free_future(future: Future[Any]) -> None:
    """Free a future's own lock in a forked child. Another thread may have held it, to add a callback for example."""
    future._condition._at_fork_reinit()  # type: ignore[attr-defined]


def _report_unraisable(thing: AfterFork, error: Exception) -> None:
    sys.unraisablehook(
        SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=thing
        )
    )


_report: Report = _report_unraisable


def report_failures_to(report: Report) -> None:
    """Report exceptions of ``after_fork()`` methods to ``report(thing, error)``, instead of ``sys.unraisablehook``."""
    global _report  # noqa: PLW0603
    _report = report


def _restart() -> None:
    """Free all locks, then call all objects. Runs in a forked child before any other code."""
    for lock in list(_locks):
        lock._at_fork_reinit()
    for lock in list(_rlocks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    for thing in list(_objects.values()):
        try:
            thing.after_fork()
        except Exception as error:  # noqa: BLE001  # the other objects must be called, too
            _report(thing, error)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_restart)
