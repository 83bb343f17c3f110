"""The thread that drives a timer and survives exceptions.

A :class:`Driver` is the thread alone. A purgatory drives a timer that it was given with one. A
:class:`SystemTimerReaper` is a timer with a thread of its own.

The thread sleeps in the timer until the time of the next bucket with tasks. In each round of its loop it writes a
heartbeat. If an exception ends the loop, the same thread starts the loop again and counts a restart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timer._base import Timer, report_error
from timer._errors import TimerClosed, TimerConfigError
from timer._fork import new_lock

if TYPE_CHECKING:
    from timer._base import TimerStatistics
    from timer._task import TimerTask


class Driver:
    """A daemon thread that expires due tasks of a timer, until it is stopped or the timer is shut down.

    It works with any timer, because it calls only :meth:`Timer.advance_until`. It stops at once if the timer defines
    ``wake``, as ``SystemTimer`` does, and within 200 ms otherwise.

    Args:
        name: the thread's name.
        timer: the timer to drive.
        on_restart: called with the exception that ended the loop and the number of restarts. If not given, the
            exception goes to ``threading.excepthook``.
    """

    __slots__ = ("__weakref__", "_heartbeat_ns", "_name", "_on_restart", "_restarts", "_stopped", "_thread", "_timer")

    def __init__(
        self, name: str, timer: Timer, *, on_restart: Callable[[BaseException, int], object] | None = None
    ) -> None:
        self._name = name
        self._timer = timer
        self._on_restart = on_restart or (lambda error, _: report_error(error))
        self._stopped = False
        self._restarts = 0
        self._heartbeat_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    @property
    def heartbeat_ns(self) -> int:
        """When the thread last began a round, on ``time.monotonic_ns``. It does not change while the thread sleeps."""
        return self._heartbeat_ns

    @property
    def restarts(self) -> int:
        """How often an exception ended the thread's loop, which then started again."""
        return self._restarts

    def stop(self) -> None:
        """End the thread, and wait for it unless called from it. A second call has no effect."""
        self._stopped = True
        self._timer.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over():
            try:
                while not self._is_over():
                    self._heartbeat_ns = time.monotonic_ns()
                    self._timer.advance_until(self._is_stopped)
            except BaseException as error:  # noqa: BLE001  # expiry must continue
                self._restarts += 1
                with contextlib.suppress(BaseException):  # a broken hook must not end the thread either
                    self._on_restart(error, self._restarts)
                time.sleep(0.01)  # a permanent failure must not become a busy loop

    def _is_stopped(self) -> bool:
        return self._stopped

    def _is_over(self) -> bool:
        return self._stopped or self._timer.is_closed


class SystemTimerReaper(Timer):
    """A timer that is driven by a thread of its own.

    Args:
        name: the thread's name.
        timer: the timer to drive. It is shut down with the reaper.

    Raises:
        TimerConfigError: ``timer`` is not a timer, or is driven already.
    """

    __slots__ = ("__weakref__", "_closing", "_driver", "_timer")

    def __init__(self, name: str, timer: Timer) -> None:
        if not isinstance(timer, Timer) or timer.is_driven:
            raise TimerConfigError("timer", timer, "a Timer that nothing drives yet")
        self._timer = timer
        self._closing = new_lock()
        self._driver: Driver | None = Driver(name, timer)
        timer.driven_by(self._driver)

    @property
    def timer(self) -> Timer:
        """The timer that is driven."""
        return self._timer

    @property
    def inner(self) -> Timer:
        """The timer that holds the tasks: the driven timer, or the one that it wraps."""
        return self._timer.inner

    @property
    def name(self) -> str:
        """The driven timer's name."""
        return self._timer.name

    @property
    def driver(self) -> Driver | None:
        """The thread and its heartbeat. None after shutdown."""
        return self._driver

    @property
    def is_driven(self) -> bool:
        """Always True: its own thread drives it."""
        return True

    @property
    def is_closed(self) -> bool:
        """Whether the reaper, or the timer under it, was shut down."""
        return self._driver is None or self._timer.is_closed

    @property
    def size(self) -> int:
        """How many tasks are pending."""
        return self._timer.size

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed. See :meth:`Timer.add`."""
        if self._driver is None:
            raise TimerClosed(self._timer.name)
        self._timer.add(task)

    def put_off(self, task: TimerTask, delay_ms: float) -> bool:
        """Move the deadline of a pending task to ``delay_ms`` from now. See :meth:`Timer.put_off`."""
        return self._timer.put_off(task, delay_ms)

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait and expire as the thread does, in addition to it. This is rarely useful."""
        return self._timer.advance_clock(timeout_ms)

    def now_ns(self) -> int:
        """The driven timer's clock."""
        return self._timer.now_ns()

    def statistics(self) -> TimerStatistics | None:
        """The driven timer as it is now. None if it keeps no statistics."""
        return self._timer.statistics()

    def shutdown(self) -> list[TimerTask]:
        """Stop the thread and shut down the timer.

        Returns:
            The tasks that were pending, earliest first. An empty list the second time.
        """
        with self._closing:
            driver, self._driver = self._driver, None
        if driver is None:
            return []
        driver.stop()
        return self._timer.shutdown()
