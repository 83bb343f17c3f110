"""The thread that drives a timer, alone (:class:`Driver`) or as a part of a timer (:class:`SystemTimerReaper`).

**A timer that was dropped without a shutdown.** While tasks are pending, the thread refers to the timer, because they
must run. While none is pending, the thread *rests*: it has a weak reference only. So the garbage collector can find a
timer that nothing else refers to. The thread then ends, with a ``ResourceWarning`` as for a file that was not closed.

    1. The thread finds the timer empty, registers itself under the timer's lock, and gives up its reference.
    2. Another thread adds a task, under the same lock, and wakes the thread. This gives a reference to the thread.
    3. The program drops the timer. The thread drives it all the same.

The collector may run at any time, on a thread that holds any lock. So it wakes the thread by the release of a lock that
may be free already.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from timer._base import JOIN_ERRORS, Timer, report_error
from timer._errors import TimerClosed, TimerConfigError

if TYPE_CHECKING:
    from timer._base import TimerStatistics
    from timer._task import TimerTask


class Driver:
    """A daemon thread that expires due tasks of any timer, until it is stopped or the timer is shut down or collected.

    It stops at once if the timer defines ``wake``, and within 200 ms otherwise. After an exception it goes on.

    Args:
        name: the thread's name.
        timer: the timer to drive.
        on_restart: called with each exception of the timer and the number of restarts. The default calls
            ``threading.excepthook``. If it refers to the timer, the timer is never collected.
        owner: what was not shut down, for the warning if the timer is collected.

    Attributes:
        thread: the thread.
        heartbeat_ns: when the thread last began a round, on ``time.monotonic_ns``. A round includes its sleep.
        restarts: how often the thread went on after an exception.
    """

    def __init__(
        self,
        name: str,
        timer: Timer,
        *,
        on_restart: Callable[[BaseException, int], object] | None = None,
        owner: str | None = None,
    ) -> None:
        self._timer: Callable[[], Timer | None] = _weakly(timer, self._wake)
        self._woken_by: Timer | None = timer
        self._owner = owner or f"timer {timer.name!r}"
        self._on_restart = on_restart or (lambda error, _: report_error(error))
        self._stopped = False
        self._sleep = threading.Lock()  # the thread rests while it is held
        self._sleep.acquire()
        self.restarts: int = 0
        self.heartbeat_ns: int = time.monotonic_ns()
        self.thread: threading.Thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        timer.driven_by(self)

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after the task that it runs. A second call has no effect.

        Wait until the thread has ended, but not longer than ``timeout_s``. A call from the thread does not wait.
        """
        self._stopped = True
        self._wake()
        timer = self._timer()
        if timer is not None:
            timer.wake()
        if threading.current_thread() is not self.thread:
            with contextlib.suppress(*JOIN_ERRORS):
                self.thread.join(timeout_s)

    def _wake_for(self, timer: Timer) -> None:
        self._woken_by = timer  # first: the program may drop it at once
        self._wake()

    def _wake(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it is free: the thread is awake
            self._sleep.release()

    def _run(self) -> None:
        while not self._stopped:
            timer, self._woken_by = self._woken_by or self._timer(), None
            if timer is None:
                message = f"unclosed {self._owner}: call its shutdown(), or use it in a with statement"
                warnings.warn(message, ResourceWarning, stacklevel=1)
                return
            rests = self._drive(timer)
            del timer
            if rests:
                self._sleep.acquire()

    def _drive(self, timer: Timer) -> bool:
        """Expire what comes due. Returns True if nothing is pending, so that the thread rests. False if it must end."""
        while not self._stopped:
            try:
                if timer.is_closed:
                    self._stopped = True
                    break
                self.heartbeat_ns = time.monotonic_ns()
                timer.advance_until(lambda: self._stopped or timer._is_empty())
                if timer._rest(self._wake_for):
                    return True
            except BaseException as error:  # noqa: BLE001  # expiry must continue
                self.restarts += 1
                with contextlib.suppress(BaseException):  # a broken hook must not end the thread either
                    self._on_restart(error, self.restarts)
                time.sleep(0.01)  # a permanent failure must not become a busy loop
        return False


def _weakly(timer: Timer, collected: Callable[[object], object]) -> Callable[[], Timer | None]:
    """A weak reference to a timer, or a strong one if its class has ``__slots__`` without ``__weakref__``."""
    try:
        return weakref.ref(timer, collected)
    except TypeError:
        return lambda: timer


class SystemTimerReaper(Timer):
    """A timer that is driven by a thread of its own.

    Args:
        name: the thread's name.
        timer: the timer to drive. It is shut down with the reaper.

    Attributes:
        timer: the timer that is driven.
        inner: the timer that holds the tasks: ``timer``, or the one that it wraps.
        driver: the thread and its heartbeat. None after shutdown.

    Raises:
        TimerConfigError: ``timer`` is not a timer, or has a driver already.
    """

    __slots__ = ("__weakref__", "driver", "inner", "name", "timer")

    inner: Timer
    name: str
    driver: Driver | None

    def __init__(self, name: str, timer: Timer) -> None:
        if not isinstance(timer, Timer) or timer.is_driven:
            raise TimerConfigError("timer", timer, "a Timer that nothing drives yet")
        self.timer: Timer = timer
        self.inner = timer.inner
        self.name = timer.name
        self.driver = Driver(name, timer)

    @property
    def is_closed(self) -> bool:
        """Whether a shutdown of the reaper has begun, or the timer under it was shut down."""
        driver = self.driver
        return driver is None or driver._stopped or self.timer.is_closed

    @property
    def size(self) -> int:
        return self.timer.size

    def add(self, task: TimerTask) -> None:
        driver = self.driver
        if driver is None or driver._stopped:  # no thread would run the task
            raise TimerClosed(self.name)
        self.timer.add(task)

    def reschedule(self, task: TimerTask, delay_ms: float | None) -> bool:
        return self.timer.reschedule(task, delay_ms)

    def advance_clock(self, timeout_ms: float) -> bool:
        return self.timer.advance_clock(timeout_ms)

    def now_ns(self) -> int:
        return self.timer.now_ns()

    def statistics(self) -> TimerStatistics | None:
        return self.timer.statistics()

    def shutdown(self) -> list[TimerTask]:
        """Stop the thread and shut down the timer. Returns the tasks that were pending, earliest first.

        Waits for running tasks without a time limit, unless called from one of them.
        """
        driver = self.driver
        if driver is None:
            return []
        driver.stop()
        pending = self.timer.shutdown()
        self.driver = None  # last: after an interrupt, the next call shuts down
        return pending
