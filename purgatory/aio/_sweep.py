"""Checking a key under which very many wait, without holding up the loop.

The core checks every operation under a key in one go. With 100,000 of them that is some tenths of a second in which the
loop answers nobody. Here, a key with more than ``slice_size`` entries is *swept*: a slice is checked at once, the loop
goes round, the next slice is checked, and so on.

**No check is lost.** An event that comes while its key is being swept marks the sweep, which then starts over when it
is through: every operation is looked at after the event. So a hundred events on a hot key cost two sweeps, not a
hundred. Operations parked meanwhile need no sweep: parking checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory import DelayedOperation, DelayedOperationPurgatory
    from purgatory.aio._mailbox import Mailbox

__all__ = ["Sweeps"]


class Sweeps:
    """The sweeps of one purgatory that are under way."""

    __slots__ = ("_purgatory", "_running", "_size")

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], size: int) -> None:
        self._purgatory = purgatory
        self._size = size
        self._running: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Sweep] = {}

    def check(self, key: Hashable, mailbox: Mailbox) -> int:
        """Check a key on the mailbox's loop; how many operations were completed before this returned."""
        # Is the key watched by so many? The length of a dict: read at once, and exact enough.
        purgatory = self._purgatory
        try:
            watchers = purgatory._shards[hash(key) % purgatory._shard_count].by_key.get(key)
        except TypeError:
            watchers = None  # a key without a hash: the core knows what to say to that
        if watchers is None or len(watchers) <= self._size:
            return purgatory.check_and_complete(key)
        place = mailbox.loop, key
        sweep = self._running.get(place)
        if sweep is not None:
            sweep.again = True
            return 0
        sweep = self._running[place] = _Sweep(self, key, mailbox)
        return sweep.step()

    def under(self, key: Hashable) -> Iterator[DelayedOperation]:
        """The operations under a key, as they are now."""
        return iter(self._purgatory.operations_for_key(key))

    def end(self, sweep: _Sweep) -> None:
        """A sweep is through."""
        self._running.pop((sweep.mailbox.loop, sweep.key), None)


class _Sweep:
    """One key, being checked a slice at a time."""

    __slots__ = ("_operations", "_sweeps", "again", "key", "mailbox")

    def __init__(self, sweeps: Sweeps, key: Hashable, mailbox: Mailbox) -> None:
        self._sweeps = sweeps
        self._operations = sweeps.under(key)
        self.key = key
        self.mailbox = mailbox
        self.again = False

    def step(self) -> int:
        """Check the next slice, and see to it that there is another; how many this one completed."""
        completed = looked = 0
        size = self.mailbox.size
        try:
            for operation in islice(self._operations, size):
                looked += 1
                if operation.outcome is None and operation.maybe_try_complete():
                    completed += 1
        except BaseException:
            looked = size  # this thread is being stopped; should the loop go on all the same, so does the sweep
            raise
        finally:
            if looked == size or self.again:
                if looked < size:
                    self.again = False
                    self._operations = self._sweeps.under(self.key)
                self.mailbox.loop.call_soon(self.step, context=self.mailbox.context)
            else:
                self._sweeps.end(self)
        return completed
