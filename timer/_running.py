"""Which calls run now: of a task's ``run``, of a hook of an operation, or of an observer.

The code that makes such a call records it before, and removes the record afterwards. Each record has the thread's
number, the task, the name of the hook, and a number of its own. So other code reads records, and no frame of a stack:

- A shutdown does not wait for the hook that called it, and a hook cannot park its own operation.
- The watchdog finds calls that have run for long.

``threading.get_ident`` is the number of the thread. Under gevent, which replaces that function, it is the greenlet's.

The C code keeps the records of each thread in an array of that thread, which costs a few nanoseconds per call.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from timer._fork import call_after_fork
from timer._implementation import CORE

if TYPE_CHECKING:
    from timer._task import TimerTaskEntry

T = TypeVar("T")

#: Thread, task, name of the hook, and the call's own number, which is never used again.
Call = tuple[int, Any, str, int]

numbers = itertools.count(1)
_calls: dict[int, Call] = {}  # by number, so that calls of one thread are in the order in which they began
_wakes: list[Callable[[], object]] = []


def begin(number: int, task: TimerTaskEntry, hook: str) -> None:
    """Record a call. Use it within ``try``, with :func:`end` in ``finally``: an interrupt may come at any time."""
    _calls[number] = threading.get_ident(), task, hook, number
    while _wakes:
        with contextlib.suppress(IndexError, RuntimeError):
            _wakes.pop()()


#: ``end(number, None)`` removes the record of a call, if there is one. One call of C, which no interrupt divides.
end = _calls.pop


def call(task: TimerTaskEntry, hook: str, function: Callable[..., T], /, *args: Any) -> T:
    """Return ``function(*args)``, and record the call as a hook of ``task`` while it runs."""
    number = next(numbers)
    try:
        begin(number, task, hook)
        return function(*args)
    finally:
        end(number, None)


def calls() -> list[Call]:
    """All calls that run now. Those of one thread are in the order in which they began, the innermost last."""
    return list(_calls.copy().values())


def wake_at_next_call(wake: Callable[[], object]) -> None:
    """Call ``wake()`` once, when the next call begins. It is the ``release`` of a lock that may be free already."""
    _wakes[:] = [wake]


class _Child:
    """Forgets, in a forked child, the calls of threads that the child does not have."""

    def after_fork(self) -> None:
        me = threading.get_ident()
        for thread, _, _, number in calls():
            if thread != me:
                end(number, None)


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
