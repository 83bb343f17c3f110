"""How many operations a purgatory may hold."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from purgatory._events.log import log, throttle
from purgatory._support.errors import PurgatoryFull

__all__ = ["Capacity"]


class Capacity:
    """The places of a purgatory with ``max_parked``: an operation that has to wait takes one, and gives it back.

    Attributes:
        limit: how many there are.
        taken: who has one. A place is given back by ``taken.pop(operation, None)``: one step in both builds that calls
            no Python, as it must work on a stack that is used up, too; and twice is as once, so that a thread that is
            stopped in the middle may begin again.
        rejected: operations that found none.
    """

    __slots__ = ("_lock", "_name", "limit", "rejected", "taken")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._lock = threading.RLock()
        self.limit = limit
        self.taken: dict[Any, None] = {}
        self.rejected = 0

    def start_over(self) -> None:
        """In a forked child, where another thread may have had the lock."""
        self._lock = threading.RLock()

    def take(self, operation: Any) -> None:
        """Take a place for an operation.

        Raises:
            PurgatoryFull: there is none.
        """
        with self._lock:
            if len(self.taken) < self.limit:
                self.taken[operation] = None
                return
            self.rejected += 1
        suppressed = throttle.admit("purgatory_full", self._name)
        if suppressed is not None:
            log.warning("purgatory_full", purgatory=self._name, limit=self.limit, suppressed=suppressed)
        raise PurgatoryFull(self._name, self.limit)

    def tenants(self) -> list[tuple[Hashable, int, int]]:  # others have some
        """Each tenant, how many of its operations are parked, and how many were refused: there are none here."""
        return []
