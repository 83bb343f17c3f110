"""Clocks: anything that answers with monotonic nanoseconds when it is called.

A timer asks its clock on every ``add`` and every look at the wheel, so a clock is a plain callable and the default is
the C function itself, with nothing around it.

What ``time.monotonic_ns`` promises: it never goes back, and no adjustment of the wall clock moves it. What it doesn't:
on Linux it stands still while the machine is suspended, so a delay that spans a suspend runs late by as long as the
machine slept. It never runs early, which is the promise that counts here. Someone who wants time in suspend to count
gives ``clock=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)``; the waits in between are then still of the monotonic
kind, so such a task runs with the first bucket that comes due, or the first task added, after the machine woke.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from timer._errors import TimerConfigError
from timer._fork import new_lock

__all__ = ["NS_PER_MS", "Clock", "ManualClock", "system_clock"]

#: A clock: no arguments, whole nanoseconds, never less than before.
Clock = Callable[[], int]

NS_PER_MS = 1_000_000

system_clock: Clock = time.monotonic_ns


class ManualClock:
    """A clock that stands still until it is moved by hand.

    >>> clock = ManualClock()
    >>> clock.advance(5)
    >>> clock()
    5000000
    """

    __slots__ = ("__weakref__", "_lock", "_now_ns")

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._lock = new_lock()

    def __call__(self) -> int:
        """The time as it was last set, in nanoseconds."""
        return self._now_ns

    def advance(self, ms: float) -> None:
        """Move the time forward.

        Raises:
            TimerConfigError: ``ms`` is negative: a monotonic clock does not go back.
        """
        if not ms >= 0:
            raise TimerConfigError("ms", ms, "zero or more: a monotonic clock does not go back")
        with self._lock:
            self._now_ns += round(ms * NS_PER_MS)
