"""The retrier: a background thread that repeats checks.

Two kinds of checks reach it. Both are rare: a check that found a user's lock taken (``lock=``), and a check whose
thread was interrupted. The thread starts with the first such check and ends when none has come for a while, so most
purgatories never have one. If no thread can be started, the purgatory's timer makes one round every
:data:`TIMER_ROUND_MS`.

The retrier never blocks on a lock. It tries each operation in turn, so one lock that is held for long delays no other
operation. Between rounds it sleeps, from a quarter of a millisecond up to :data:`LONGEST_SLEEP_S` while no lock becomes
free.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from purgatory._events.log import log, throttle
from timer import TimerTask

if TYPE_CHECKING:
    from timer import Timer

SHORTEST_SLEEP_S = 0.00025
LONGEST_SLEEP_S = 0.02
#: How long the thread stays without work.
IDLE_S = 5.0
#: How long the timer waits before it makes a round.
TIMER_ROUND_MS = 20


class _Round(TimerTask):
    """One round, made by the timer."""

    __slots__ = ("_retrier",)

    def __init__(self, retrier: Retrier) -> None:
        super().__init__(TIMER_ROUND_MS)
        self._retrier = retrier

    def run(self) -> None:
        self._retrier.run_once()


class Retrier:
    """Repeats checks on a thread that exists only while there are any.

    Args:
        name: names the thread.
        timer: makes the rounds if no thread can be started.
    """

    __slots__ = ("_changed", "_missed", "_name", "_round", "_stopped", "_thread", "_timer", "_trying")

    def __init__(self, name: str, timer: Timer | None = None) -> None:
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._missed: dict[Any, None] = {}
        self._trying: list[Any] = []  # the operations of the current round, removed from _missed
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._timer = timer
        self._round: _Round | None = None  # while the timer has it

    def retry(self, operation: Any) -> None:
        """Check the operation, and repeat that until its lock can be taken."""
        with self._changed:
            if self._stopped:
                return
            self._missed[operation] = None
            error = self._wake()
        if error is not None:
            self._ask_timer(error)

    def run_once(self) -> None:
        """Make one round, because no thread could be started. Called by the timer."""
        with self._changed:
            self._round = None
            missed = self._take()
        for operation in missed:
            self._try(operation)
        with self._changed:
            if self._trying is missed:
                self._trying = []

    def waiting(self) -> list[Any]:
        """The operations to try again, and those that are being tried. Some may have completed meanwhile."""
        with self._changed:
            return [*self._missed, *self._trying]

    def after_fork(self) -> None:
        """In a forked child: make a new lock, and leave the checks to the parent.

        The child has no such thread, and a lock that a check waits for may be held by another thread that it lacks.
        """
        self._changed = threading.Condition(threading.Lock())
        self._thread = self._round = None
        self._missed.clear()
        self._trying = []

    def stop(self) -> None:
        """End the thread, and wait for it unless it is the caller. Checks that were not repeated yet are dropped."""
        with self._changed:
            self._stopped = True
            self._missed.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _take(self) -> list[Any]:
        """Remove and return the operations of the next round. A check that misses the lock adds its operation again."""
        self._trying = missed = list(self._missed)
        self._missed.clear()
        return missed

    def _wake(self) -> RuntimeError | None:
        """Wake or start the thread. Returns why it cannot be started. The lock is held."""
        if self._thread is not None and self._thread.is_alive():  # in a forked child it is not
            self._changed.notify_all()
            return None
        # Assigned before start(): if start() is interrupted, stop() still finds the thread.
        self._thread = thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has no more threads
            self._thread = None
            return error
        return None

    def _ask_timer(self, why: RuntimeError) -> None:
        """Let the timer make a round. Called without the lock, because a log handler may call back."""
        is_logged = throttle.admit("retrier_not_started", self._name) is not None
        if is_logged:
            log.error("retrier_not_started", retrier=self._name, error=repr(why))
        if self._timer is None:
            return
        with self._changed:
            if self._round is not None:
                return
            self._round = timer_round = _Round(self)
        try:
            self._timer.add(timer_round)
        except Exception as error:  # noqa: BLE001  # full, or shut down: the operations stay for the next round
            with self._changed:
                self._round = None
            if is_logged:
                log.error("retrier_not_started", retrier=self._name, error=repr(error))

    def _run(self) -> None:
        sleep_s = SHORTEST_SLEEP_S
        while True:
            with self._changed:
                if not self._missed and not self._stopped:
                    self._trying = []
                    self._changed.wait(IDLE_S)
                    sleep_s = SHORTEST_SLEEP_S
                if self._stopped or not self._missed:
                    self._thread = None
                    self._trying = []
                    return
                missed = self._take()
            for operation in missed:
                self._try(operation)
            with self._changed:
                if len(self._missed) < len(missed):
                    sleep_s = SHORTEST_SLEEP_S
                if self._missed and not self._stopped:
                    self._changed.wait(sleep_s)
                    sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)

    @staticmethod
    def _try(operation: Any) -> None:
        """Check once.

        If the user's lock is still taken, the check calls :meth:`retry` again. If another thread has the turn, that
        thread checks again, or passes the operation to the retrier if it is interrupted.
        """
        try:
            operation.maybe_try_complete()
        except BaseException as error:  # noqa: BLE001  # no caller waits for this thread, and it must go on
            with contextlib.suppress(BaseException):  # a log handler that raises must not end it either
                operation._op_home_shard.observers.contain(operation, "try_complete", error)
