"""How a key is checked: from the loop, from another thread, and in slices if many operations wait under it.

**From the loop's thread** a check is made at once, if at most ``slice_size`` operations wait under the key. **From
another thread** a purgatory that belongs to one loop asks the loop to check the key soon. However many threads ask
before the loop does it, it checks once.

**Sweeps.** The core checks every operation under a key in one go. With 100,000 of them that takes some tenths of a
second, in which the loop runs nothing else. Here, a key with more than ``slice_size`` operations is *swept*: a slice is
checked at once, the loop runs other callbacks, the next slice is checked, and so on.

**No check is lost.** An event that comes while its key is being swept marks the sweep, which then starts again at its
end: every operation is looked at after the event. So a hundred events on a hot key cost two sweeps, not a hundred.
Operations parked meanwhile need no sweep, because parking checks them. One exception: a sweep ends with its loop. Over
a thread-based purgatory, operations of other loops and threads may outlive it: they are checked at the next event.

**A limit** holds for the whole sweep. Events with limits that come during a sweep are added up for the next one, which
starts at the head again, so that operations are offered the events in order of arrival. An event without a limit lifts
it:

    a sweep of limit 1 runs    event of limit 1, event of limit 2    next sweep: limit 3
    a sweep of limit 1 runs    event of limit 1, event without       next sweep: no limit
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

from purgatory._core.errors import checked_int, unhashable
from purgatory._core.parking import checked_keys

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory._core.operation import Operation
    from purgatory.aio._mailbox import Mailbox
    from purgatory.aio._waiters import Waiters


class Checks:
    """The checks of one purgatory."""

    __slots__ = ("_asked", "_check", "_purgatory", "_size", "_sweeps", "_waiters", "_watching")

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], waiters: Waiters, size: int) -> None:
        self._purgatory = purgatory
        self._waiters = waiters
        self._watching, self._check = purgatory.watching, purgatory.check_and_complete
        self._size = size
        self._asked: dict[Hashable, None] = {}  # keys that other threads have asked the loop to check
        self._sweeps: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Sweep] = {}

    def check(self, key: Hashable, limit: int | None = None) -> int:
        """Check a key, from any thread. Returns how many operations were completed before this returned."""
        thread = self._waiters.thread
        may_check = thread is None or thread == get_ident()
        if may_check and self._watching(key) <= self._size:  # small enough for one go
            return self._check(key) if limit is None else self._check(key, limit)
        if limit is not None:
            checked_int("limit", limit, 1)
        loop = asyncio._get_running_loop()  # None if no loop runs, where get_running_loop() would raise
        mailbox = None if loop is None else self._waiters.mailboxes.get(loop)
        if mailbox is not None:
            return self._sweep(key, mailbox, limit)
        own = self._waiters.own_mailbox
        if own is not None and own.thread != get_ident() and not own.loop.is_closed():
            self._ask_loop(key, own, limit)
            return 0
        return self._check(key, limit)

    def check_all(self, keys: Iterable[Hashable]) -> int:
        """Check many keys, from any thread. Returns how many operations were completed before this returned."""
        given = checked_keys(keys)
        waiting = sum(map(self._watching, given))  # a key without a hash raises before any is checked
        thread = self._waiters.thread
        if (thread is None or thread == get_ident()) and waiting <= self._size:
            return self._purgatory.check_and_complete_all(given)
        return sum(self.check(key) for key in dict.fromkeys(given))

    def _ask_loop(self, key: Hashable, mailbox: Mailbox, limit: int | None) -> None:
        """Ask the loop to check a key: once, however many threads ask, but each time if there is a limit."""
        try:
            asked = key in self._asked
        except TypeError as error:
            raise unhashable([key], error) from None
        if limit is not None:
            mailbox.post(self._sweep, key, mailbox, limit)
        elif not asked:
            try:
                self._asked[key] = None
                mailbox.post(self._check_asked, key, mailbox)
            except BaseException:  # this thread is interrupted, so the next event asks again
                self._asked.pop(key, None)
                raise

    def _check_asked(self, key: Hashable, mailbox: Mailbox) -> None:
        # Removed before the check: a thread that finds the key in here relies on a check that is yet to come.
        self._asked.pop(key, None)
        self._sweep(key, mailbox)

    def _sweep(self, key: Hashable, mailbox: Mailbox, limit: int | None = None) -> int:
        """Check a key on the mailbox's loop, a slice at a time if many wait."""
        if self._watching(key) <= self._size:
            return self._check(key, limit)
        place = mailbox.loop, key
        sweep = self._sweeps.get(place)
        if sweep is not None:
            sweep.repeat(limit)
            return 0
        sweep = self._sweeps[place] = _Sweep(self, key, mailbox, limit)
        return sweep.step()

    def operations(self, key: Hashable) -> Iterator[Operation]:
        """The operations that wait under a key now. Parking checks those that arrive meanwhile."""
        watchers = self._purgatory._shards.find(key)
        return iter(()) if watchers is None else iter(watchers.operations())

    def end_sweep(self, sweep: _Sweep) -> None:
        """A sweep has ended."""
        self._sweeps.pop((sweep.mailbox.loop, sweep.key), None)


class _Sweep:
    """One key, being checked a slice at a time."""

    __slots__ = ("_again", "_checks", "_left", "_next", "_operations", "key", "mailbox")

    def __init__(self, checks: Checks, key: Hashable, mailbox: Mailbox, limit: int | None) -> None:
        self._checks = checks
        self._operations = checks.operations(key)
        self._left = limit  # how many it may still complete, or None for all
        self._again = False
        self._next: int | None = 0  # the limit of the sweep after it, if there is to be one
        self.key = key
        self.mailbox = mailbox

    def repeat(self, limit: int | None) -> None:
        """An event came meanwhile."""
        self._again = True
        self._next = None if limit is None or self._next is None else self._next + limit

    def step(self) -> int:
        """Check the next slice, and schedule the one after it. Returns how many operations this slice completed."""
        completed = 0
        more = False
        try:
            for looked, operation in enumerate(islice(self._operations, self.mailbox.size), 1):
                more = True  # if an exception stops this thread and the loop goes on, so does the sweep
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
                self._operations = self._checks.operations(self.key)
            if more:
                self.mailbox.loop.call_soon(self.step, context=self.mailbox.context)
            else:
                self._checks.end_sweep(self)
        return completed
