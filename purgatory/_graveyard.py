"""What finished operations leave behind, and how it is cleared away.

An operation is completed through one of its keys; under the others it leaves tombstones (see ``purgatory._watchers``).
Each is noted here, as is a key under which nobody waits any more. Once more than ``purge_interval`` are noted,
whoever adds one clears away up to :data:`SLICE` of them, and the keeper the rest. So a purge costs as much as it
drops, whatever else is parked: nothing is searched. Kafka's purge walks every entry of every list, the living ones too.

A key is removed by the purge rather than with its last operation, because it may well be wanted again: a
topic-partition is parked on and satisfied all day long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from purgatory._keeper import Keeper
from purgatory._log import log, throttle

if TYPE_CHECKING:
    from purgatory._operation import Operation
    from purgatory._watchers import Watchers
    from timer import Timer

__all__ = ["Graveyard"]

#: How many entries one thread clears away in one go.
SLICE: Final = 1024

_MISSING: Final = object()


class Graveyard:
    """The tombstones and idle keys of one purgatory.

    Args:
        interval: how many may be noted before they are cleared away.
        name: names the keeper's thread.
        unattended: whether the keeper may work off a large purge.
        timer: stands in for the keeper's thread.
    """

    __slots__ = ("_interval", "_lock", "_noted", "_purged", "_unattended", "keeper")

    def __init__(self, interval: int, name: str, *, unattended: bool, timer: Timer | None = None) -> None:
        self._interval = interval
        self._unattended = unattended
        # (watchers, token) of a tombstone, (watchers, None) of an idle key. Appending to a deque and taking from it are
        # atomic in the default and in the free-threaded build.
        self._noted: deque[tuple[Watchers, object]] = deque()
        self._lock = threading.Lock()
        self._purged = 0
        self.keeper = Keeper(f"{name}-keeper", self._slice, timer)

    @property
    def debt(self) -> int:
        """How many entries of finished operations are in watch lists."""
        # Both of two that finish an operation and park it may have noted it.
        noted = {(id(watchers), token): watchers for watchers, token in self._noted.copy() if token is not None}
        return sum(1 for (_, token), watchers in noted.items() if token in watchers)

    @property
    def purged(self) -> int:
        """How many entries were dropped since the start."""
        return self._purged

    @property
    def is_overdue(self) -> bool:
        """Whether more is noted than may be."""
        return len(self._noted) > self._interval

    def bury(self, operation: Operation, but: Watchers | None = None) -> None:
        """Leave a tombstone under each key of a finished operation, ``but`` one."""
        watches = operation._watches
        if not watches:
            return
        token = operation._token
        noted = self._noted
        for watchers in watches:
            if watchers is not but:
                watchers[token] = None
                noted.append((watchers, token))
        if len(noted) > self._interval:
            self._work()

    @staticmethod
    def clear(watchers: Watchers) -> None:
        """Drop the tombstones under one key."""
        for token, operation in watchers.copy().items():
            if operation is None:
                # No newcomer can have this token: the tombstone holds on to it.
                watchers.pop(token, None)

    def note_idle(self, watchers: Watchers) -> None:
        """Nobody waits under the key any more."""
        if watchers.idle:
            return
        watchers.idle = True
        self._noted.append((watchers, None))
        if len(self._noted) > self._interval:
            self._work()

    def purge(self) -> int:
        """Clear everything away, a slice at a time; how many entries that dropped."""
        dropped = 0
        while self._noted:
            dropped += self._drop(SLICE)
            time.sleep(0)  # let whoever waits for the interpreter go first
        return dropped

    def _work(self) -> None:
        if self._slice() and self._unattended:
            self.keeper.purge()

    def _slice(self) -> bool:
        """Clear away a slice; whether there is more."""
        self._drop(SLICE)
        return len(self._noted) > 0

    def _drop(self, most: int) -> int:
        dropped = 0
        noted = self._noted
        for _ in range(most):
            try:
                watchers, token = noted.popleft()
            except IndexError:
                break
            if watchers.pop(token, _MISSING) is not _MISSING:
                dropped += 1
            # First the mark, then the look: a key that empties in between is noted again.
            watchers.idle = False
            if not watchers:
                self._forget(watchers)
        if dropped:
            with self._lock:
                self._purged += dropped
        return dropped

    @staticmethod
    def _forget(watchers: Watchers) -> None:
        try:
            watchers.home.remove_if_empty(watchers)
        except Exception as error:  # noqa: BLE001  # a key's own __hash__ or __eq__: it stays, and nobody else suffers
            if throttle.admit("key_failed", type(watchers.key).__qualname__) is not None:
                log.error("key_failed", key=type(watchers.key).__qualname__, error=repr(error), exc_info=error)
