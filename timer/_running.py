"""Which calls run now: of a task's ``run``, of a hook of an operation, or of an observer.

The code that makes such a call records it before, and removes the record afterwards. Each record has the task, the name
of the hook, and a number of its own. Other code reads these records instead of stack frames:

- A shutdown does not wait for the hook that called it, and a hook cannot park its own operation.
- The watchdog finds calls that have run for long.

Each thread has a list of its own, with the innermost call last. Only that thread changes it, in single statements
that no signal handler can interrupt.

``threading.get_ident`` is the number of the thread. Under gevent, which replaces that function, it is the greenlet's.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from timer._fork import call_after_fork
from timer._implementation import CORE

if TYPE_CHECKING:
    from timer._task import TimerTaskEntry

T = TypeVar("T")

#: Thread, task, name of the hook, and the call's own number, which is never used again.
Call = tuple[int, Any, str, int]

#: The numbers of calls.
numbers = itertools.count(1)
#: Callbacks to run when the next recorded call begins.
wakes: list[Callable[[], object]] = []


class _Calls(list[tuple[Any, str, int]]):
    """The calls that run on one thread."""

    __slots__ = ("__weakref__",)


_threads: weakref.WeakValueDictionary[int, _Calls] = weakref.WeakValueDictionary()


class _Here(threading.local):
    """The calling thread's calls.

    A record is added before a call, and removed in a ``finally``, without another call in between::

        calls = here.calls
        record = (task, hook, next(numbers))
        calls += (record,)
        try:
            ...
        finally:
            if calls[-1] is record:
                del calls[-1]
            else:
                remove(calls, record)
    """

    def __init__(self) -> None:
        self.calls = _threads[threading.get_ident()] = _Calls()


here: Final = _Here()


def wake() -> None:
    """Call what waits for the next call to begin."""
    with contextlib.suppress(IndexError, RuntimeError):
        wakes.pop()()


def remove(calls: list[tuple[Any, str, int]], record: tuple[Any, str, int]) -> None:
    """Remove a record that is not the last one: greenlets of one thread may end in any order."""
    for at in range(len(calls) - 1, -1, -1):
        if calls[at] is record:
            del calls[at]
            return


def call(task: TimerTaskEntry, hook: str, function: Callable[..., T], /, *args: Any) -> T:
    """Return ``function(*args)``, and record the call as a hook of ``task`` while it runs."""
    calls = here.calls
    record = (task, hook, next(numbers))
    calls += (record,)
    try:
        if wakes:
            wake()
        return function(*args)
    finally:
        if calls[-1] is record:
            del calls[-1]
        else:
            remove(calls, record)


def _threads_now() -> list[tuple[int, _Calls]]:
    """Each thread with its calls. Taken in one step: another thread may begin its first call at any time."""
    return [(ref.key, calls) for ref in _threads.valuerefs() if (calls := ref()) is not None]


def calls() -> list[Call]:
    """All calls that run now. Those of one thread are in the order in which they began, the innermost last."""
    return [(thread, *each) for thread, calls in _threads_now() for each in list(calls)]


def wake_at_next_call(wake: Callable[[], object]) -> None:
    """Call ``wake()`` once, when the next call begins. It is the ``release`` of a lock that may be free already."""
    wakes[:] = [wake]


class _Child:
    """Forgets, in a forked child, the calls of threads that the child does not have."""

    def after_fork(self) -> None:
        me = threading.get_ident()
        for thread, calls in _threads_now():
            if thread != me:
                calls.clear()


_child: Final = _Child()
call_after_fork(_child)

if not TYPE_CHECKING and CORE is not None:
    call, calls, wake_at_next_call = CORE.call, CORE.calls, CORE.wake_at_next_call
    if threading.get_ident.__module__ != "_thread":  # replaced, by gevent for example
        CORE.name_threads_by(threading.get_ident)


def calls_here() -> list[Call]:
    """The calls that run on the calling thread, the outermost first."""
    me = threading.get_ident()
    return [each for each in calls() if each[0] == me]
