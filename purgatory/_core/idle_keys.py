"""Idle keys, under which no operation waits, and when they are forgotten.

A key is kept after its last operation was removed. If it was forgotten and made again, parking and completing would
take 1.4 times as long. But keys come from the user's data, so a purgatory that kept every key would grow without limit.

A key that becomes idle is appended to a queue, once. If the queue is longer than its limit, the thread that appended
removes the two oldest entries. If the key of an entry is not in use again, it is forgotten.

**The limit** is ``purge_interval``, or the number of keys in use if that is larger, but zero if ``purge_interval`` is
zero. So a service whose keys take turns, such as 10,000 partitions, does not make and forget keys all the time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from purgatory._core.implementation import CORE
from purgatory._core.log import log, printable, throttle

if TYPE_CHECKING:
    from purgatory._core.shards import Watchers

#: The keys in use are counted once per this number of entries, because counting visits every shard.
RECOUNT: Final = 512


class IdleKeys:
    """The idle keys of one purgatory. ``count_keys`` counts those that the purgatory knows."""

    __slots__ = ("_count_keys", "_interval", "_limit", "_lock", "_queue", "_until_recount", "forgotten")

    def __init__(self, interval: int, count_keys: Callable[[], int]) -> None:
        self._interval = self._limit = interval
        self._count_keys = count_keys
        self._queue: deque[Watchers] = deque()
        self._lock = threading.Lock()  # guards the queue, and the count
        self.forgotten: int = 0  # the number of keys that were forgotten since the start
        self._until_recount = 0  # the number of entries until the keys in use are counted again

    @property
    def count(self) -> int:
        """The number of entries in the queue. Some keys may be in use again."""
        return len(self._queue)

    def append(self, watchers: Watchers) -> None:
        """Append a key that has become idle to the queue, and shorten the queue if it is too long."""
        # 1. append it, once
        with self._lock:
            if watchers.is_queued:
                return
            watchers.is_queued = True
            self._queue.append(watchers)
        # 2. forget the two oldest if the queue is too long
        if len(self._queue) > self._limit:
            self._forget_oldest()
            if len(self._queue) > self._limit:
                self._forget_oldest()

    def purge(self) -> int:
        """Forget every idle key. Returns the number of keys that were forgotten."""
        return sum(self._forget_oldest() for _ in range(len(self._queue)))

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _forget_oldest(self) -> bool:
        """Forget the key that was appended first, unless it is in use. Returns whether it was forgotten."""
        # 1. count the keys in use again, if it is time
        self._until_recount -= 1  # not exact if two threads do this at once, and need not be
        if self._until_recount < 0:
            self._until_recount = RECOUNT
            self._limit = max(self._interval, self._count_keys() - len(self._queue)) if self._interval else 0
        watchers: Watchers | None = None
        try:
            # 2. take the oldest entry
            with self._lock:
                if not self._queue:
                    return False
                watchers = self._queue[0]
                del self._queue[0]  # no call: an interrupt would lose the key
            # 3. forget its key
            if watchers.shard.remove_if_empty(watchers):
                with self._lock:
                    self.forgotten += 1
                return True
            # 4. it is in use, or fell idle again meanwhile
            watchers.is_queued = False
            if not watchers:  # its last operation has left meanwhile
                self.append(watchers)
        except BaseException as error:
            if watchers is None:
                raise
            # 5. it could not be forgotten, and is examined again later
            self._queue += (watchers,)  # no call, as the stack may be exhausted
            if not isinstance(error, Exception):
                raise
            key_failed(watchers.key, error)
        return False


def key_failed(key: Hashable, error: BaseException) -> None:
    """Log that a key's own code raised while the key was being forgotten, at most once per second and type."""
    kind = type(key).__qualname__
    if throttle.admit("key_failed", kind) is not None:
        log.error("key_failed", key=kind, error=repr(printable(error)), exc_info=error)


if not TYPE_CHECKING and CORE is not None:
    IdleKeys = CORE.IdleKeys
