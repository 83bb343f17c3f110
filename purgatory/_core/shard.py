"""One shard of a purgatory's watch lists.

The hash of a key decides which shard it belongs to. **The lock** guards the counters of the operations whose first key
is here (see ``purgatory._core.operation``).

**The key lock** guards the watchers of a key, its list of operations. Under this lock they are made, inserted into and
forgotten, and the key's ``__hash__`` and ``__eq__`` run. This prevents a defect that Kafka had to fix:

    1. The parking thread finds the watchers of key K and is about to insert its operation.
    2. Another thread finds the watchers empty and removes K from the shard.
    3. The parking thread inserts into watchers that no thread can find any more. Every later check of K misses it.

An operation is removed from its keys without this lock, because a removal can only make a list shorter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from purgatory._core.implementation import CORE
from purgatory._core.outcome import CANCELLED, EXPIRED, OUTCOMES
from purgatory._core.watchers import FREE_THREADED, Watchers

if TYPE_CHECKING:
    from purgatory._core.capacity import Capacity
    from purgatory._core.idle_keys import IdleKeys
    from purgatory._core.observers import Observers
    from purgatory._core.retrier import Retrier
    from timer import Timer


class _Keys(dict[Hashable, Watchers]):
    """A dict in which ``[]`` of an unknown key gives None."""

    __slots__ = ()

    def __missing__(self, key: Hashable) -> None:
        return None


class Shard:
    """The keys that hash to one shard, and the objects their operations use.

    Attributes:
        find: returns the watchers of a key, or None.
        parked, extended: how many operations were parked with their first key here, and how often one was extended.
        checks, outcomes: the checks of those that have an outcome, and their number by outcome.
        normal_ends: by outcome, how many of these ended in a way that their type calls normal.
        ending: the operations between their outcome and the end of their hooks, as keys of a dict. C has their number.
    """

    __slots__ = (
        *("__weakref__", "by_key", "capacity", "checks", "ending", "extended", "find", "idle_keys"),
        *("key_lock", "lock", "normal_ends", "observers", "outcomes", "parked", "retrier", "timer"),
    )

    def __init__(
        self,
        observers: Observers,
        idle_keys: IdleKeys,
        retrier: Retrier | None = None,
        capacity: Capacity | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.key_lock: threading.Lock = threading.Lock()
        # Without a global lock, dict.get() of a key that another thread inserted takes 12 us, and [] takes 0.15 us.
        self.by_key: dict[Hashable, Watchers] = _Keys() if FREE_THREADED else {}
        self.find: Callable[[Hashable], Watchers | None]
        self.find = self.by_key.__getitem__ if FREE_THREADED else self.by_key.get
        self.parked = 0
        self.extended = 0
        self.checks = 0
        self.outcomes: list[int] = [0] * len(OUTCOMES)
        self.normal_ends: list[int] = [0] * len(OUTCOMES)
        self.ending: dict[Any, None] = {}
        self.observers = observers
        self.idle_keys = idle_keys
        self.retrier = retrier
        self.capacity = capacity
        self.timer = timer

    def watch(self, operation: Any, key: Hashable) -> None:
        """Insert an operation under one more key.

        ``_op_watches`` is set first. So if this raises, ``_op_remove`` finds the key.
        """
        with self.key_lock:
            # 1. find the key's list, or make it
            watchers = self.find(key)
            if watchers is None:
                watchers = self.by_key[key] = Watchers(key, self)
            # 2. note it in the operation, and insert
            operation._op_watches += (watchers,)
            watchers[operation] = None

    def remove_if_empty(self, watchers: Watchers) -> bool:
        """Forget a key if no operation waits under it. Returns whether it was forgotten."""
        with self.key_lock:
            # 1. keep a list in use
            if watchers:
                return False
            # 2. delete the key
            if self.find(watchers.key) is watchers:  # False if an interrupted call has deleted it already
                del self.by_key[watchers.key]
            return True

    def counts(self) -> tuple[int, ...]:
        """The numbers of parked operations, extensions, checks, outcomes and normal ends at one moment."""
        outcomes, normal_ends = [0] * len(OUTCOMES), [0] * len(OUTCOMES)
        # 1. read them under the lock
        with self.lock:
            parked, extended, checks = self.parked, self.extended, self.checks
            outcomes[:], normal_ends[:] = self.outcomes, self.normal_ends
        # 2. return them in this order
        return parked, extended, checks, *outcomes, normal_ends[EXPIRED], normal_ends[CANCELLED]

    @property
    def completing(self) -> int:
        """How many operations are between their outcome and the end of their hooks."""
        return len(self.ending)

    def entries(self) -> int:
        # Kept as a number in C. Such a number beside the dicts would be wrong after an interrupt.
        return sum(map(len, self.watchers()))

    def after_fork(self, mine: frozenset[int] = frozenset()) -> None:
        """In a forked child, which has only the thread that forked. ``mine``: ids of operations whose hooks it runs."""
        self.lock, self.key_lock = threading.Lock(), threading.Lock()
        self.ending = {each: None for each in self.ending if id(each) in mine}

    def watchers(self) -> list[Watchers]:
        with self.key_lock:
            return list(self.by_key.values())


if not TYPE_CHECKING and CORE is not None:
    _pure = Shard

    class Shard(CORE.Shard):
        __doc__ = _pure.__doc__
        __slots__ = ()

        def __init__(self, *parts: Any) -> None:
            # Re-entrant, because a signal handler may list the keys while this thread lists them.
            super().__init__(threading.RLock(), {}, *parts)

        watchers = _pure.watchers

        def after_fork(self, mine: frozenset[int] = frozenset()) -> None:
            self.key_lock = threading.RLock()
            self.stop_completing(len(mine))
