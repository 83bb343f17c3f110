"""The watch lists of a purgatory: the operations under one key, the shards of the keys, and all shards together.

The hash of a key decides which shard it belongs to. A shard is made when the first operation is parked under one of its
keys. So an empty purgatory is small, and a check of an unknown key makes nothing.

**The shard's lock** guards the counters of the operations whose first key is here (see ``purgatory._core.operation``).

**The key lock** guards the watchers of a key, its list of operations. Under this lock they are made, inserted into and
forgotten, which calls the key's ``__hash__`` and ``__eq__``. A check finds a key without it. The lock prevents a defect
that Kafka had to fix:

    1. The parking thread finds the watchers of key K and is about to insert its operation.
    2. Another thread finds the watchers empty and removes K from the shard.
    3. The parking thread inserts into watchers that no thread can find any more. Every later check of K misses it.

An operation is removed from its keys without this lock, because a removal can only make a list shorter.
"""

from __future__ import annotations

import contextlib
import sysconfig
import threading
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from purgatory._core.errors import unhashable
from purgatory._core.implementation import CORE
from purgatory._core.outcome import CANCELLED, EXPIRED, FORCED, IMMEDIATE, NEW, OUTCOMES, PARKED, SATISFIED, Totals

if TYPE_CHECKING:
    from purgatory._core.idle_keys import IdleKeys
    from purgatory._core.observers import Observers
    from purgatory._core.places import Places
    from purgatory._core.retrier import Retrier
    from timer import Timer

FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
#: How many keys are read before another thread may run.
CHUNK: Final = 2048
#: More shards do not help: each has a place in a table from the start.
MOST_SHARDS: Final = 1_048_576


class Watchers(dict[Any, None]):
    """The operations that wait under one key, in order of arrival. So the first one has waited longest.

    Each step is a single dict operation, which is atomic with and without the global lock.

    Attributes:
        is_queued: whether the key is in the queue of idle keys (``purgatory._core.idle_keys``), or is forgotten.
    """

    __slots__ = ("is_queued", "key", "shard")

    def __init__(self, key: Hashable, shard: Shard) -> None:
        self.key: Hashable = key
        self.shard: Shard = shard
        self.is_queued: bool = False

    def operations(self, most: int | None = None) -> list[Any]:
        """The operations in order of arrival: a copy of all, made in one atomic step, or of the first ``most``."""
        if most is None:
            return [*self.keys()]
        if not FREE_THREADED:  # without a global lock, islice() would leave out entries
            with contextlib.suppress(RuntimeError):  # another thread has changed the dict between the two calls
                return list(islice(self, most))
        return [*self.keys()][:most]


if not TYPE_CHECKING and CORE is not None:
    Watchers = CORE.Watchers


class _Keys(dict[Hashable, Watchers]):
    """A dict in which ``[]`` of an unknown key gives None."""

    __slots__ = ()

    def __missing__(self, key: Hashable) -> None:
        return None


