"""A timer for tests: the real wheel on a clock that is moved by hand, running everything on the caller's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timer._clock import ManualClock
from timer._task import checked_delay_ms
from timer._timer import SystemTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from timer._bucket import TimerTaskList
    from timer._task import TimerTask

__all__ = ["MockTimer"]


class MockTimer(SystemTimer):
    """A timer whose time passes only in :meth:`advance_clock`.

    Nothing runs but inside ``advance_clock``, on the thread that calls it, in order of deadline; a task added with a
    delay of zero or less runs in the next call, be it ``advance_clock(0)``; if a running task adds it, in the same.
    What a task raises goes to ``on_error``; ``KeyboardInterrupt`` and ``SystemExit`` reach the caller, and the tasks
    still due run in the next call.

    >>> from timer import TimerTask
    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")
    >>> timer = MockTimer()
    >>> timer.add(Ping(20))
    >>> timer.advance_clock(19)
    False
    >>> timer.advance_clock(1)
    ping
    True
    """

    __slots__ = ("_held", "clock")

    def __init__(
        self,
        name: str = "mock-timer",
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        max_pending: int | None = None,
        on_error: Callable[[TimerTask, BaseException], None] | None = None,
    ) -> None:
        #: The clock that the timer runs on.
        self.clock = ManualClock()
        self._held: list[TimerTaskList] = []  # what is due, until time is moved
        super().__init__(
            name,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            clock=self.clock,
            max_pending=max_pending,
            on_error=on_error,
        )
        self._rest_s = 0.0

    @property
    def is_driven(self) -> bool:
        """Always True: by hand."""
        return True

    def advance_clock(self, timeout_ms: float) -> bool:
        """Move the time forward by exactly ``timeout_ms`` and run what has fallen due.

        Returns:
            Whether anything ran.
        """
        checked_delay_ms(timeout_ms)  # is it a time at all; by how much is what was said, not what is rounded up
        self.clock.advance(timeout_ms)
        total = self._dispatcher.total
        fired = total.fired
        self._collect()
        while self._held:
            # Everything that is due, as one batch, for the order of deadlines.
            buckets, self._held = self._held, []
            self._dispatcher.run(buckets)
            self._collect()
        return total.fired > fired

    def shutdown(self) -> list[TimerTask]:
        """Run what was due already, then stop for good and return what was pending, earliest first."""
        if not self.is_closed:
            self.advance_clock(0)
        return super().shutdown()

    def _waiting(self) -> list[TimerTaskList]:
        # What is due waits for the next advance.
        return [*super()._waiting(), *self._held]

    def _hand_over(self, buckets: list[TimerTaskList]) -> None:
        self._held += buckets

    def _put_back(self, buckets: list[TimerTaskList]) -> None:
        self._held[:0] = buckets

    def _collect(self) -> None:
        with self._lock:
            self._flush()
            while self._cascade:
                self._move_a_slice()
            self._flush()
