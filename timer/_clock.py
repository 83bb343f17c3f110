"""Clocks: callables that return monotonic nanoseconds.

``time.monotonic_ns``, the default, does not advance while Linux is suspended. So a delay that spans a suspend is late
by its length. If suspended time must count, pass ``clock=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)``. The
driver's sleep still does not count it: due tasks run after the resume, when a bucket comes due or a task is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from timer._errors import TimerConfigError
from timer._fork import new_lock

#: A clock: a callable without arguments that returns nanoseconds as an int, and never less than before.
Clock = Callable[[], int]

#: Nanoseconds per millisecond. Delays are milliseconds, and clocks are nanoseconds.
NS_PER_MS = 1_000_000

#: What a clock may return, so that deadlines fit into 64 bits: 126 years.
LEAST_NOW_NS: Final = -(10**18)
MOST_NOW_NS: Final = 4 * 10**18

#: The furthest that a manual clock is advanced at once: as far as the longest delay.
MOST_ADVANCE_MS: Final = 10**12

system_clock: Clock = time.monotonic_ns


class ManualClock:
    """A clock that advances only in :meth:`advance`. :class:`~timer.SystemTimer` has an example."""

    __slots__ = ("__weakref__", "_lock", "_now_ns")

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._lock = new_lock()

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, ms: float) -> None:
        """Move the time forward, by up to 10**12 ms. Raises :class:`TimerConfigError` for any other ``ms``."""
        if not 0 <= ms <= MOST_ADVANCE_MS:
            raise TimerConfigError("ms", ms, "from 0 to 10**12: a monotonic clock does not go back")
        with self._lock:
            self._now_ns += round(ms * NS_PER_MS)
