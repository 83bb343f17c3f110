"""The keeper: a background thread for what nobody who is here can finish.

Two kinds of work reach it, both rare: a check or an expiry that found an operation's lock held by code outside the
library (a lock shared by way of ``lock=``), and the rest of a purge too large for the thread that started it. The
thread is made when the first work comes and ends when none has come for a while, so most purgatories never have one.

If no thread can be had, the purgatory's timer stands in: it makes one round every :data:`STAND_IN_MS`.

It never blocks on a lock. It tries each waiting operation in turn, so that one lock held for long delays nobody else's
operation, and rests between rounds, from a quarter of a millisecond up to :data:`LONGEST_REST_S` while nothing moves.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from purgatory._log import log, throttle
from timer import TimerTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from purgatory._operation import Operation
    from timer import Timer

__all__ = ["Keeper"]

SHORTEST_REST_S = 0.00025
LONGEST_REST_S = 0.02
#: How long the thread stays without work.
IDLE_S = 5.0
#: How long the timer waits before it makes a round.
STAND_IN_MS = 20


class _Round(TimerTask):
    """One round, made by the timer."""

    __slots__ = ("_keeper",)

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(STAND_IN_MS)
        self._keeper = keeper

    def run(self) -> None:
        self._keeper.stand_in()


class Keeper:
    """Tries again what was missed, and works off purge debt, on a thread of its own that comes and goes.

    Args:
        name: names the thread.
        purge_slice: drops some entries; answers whether there is more to drop.
        timer: stands in while no thread can be had.
    """

    __slots__ = ("_changed", "_missed", "_name", "_purge_slice", "_purging", "_round", "_stopped", "_thread", "_timer")

    def __init__(self, name: str, purge_slice: Callable[[], bool], timer: Timer | None = None) -> None:
        self._name = name
        self._purge_slice = purge_slice
        self._changed = threading.Condition(threading.Lock())
        self._missed: dict[Operation, None] = {}
        self._purging = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._timer = timer
        self._round: _Round | None = None  # while the timer has it

    def retry(self, operation: Operation) -> None:
        """Try the operation until its lock could be had."""
        with self._changed:
            if self._stopped:
                return
            self._missed[operation] = None
            stand_in = self._wake()
        self._ask(stand_in)

    def purge(self) -> None:
        """Work off the purge debt."""
        with self._changed:
            if self._purging and self._is_up():
                return
            self._purging = True
            stand_in = self._wake()
        self._ask(stand_in)

    def stand_in(self) -> None:
        """Make one round in the place of the thread that could not be had. Called by the timer."""
        with self._changed:
            self._round = None
            waiting, purging = self._take()
        for operation in waiting:
            self._try(operation)
        if purging and self._purge():
            self.purge()

    def stop(self) -> None:
        """End the thread; waits for it unless called from it. What is still missed is dropped."""
        with self._changed:
            self._stopped = True
            self._missed.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _is_up(self) -> bool:
        # A fork leaves the thread behind.
        return self._thread is not None and self._thread.is_alive()

    def _take(self) -> tuple[list[Operation], bool]:
        """What there is to do. Taken out before it is tried: whoever misses meanwhile puts the operation in again."""
        waiting, purging = list(self._missed), self._purging
        self._missed.clear()
        self._purging = False
        return waiting, purging

    def _wake(self) -> _Round | None:
        """See that somebody does the work; a round for the timer, if no thread can be had. The lock is held."""
        if self._is_up():
            self._changed.notify_all()
        elif not self._stopped:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads to be had
                if throttle.admit("keeper_not_started", self._name) is not None:
                    log.error("keeper_not_started", keeper=self._name, error=repr(error))
                if self._round is None and self._timer is not None:
                    self._round = _Round(self)
                    return self._round
            else:
                self._thread = thread
        return None

    def _ask(self, stand_in: _Round | None) -> None:
        """Ask the timer for a round. Without the lock, as the timer has one of its own."""
        if stand_in is None or self._timer is None:
            return
        try:
            self._timer.add(stand_in)
        except Exception as error:  # noqa: BLE001  # full, or shut down: the work stays noted for the next occasion
            with self._changed:
                self._round = None
            log.error("keeper_not_started", keeper=self._name, error=repr(error))

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
                waiting, purging = self._take()
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
    def _try(operation: Operation) -> None:
        """Try once; one whose lock is still held comes back by itself, through :meth:`retry`."""
        try:
            operation.maybe_try_complete()
        except BaseException as error:  # noqa: BLE001  # this is nobody's own thread, and it must go on
            operation._contain("try_complete", error)
