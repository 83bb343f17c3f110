"""The retrier: a background thread that repeats checks.

It repeats a check that found a user's lock taken (``lock=``), and a check whose thread was interrupted. The thread
starts with the first such check and ends when none has come for a while. If no thread can be started, the purgatory's
timer makes the rounds. A round tries each operation once and never blocks, so a lock that is held for long delays no
other operation.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from purgatory._core.log import log, throttle
from timer import TimerTask
from timer._base import JOIN_ERRORS, is_alive

if TYPE_CHECKING:
    from timer import Timer

SHORTEST_SLEEP_S = 0.00025
LONGEST_SLEEP_S = 0.02
#: How long the thread stays without work.
IDLE_S = 5.0
#: How long the timer waits before it makes a round.
TIMER_ROUND_MS = 20


class Retrier(TimerTask):
    """Repeats checks on a thread that exists only while there are any, or else on ``timer``."""

    __slots__ = ("_changed", "_lock", "_name", "_queued", "_stopped", "_thread", "_timer")

    def __init__(self, name: str, timer: Timer | None = None) -> None:
        super().__init__(TIMER_ROUND_MS)
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queued: dict[Any, int] = {}  # the operations to check again, by how often each was queued
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._timer = timer

    def retry(self, operation: Any) -> None:
        """Queue the operation. The thread checks it until its lock can be taken."""
        with self._lock:
            if self._stopped:
                return
            self._queued[operation] = self._queued.get(operation, 0) + 1
            if self._thread is not None and is_alive(self._thread):
                self._changed.notify_all()
                return
            try:
                # Assigned before start(): if start() is interrupted, stop() still finds the thread.
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                return
            except (RuntimeError, MemoryError) as error:  # the process has no more threads
                self._thread = None
                why = error
        self._ask_timer(why)

    def run(self) -> None:
        """Make one round, because no thread could be started. Called by the timer."""
        self._try_each()

    def _try_each(self) -> None:
        with self._lock:
            queued = list(self._queued.items())
        for operation, times in queued:
            try:
                operation.maybe_try_complete()  # calls retry() again if the user's lock is still taken
            except BaseException as error:  # noqa: BLE001  # no caller waits for this thread, and it must go on
                with contextlib.suppress(BaseException):  # a log handler that raises must not end it either
                    operation._op_home_shard.observers.contain(operation, "try_complete", error)
            with self._lock:
                if self._queued.get(operation) == times:  # it was not queued again meanwhile
                    del self._queued[operation]

    def has(self, operation: Any) -> bool:
        """Whether it will check the operation."""
        return operation in self._queued

    def waiting(self) -> list[Any]:
        """The operations to try again, and those that are being tried. Some may have completed meanwhile."""
        with self._lock:
            return list(self._queued)

    def after_fork(self) -> None:
        """In a forked child: make a new lock, and leave the checks to the parent.

        The child has no such thread, and a lock that a check waits for may be held by another thread that it lacks.
        """
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread = None
        self._queued.clear()

    def stop(self, timeout_s: float) -> None:
        """End the thread after the check that it makes, and drop the others. Wait for it up to ``timeout_s``.

        A call from the thread itself does not wait.
        """
        with self._lock:
            self._stopped = True
            self._queued.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(*JOIN_ERRORS):  # also if the thread was not started yet
                thread.join(timeout_s)

    def _ask_timer(self, why: Exception) -> None:
        """Let the timer make a round. The lock is not held, because a log handler may call back."""
        is_logged = throttle.admit("retrier_not_started", self._name) is not None
        if is_logged:
            log.error("retrier_not_started", retrier=self._name, error=repr(why))
        if self._timer is None or self.is_pending:
            return
        try:
            self._timer.add(self)
        except Exception as error:  # noqa: BLE001  # full, or shut down: the operations stay for the next round
            if is_logged:
                log.error("retrier_not_started", retrier=self._name, error=repr(error))

    def _run(self) -> None:
        sleep_s = SHORTEST_SLEEP_S
        while True:
            with self._lock:
                if not self._queued and not self._stopped:
                    self._changed.wait(IDLE_S)
                    sleep_s = SHORTEST_SLEEP_S
                if not self._queued:
                    self._thread = None
                    return
                before = len(self._queued)
            self._try_each()
            with self._lock:
                if len(self._queued) < before:
                    sleep_s = SHORTEST_SLEEP_S
                if self._queued:
                    self._changed.wait(sleep_s)
                    sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
