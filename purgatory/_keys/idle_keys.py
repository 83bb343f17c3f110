"""Keys that nobody waits under, and when they are forgotten.

A key is kept for a while after its last operation has gone, because it may well be wanted again: a topic-partition is
parked on and satisfied all day long, and a key that stays is found where one that was forgotten is made anew. But keys
come from the user's data, and a purgatory that remembered each that it ever saw would grow for good.

So a key is noted here when it falls idle, at the end of a queue, once. As long as no more are noted than may be, that
is all. Beyond, whoever notes one looks at the one or two that have been noted longest: a key under which somebody waits
again is dropped from the queue, any other is forgotten. Up to two out for one in: the queue shrinks to its limit, no
call ever has more than that to do, and nothing is searched. Kafka's purge walks every entry of every list, the living
ones too, and stalled expiry for a third of a second over 340,000 of them.

**How many may be idle**: ``purge_interval``, or as many as there are keys in use, if that is more (but none if it is
zero). A service whose keys take turns (ten thousand partitions, each with somebody waiting most of the time) would
otherwise make and forget keys all day. The count of keys in use is taken anew every :data:`RECOUNT` forgotten keys, as
it costs a look at every shard.

Rejected: forgetting a key with its last operation (1.4 times the cycle for the keys of every day); a thread, or a slice
of a thousand, that works off what has gathered, as nothing gathers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from purgatory._events.log import log, throttle
from purgatory._support.edition import CORE

if TYPE_CHECKING:
    from purgatory._keys.watchers import Watchers

__all__ = ["IdleKeys"]

#: How often the keys in use are counted: once for so many that are looked at.
RECOUNT: Final = 512


class IdleKeys:
    """The idle keys of one purgatory. Any thread may note one.

    Args:
        interval: how many may be idle in any case.
        known: counts the keys that the purgatory knows.
    """

    __slots__ = ("_due", "_forgotten", "_interval", "_known", "_limit", "_lock", "_noted")

    def __init__(self, interval: int, known: Callable[[], int]) -> None:
        self._interval = self._limit = interval
        self._known = known
        # append(), popleft() and len() of a deque are single steps in the default and in the free-threaded build.
        self._noted: deque[Watchers] = deque()
        self._lock = threading.Lock()
        self._forgotten = 0
        self._due = 0  # so many may be looked at before the keys in use are counted again

    @property
    def count(self) -> int:
        """How many keys are noted; some may be in use again."""
        return len(self._noted)

    @property
    def forgotten(self) -> int:
        """How many keys were forgotten since the start."""
        return self._forgotten

    def note(self, watchers: Watchers) -> None:
        """Nobody waits under the key any more, or so it seemed."""
        if watchers.idle:
            return
        watchers.idle = True
        self._noted.append(watchers)
        if len(self._noted) > self._limit:
            self._look()
            if len(self._noted) > self._limit:
                self._look()

    def purge(self) -> int:
        """Forget every key that nobody waits under; how many those were."""
        forgotten = 0
        for _ in range(len(self._noted)):
            forgotten += self._look()
        return forgotten

    def start_over(self) -> None:
        """In a forked child, where another thread may have had the lock."""
        self._lock = threading.Lock()

    def _look(self) -> bool:
        """Look at the key that has been noted longest; whether it was forgotten."""
        # A loop of one: it keeps what popleft() gives in one step, where an interrupt after a call would lose it.
        try:
            for watchers in map(deque.popleft, (self._noted,)):
                try:
                    return self._forget(watchers)
                except BaseException:
                    if not watchers.closed:
                        watchers.idle = True
                        self._noted.append(watchers)
                    raise
        except IndexError:
            pass
        return False

    def _forget(self, watchers: Watchers) -> bool:
        """Forget a key that was noted, if nobody waits under it; whether it was forgotten."""
        self._due -= 1  # two threads may count one for two: the next count comes a little late
        if self._due < 0:
            self._due = RECOUNT
            in_use = self._known() - len(self._noted) - 1
            self._limit = max(self._interval, in_use) if self._interval else 0
        # First the mark, then the look: a key that falls idle in between is noted again.
        watchers.idle = False
        if watchers:
            return False
        try:
            forgotten = watchers.home.remove_if_empty(watchers)
        except Exception as error:  # noqa: BLE001  # a key's own __hash__ or __eq__: it stays, and nobody else suffers
            key_failed(watchers.key, error)
            return False
        if forgotten:
            with self._lock:
                self._forgotten += 1
        return forgotten


def key_failed(key: Hashable, error: BaseException) -> None:
    """A key's own code raised as the key was to be forgotten: say so, now and then."""
    kind = type(key).__qualname__
    if throttle.admit("key_failed", kind) is not None:
        log.error("key_failed", key=kind, error=repr(error), exc_info=error)


if CORE is not None:
    IdleKeys = CORE.IdleKeys  # type: ignore[misc]
