"""The thread that drives a timer, and comes back if it dies.

A :class:`Driver` is the thread alone: a purgatory that was given somebody else's timer drives it with one and leaves
the timer be at the end. A :class:`SystemTimerReaper` is a timer that drives itself: add to it, and tasks run.

The thread sleeps in the timer until the next occupied bucket, for however long that is; there is no polling. It leaves
a heartbeat each time round, and if something throws it out of its loop (nothing should, but a reaper that is gone means
a service that never answers again) it starts over, and counts that. It does so in the same thread: a successor could
fail to start just when threads are short.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timer._base import Timer
from timer._errors import TimerClosed, TimerConfigError
from timer._fork import new_lock

if TYPE_CHECKING:
    from timer._base import TimerStatistics
    from timer._task import TimerTask

__all__ = ["Driver", "SystemTimerReaper"]


class Driver:
    """A daemon thread that expires what comes due in a timer, until it is stopped or the timer is shut down.

    Any timer will do, by :meth:`Timer.advance_until`. How promptly it stops is up to the timer: at once where waking
    makes it look again, as ``SystemTimer`` does, and within a fifth of a second where it says nothing about it.

    Args:
        name: names the thread.
        timer: what to drive.
        on_restart: told of what threw the thread out of its loop, and how often that has happened; if not given,
            ``threading.excepthook`` is.
    """

    __slots__ = ("__weakref__", "_heartbeat_ns", "_name", "_on_restart", "_restarts", "_stopped", "_thread", "_timer")

    def __init__(
        self, name: str, timer: Timer, *, on_restart: Callable[[BaseException, int], object] | None = None
    ) -> None:
        self._name = name
        self._timer = timer
        self._on_restart = on_restart or _report
        self._stopped = False
        self._restarts = 0
        self._heartbeat_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """The thread."""
        return self._thread

    @property
    def heartbeat_ns(self) -> int:
        """When the thread last went round, on ``time.monotonic_ns``. It rests while it sleeps for a known bucket."""
        return self._heartbeat_ns

    @property
    def restarts(self) -> int:
        """How often the thread was thrown out of its loop, and started over."""
        return self._restarts

    def stop(self) -> None:
        """End the thread, promptly; waits for it unless called from it. Harmless twice."""
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
            except BaseException as error:  # noqa: BLE001  # whatever it is, expiry must go on
                self._restarts += 1
                with contextlib.suppress(BaseException):  # a broken hook must not end the thread either
                    self._on_restart(error, self._restarts)
                time.sleep(0.01)  # a cause that stays must not become a busy loop

    def _is_stopped(self) -> bool:
        return self._stopped

    def _is_over(self) -> bool:
        return self._stopped or self._timer.is_closed


def _report(error: BaseException, restarts: int) -> None:
    del restarts
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


class SystemTimerReaper(Timer):
    """A timer that is driven by its own thread.

    Args:
        name: names the thread.
        timer: the timer to drive; shut down along with the reaper.

    Raises:
        TimerConfigError: ``timer`` is no timer, or somebody drives it already.
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
        """The timer that holds the tasks: the one that is driven, or what that was put around."""
        return self._timer.inner

    @property
    def name(self) -> str:
        """The driven timer's name."""
        return self._timer.name

    @property
    def driver(self) -> Driver | None:
        """The thread and its heartbeat; None after shutdown."""
        return self._driver

    @property
    def is_driven(self) -> bool:
        """Always True: by its own thread."""
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
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the reaper is shut down.
        """
        if self._driver is None:
            raise TimerClosed(self._timer.name)
        self._timer.add(task)

    def put_off(self, task: TimerTask, delay_ms: float) -> bool:
        """Let a pending task run when ``delay_ms`` from now have passed, instead of when it would have."""
        return self._timer.put_off(task, delay_ms)

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait and expire as the thread does, beside it. There is hardly a reason to."""
        return self._timer.advance_clock(timeout_ms)

    def advance_until(self, stopped: Callable[[], bool]) -> bool:
        """Wait and expire as the thread does, beside it."""
        return self._timer.advance_until(stopped)

    def wake(self) -> None:
        """Make the thread look again."""
        self._timer.wake()

    def now_ns(self) -> int:
        """The driven timer's clock."""
        return self._timer.now_ns()

    def statistics(self) -> TimerStatistics | None:
        """The driven timer as it is now; None if it keeps no account."""
        return self._timer.statistics()

    def shutdown(self) -> list[TimerTask]:
        """Stop the thread and shut down the timer, once; returns what was pending, earliest first."""
        with self._closing:
            driver, self._driver = self._driver, None
        if driver is None:
            return []
        driver.stop()
        return self._timer.shutdown()