class Shard:
    """The keys that hash to one shard, and the objects their operations use.

    Attributes:
        find: returns the watchers of a key, or None.
        ever_parked, extended: how many operations were parked with their first key here, and how often one
            was extended.
        checks, outcomes: the checks of those that have an outcome, and their number by outcome.
        normal_ends: by outcome, how many of these ended in a way that their type calls normal.
        ending: the operations between their outcome and the end of their hooks, as keys of a dict. C has their number.
    """

    __slots__ = (
        *("__weakref__", "by_key", "places", "checks", "ending", "ever_parked", "extended", "find", "idle_keys"),
        *("key_lock", "lock", "normal_ends", "observers", "outcomes", "retrier", "timer"),
    )

    def __init__(
        self,
        observers: Observers,
        idle_keys: IdleKeys,
        retrier: Retrier | None = None,
        places: Places | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.key_lock: threading.Lock = threading.Lock()
        # Without a global lock, dict.get() of a key that another thread inserted takes 12 us, and [] takes 0.15 us.
        self.by_key: dict[Hashable, Watchers] = _Keys() if FREE_THREADED else {}
        self.find: Callable[[Hashable], Watchers | None]
        self.find = self.by_key.__getitem__ if FREE_THREADED else self.by_key.get
        self.ever_parked = 0
        self.extended = 0
        self.checks = 0
        self.outcomes: list[int] = [0] * len(OUTCOMES)
        self.normal_ends: list[int] = [0] * len(OUTCOMES)
        self.ending: dict[Any, None] = {}
        self.observers = observers
        self.idle_keys = idle_keys
        self.retrier = retrier
        self.places = places
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

    def counts(self) -> Totals:
        """The counters at one moment."""
        with self.lock:
            outcomes, normal_ends = self.outcomes, self.normal_ends
            return Totals(
                parked=self.ever_parked,
                immediate=outcomes[IMMEDIATE],
                satisfied=outcomes[SATISFIED],
                expired=outcomes[EXPIRED],
                cancelled=outcomes[CANCELLED],
                forced=outcomes[FORCED],
                checks=self.checks,
                extended=self.extended,
                expired_normally=normal_ends[EXPIRED],
                cancelled_normally=normal_ends[CANCELLED],
            )

    @property
    def completing(self) -> int:
        """How many operations are between their outcome and the end of their hooks."""
        return len(self.ending)

    @property
    def entries(self) -> int:
        """How many entries are in the lists of the keys."""
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
        __slots__ = ("__weakref__", "key_lock")

        def __init__(self, *parts: Any) -> None:
            super().__init__({}, *parts)
            # Re-entrant, because a signal handler may list the keys while this thread lists them. C makes and forgets
            # keys without it, in single steps of the dict.
            self.key_lock = threading.RLock()

        watchers = _pure.watchers

        def after_fork(self, mine: frozenset[int] = frozenset()) -> None:
            self.key_lock = threading.RLock()
            self.stop_completing(len(mine))


class Shards:
    """Up to ``count`` shards of a purgatory. ``make`` makes one when it is needed."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[], Shard]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, Shard] = {}

    def shard_for(self, key: Hashable) -> Shard:
        """The shard that a key belongs to. It is made if it does not exist."""
        try:
            number = hash(key) % self._count
        except TypeError as error:
            raise unhashable([key], error) from None
        shard = self._made.get(number)
        if shard is None:
            shard = self._made.setdefault(number, self._make())  # another thread may have made it first
        return shard

    def find(self, key: Hashable) -> Watchers | None:
        """The watchers of a key, or None if the key is not known."""
        try:
            shard = self._made.get(hash(key) % self._count)
        except TypeError as error:
            raise unhashable([key], error) from None
        return None if shard is None else shard.find(key)

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._made.values()))  # a copy, because another thread may make one meanwhile

    def __len__(self) -> int:
        return self._count

    def walk(self) -> Iterator[Watchers]:
        """The watchers of every key, idle keys included, one shard after the other."""
        for shard in self:
            yield from shard.watchers()

    def keys_in_chunks(self) -> Iterator[list[Watchers]]:
        """The watchers of every key, at most :data:`CHUNK` at a time."""
        for shard in self:
            watchers = shard.watchers()
            for start in range(0, len(watchers), CHUNK):
                yield watchers[start : start + CHUNK]

    def iter_operations(self) -> Iterator[Any]:
        """The operations that wait or are arriving, one key after the other. Each is yielded under its first key."""
        for watchers in self.walk():
            for operation in watchers.operations():
                if NEW < operation._op_state <= PARKED and operation._op_watches[0] is watchers:
                    yield operation

    def completing(self) -> int:
        """The number of operations whose hooks have not ended, although they have an outcome."""
        return sum(shard.completing for shard in self)

    def totals(self) -> Totals:
        """The counters of all shards, added up."""
        counts = [shard.counts() for shard in self]
        return Totals(*(sum(map(attrgetter(field.name), counts)) for field in attrs.fields(Totals)))
