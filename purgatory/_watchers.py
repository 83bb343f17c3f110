"""Who waits under which key.

A purgatory has a row of :class:`WatcherList` (its shards); a key's hash says which one it belongs to. A shard maps each
key to its :class:`Watchers`, and that is a dict from an operation's *token* to the operation: in order of arrival, each
operation once however often the key was named, every step a single atomic dict operation.

**Tombstones.** An operation may wait under many keys and is completed through one of them. At that moment its entry
under every key is blanked: the token stays, the operation goes (``watchers[token] = None``). So a key that nobody ever
checks again keeps an empty cell, never the operation and what hangs on it. Cells are dropped by the next check of the
key or by a purge. The token is an object that belongs to the operation alone; as long as a cell refers to it, no other
can have the same identity, so clearing away a tombstone can never hit a newcomer.

**The shard's lock** guards three things: making and removing a key's ``Watchers``, the step of an operation at home
here from open to its one outcome, and the counters of those that left. It is never held while a hook runs. Watching
under a key that exists doesn't take it: insert, then look at ``closed``; whoever removes a key sets ``closed`` first
and then looks inside, so one of the two sees the other. What this prevents, and what Kafka had to be cured of:

    1. thread A finds the watchers of key K, and is about to add its operation
    2. thread B drops the last operation under K, sees the watchers empty, removes K from the shard
    3. A adds to watchers that nobody can find any more: every later check of K misses its operation

A key's ``__hash__`` and ``__eq__`` are the user's code and run inside dict operations, some with the lock held. The
lock is therefore re-entrant, and nothing relies on a key not being touched between two dict operations.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from purgatory._audience import Audience
    from purgatory._graveyard import Graveyard
    from purgatory._operation import DelayedOperation

__all__ = ["WatcherList", "Watchers"]

#: Outcomes as small integers, for the counters: index into ``WatcherList.left``.
OPEN: Final = 0
IMMEDIATE: Final = 1
SATISFIED: Final = 2
EXPIRED: Final = 3
CANCELLED: Final = 4
FORCED: Final = 5


class Watchers(dict[object, "DelayedOperation | None"]):
    """The operations that wait under one key, by token; None where one has finished.

    Attributes:
        key: the key.
        home: the shard.
        alone: these watchers, as all the watches of an operation that waits under no other key.
        closed: set while, and after, the key is removed from its shard.
        idle: set when nobody waits under the key any more and that has been noted for the next purge.
    """

    __slots__ = ("alone", "closed", "home", "idle", "key")

    def __init__(self, key: Hashable, home: WatcherList) -> None:
        self.key = key
        self.home = home
        self.alone: tuple[Watchers, ...] = (self,)
        self.closed = False
        self.idle = False


class WatcherList:
    """One shard: the keys that hash to it, and the counters of the operations at home here.

    Attributes:
        lock: see the module's header.
        by_key: the watchers of each key.
        waiting: a cell for each operation that is parked with its first key here. A list is the one counter that two
            threads can move without a lock in both builds; it spares parking one.
        ahead: operations that left before they were counted as waiting, and found no cell to take along.
        left: operations that left, by outcome.
        checks: calls of ``try_complete`` of the operations that left.
        audience: who is told of the operations.
        graveyard: where their tombstones are noted.
    """

    __slots__ = ("ahead", "audience", "by_key", "checks", "graveyard", "left", "lock", "waiting")

    def __init__(self, audience: Audience, graveyard: Graveyard) -> None:
        # Where a lock is taken once an operation, it is by acquire() and release(): 95 ns on CPython 3.11, "with" 205.
        self.lock = threading.RLock()
        self.by_key: dict[Hashable, Watchers] = {}
        self.waiting: list[None] = []
        self.ahead = 0
        self.checks = 0
        self.left = [0, 0, 0, 0, 0, 0]
        self.audience = audience
        self.graveyard = graveyard

    def watch(self, key: Hashable, token: object, operation: DelayedOperation) -> Watchers:
        """Put an operation under a key."""
        watchers = self.by_key.get(key)
        if watchers is None:
            # Behind the lock: setdefault is one step only for keys that compare in C.
            with self.lock:
                watchers = self.by_key.setdefault(key, Watchers(key, self))
        watchers[token] = operation
        if watchers.closed:
            # The key is being removed, or was. Behind the lock that is decided, and nobody else can be at it.
            watchers.pop(token, None)
            with self.lock:
                watchers = self.by_key.setdefault(key, Watchers(key, self))
                watchers[token] = operation
        return watchers

    def remove_if_empty(self, watchers: Watchers) -> None:
        """Forget a key that nobody waits under."""
        with self.lock:
            # The user's code first, as it may raise; and one that was removed stays closed, tombstones or not.
            if self.by_key.get(watchers.key) is not watchers:
                return
            try:
                watchers.closed = True
                # copy() goes through the dict's own lock in the free-threaded build, where plain truth would not.
                if not watchers.copy():
                    del self.by_key[watchers.key]
                    watchers.alone = ()  # it would be a circle of references
                    return
            except BaseException:
                watchers.closed = False  # its __eq__ raised: the key stays
                raise
            watchers.closed = False  # a newcomer; had it seen the flag, it comes by the lock and watches again

    def operations(self) -> list[DelayedOperation]:
        """Every operation in the shard, some perhaps several times."""
        with self.lock:
            lists = list(self.by_key.values())
        return [operation for watchers in lists for operation in watchers.copy().values() if operation is not None]
