"""Checking a key under which very many wait, without holding up the loop.

The core checks every operation under a key in one go. With 100,000 of them that is some tenths of a second in which the
loop answers nobody. Here, a key with more than ``slice_size`` entries is *swept*: a slice is checked at once, the loop
goes round, the next slice is checked, and so on.

**No check is lost.** An event that comes while its key is being swept marks the sweep, which then starts over when it
is through: every operation is looked at after the event. So a hundred events on a hot key cost two sweeps, not a
hundred. Operations parked meanwhile need no sweep: parking checks them.

**A limit** holds for the whole sweep. Events with limits that come during a sweep are added up for the next: it starts
at the head again, so that each is offered in order of arrival, and completes as many as all of them are good for. One
without a limit among them lifts it. A sweep with a limit hopes to be through soon, and copies no list of all who wait:

    sweep of limit 1 at work    event of limit 1, event of limit 2    next sweep: limit 3
    sweep of limit 1 at work    event of limit 1, event without       next sweep: no limit
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from purgatory._purgatory.parking import stretches

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory._operations.operation import Operation
    from purgatory.aio._mailbox import Mailbox

__all__ = ["Sweeps"]


class Sweeps:
    """The sweeps of one purgatory that are under way."""

    __slots__ = ("_check", "_find", "_purgatory", "_running", "_size")

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], size: int) -> None:
        self._purgatory = purgatory
        self._find, self._check = purgatory._shards.find, purgatory.check_and_complete  # for every check that comes
        self._size = size
        self._running: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Sweep] = {}

    def check(self, key: Hashable, mailbox: Mailbox, limit: int | None = None) -> int:
        """Check a key on the mailbox's loop; how many operations were completed before this returned."""
        watchers = self._find(key)
        if watchers is None:
            return 0
        if len(watchers) <= self._size:
            return self._check(key, limit)
        place = mailbox.loop, key
        sweep = self._running.get(place)
        if sweep is not None:
            sweep.repeat(limit)
            return 0
        sweep = self._running[place] = _Sweep(self, key, mailbox, limit)
        return sweep.step()

    def under(self, key: Hashable, *, all_of_them: bool) -> Iterator[Operation]:
        """The operations under a key, as they are now; or as many of them as are asked for."""
        if all_of_them:
            return iter(self._purgatory.operations_for_key(key))
        watchers = self._purgatory._shards.find(key)
        if watchers is None:
            return iter(())
        # No more than there are now: those who come meanwhile are checked as they come.
        return islice(chain.from_iterable(stretches(watchers)), len(watchers))

    def end(self, sweep: _Sweep) -> None:
        """A sweep is through."""
        self._running.pop((sweep.mailbox.loop, sweep.key), None)


class _Sweep:
    """One key, being checked a slice at a time."""

    __slots__ = ("_again", "_left", "_next", "_operations", "_sweeps", "key", "mailbox")

    def __init__(self, sweeps: Sweeps, key: Hashable, mailbox: Mailbox, limit: int | None) -> None:
        self._sweeps = sweeps
        self._operations = sweeps.under(key, all_of_them=limit is None)
        self._left = limit  # how many it may still complete; None: all
        self._again = False
        self._next: int | None = 0  # the limit of the sweep after it, if there is to be one
        self.key = key
        self.mailbox = mailbox

    def repeat(self, limit: int | None) -> None:
        """An event has come meanwhile."""
        self._again = True
        self._next = None if limit is None or self._next is None else self._next + limit

    def step(self) -> int:
        """Check the next slice, and see to it that there is another; how many this one completed."""
        completed = 0
        more = False
        try:
            for looked, operation in enumerate(islice(self._operations, self.mailbox.size), 1):
                more = True  # if this thread is being stopped, and the loop goes on all the same, so does the sweep
                if operation.outcome is None and operation.maybe_try_complete():
                    completed += 1
                    if completed == self._left:
                        more = False
                        break
                more = looked == self.mailbox.size
        finally:
            if self._left is not None:
                self._left -= completed
            if not more and self._again:
                more = True
                self._again, self._left, self._next = False, self._next, 0
                self._operations = self._sweeps.under(self.key, all_of_them=self._left is None)
            if more:
                self.mailbox.loop.call_soon(self.step, context=self.mailbox.context)
            else:
                self._sweeps.end(self)
        return completed
