"""The keeper: a background thread for what nobody who is here can finish.

Two kinds of work reach it, both rare: a check or an expiry that found an operation's lock held by code outside the
library (a lock shared by way of ``lock=``), and the rest of a purge too large for the thread that started it. The
thread is made when the first work comes and ends when none has come for a while, so most purgatories never have one.

It never blocks on a lock. It tries each waiting operation in turn, so that one lock held for long delays nobody else's
operation, and rests between rounds, from a quarter of a millisecond up to :data:`LONGEST_REST_S` while nothing moves.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from purgatory._log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from purgatory._operation import DelayedOperation

__all__ = ["Keeper"]

SHORTEST_REST_S = 0.00025
LONGEST_REST_S = 0.02
#: How long the thread stays without work.
IDLE_S = 5.0


class Keeper:
    """Tries again what was missed, and works off purge debt, on a thread of its own that comes and goes.

    Args:
        name: names the thread.
        purge_slice: drops some entries; answers whether there is more to drop.
    """

    __slots__ = ("_changed", "_missed", "_name", "_purge_slice", "_purging", "_stopped", "_thread")

    def __init__(self, name: str, purge_slice: Callable[[], bool]) -> None:
        self._name = name
        self._purge_slice = purge_slice
        self._changed = threading.Condition(threading.Lock())
        self._missed: dict[DelayedOperation, None] = {}
        self._purging = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def retry(self, operation: DelayedOperation) -> None:
        """Try the operation until its lock could be had."""
        with self._changed:
            self._missed[operation] = None
            self._wake()

    def purge(self) -> None:
        """Work off the purge debt."""
        with self._changed:
            if not self._purging or self._thread is None:
                self._purging = True
                self._wake()

    def stop(self) -> None:
        """End the thread; waits for it unless called from it. What is still missed is dropped."""
        with self._changed:
            self._stopped = True
            self._missed.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        if self._thread is not None:
            self._changed.notify_all()
        elif not self._stopped:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads to be had: the work stays noted for the next occasion
                log.error("keeper_not_started", keeper=self._name, error=repr(error))
                return
            self._thread = thread

    def _run(self) -> None:
        rest_s = SHORTEST_REST_S
        while True:
            with self._changed:
                if not self._missed and not self._purging and not self._stopped:
                    self._changed.wait(IDLE_S)
                    rest_s = SHORTEST_REST_S
                if self._stopped or not (self._missed or self._purging):
                    self._thread = None
                    return
                # Taken out before they are tried: whoever misses meanwhile puts the operation in again.
                waiting = list(self._missed)
                self._missed.clear()
                purging, self._purging = self._purging, False
            more = purging and self._purge()
            for operation in waiting:
                self._try(operation)
            with self._changed:
                self._purging = self._purging or more
                if more or len(self._missed) < len(waiting):
                    rest_s = SHORTEST_REST_S
                if (self._missed or self._purging) and not self._stopped:
                    self._changed.wait(rest_s)
                    rest_s = min(2 * rest_s, LONGEST_REST_S)

    def _purge(self) -> bool:
        try:
            return self._purge_slice()
        except BaseException as error:  # noqa: BLE001  # the next purge may do better; this thread must go on
            log.error("purge_failed", keeper=self._name, error=repr(error), exc_info=error)
            return False

    @staticmethod
    def _try(operation: DelayedOperation) -> None:
        """Try once; one whose lock is still held comes back by itself, through :meth:`retry`."""
        try:
            operation.maybe_try_complete()
        except BaseException as error:  # noqa: BLE001  # this is nobody's own thread, and it must go on
            operation._contain("try_complete", error)
