"""How many operations a purgatory has room for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from purgatory._errors import PurgatoryFull
from purgatory._log import log, throttle

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation

__all__ = ["Room"]


class Room:
    """The places of a purgatory with ``max_parked``: one is taken before an operation is parked, given back at its end.

    Attributes:
        limit: how many there are.
        left: how many are free.
        rejected: operations that found none.
    """

    __slots__ = ("_lock", "_name", "left", "limit", "rejected")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._lock = threading.Lock()
        self.limit = limit
        self.left = limit
        self.rejected = 0

    def take(self) -> None:
        """Take a place.

        Raises:
            PurgatoryFull: there is none.
        """
        with self._lock:
            if self.left > 0:
                self.left -= 1
                return
            self.rejected += 1
        suppressed = throttle.admit("purgatory_full", self._name)
        if suppressed is not None:
            log.warning("purgatory_full", purgatory=self._name, limit=self.limit, suppressed=suppressed)
        raise PurgatoryFull(self._name, self.limit)

    def give(self) -> None:
        """Give a place back."""
        with self._lock:
            self.left += 1

    def leaving(self, operation: DelayedOperation) -> None:  # noqa: ARG002  # as an observer is told
        """An operation has left; so its place is free."""
        with self._lock:
            self.left += 1
