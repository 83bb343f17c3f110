"""Who waits under which key: one shard of a purgatory's watch lists.

A purgatory has a row of :class:`WatcherList` (its shards, see ``purgatory._purgatory.shards``); a key's hash says which
one it belongs to. A shard maps each key to its :class:`Watchers`, and that is a dict from operation to None: in order
of arrival, each operation once however often the key was named, every step a single atomic dict operation. Whoever ends
an operation's stay takes it out of all its keys at once, so what is found under a key waits there, or is just coming or
going.

**The shard's gate** guards each step in the life of an operation at home here (``purgatory._operations.operation`` has
the table), and the counters. It is a list with one cell, passed as an operation's hold is taken
(``purgatory._operations.hold``): ``del gate[0]`` closes it, ``gate += A_CELL`` opens it again, and neither is a call.
Inside there is nothing but loads, stores and sums: no call, no loop, nothing made but numbers. So no signal strikes
there, no finalizer runs there, and with a global lock no other thread ever finds the gate closed; without one it rests
for a moment and tries again. What this saves against a lock, three times an operation, is a tenth of the cycle: 25 ns
in place of 60, and no care for an interrupt that strikes as the lock is taken or let go.

**The shard's lock** guards making and removing a key's ``Watchers``. It is never held while a hook runs. Watching under
a key that exists (``Shards.watch``) doesn't take it: insert, then look at ``closed``; whoever removes a key sets
``closed`` first and then looks inside. Both go through the dict's own lock in the free-threaded build, so one of the
two sees the other. What this prevents, and what Kafka had to be cured of:

    1. the parker finds the watchers of key K, and is about to add its operation
    2. another thread sees the watchers empty, and removes K from the shard
    3. the parker adds to watchers that nobody can find any more: every later check of K misses its operation

A key's ``__hash__`` and ``__eq__`` are the user's code and run inside dict operations, some with the lock held. The
lock is therefore re-entrant, and nothing relies on a key not being touched between two dict operations. Nor within one:

    1. the remover has closed the watchers of key K, and is in ``del by_key[K]``, which calls the hash of K
    2. a handler of a signal runs in there, or the hash itself: it parks under K, and has the remover's own lock
    3. it finds K closed; whatever it puts there, or in its place, step 1 goes on to delete

Such a parker opens the watchers again and gives the shard another dict (``keep``): the remover's goes on in the one
that nobody uses any more, and the remover finds that he was too late. The native edition forgets a key without the
key's code.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable, Hashable
from itertools import islice
from typing import TYPE_CHECKING, Final

from purgatory._operations.hold import A_CELL, wait_for
from purgatory._support.edition import CORE

if TYPE_CHECKING:
    from purgatory._events.observers import Observers
    from purgatory._keys.idle_keys import IdleKeys
    from purgatory._limits.capacity import Capacity
    from purgatory._operations.operation import Operation
    from purgatory._threads.retrier import Retrier
    from timer import Timer

__all__ = ["WatcherList", "Watchers"]

_FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Watchers(dict["Operation", None]):
    """The operations that wait under one key, in order of arrival.

    Attributes:
        key: the key.
        home: the shard.
        alone: these watchers, as all the watches of an operation that waits under no other key: one tuple for all of
            those, which saves each 56 bytes. Empty once the key is removed.
        closed: set while, and after, the key is removed from its shard. Afterwards ``alone`` is empty: a handler of a
            signal, between the remover's steps, may have come, gone, and removed the key itself.
        idle: whether nobody waited under the key at some time, and that is noted (``purgatory._keys.idle_keys``).
    """

    __slots__ = ("alone", "closed", "home", "idle", "key")

    def __init__(self, key: Hashable, home: WatcherList) -> None:
        self.key = key
        self.home = home
        self.alone: tuple[Watchers, ...] = (self,)
        self.closed = False
        self.idle = False

    def operations(self) -> list[Operation]:
        """The operations, the first come first: a copy, made in one step that is atomic in both builds."""
        return [*self.keys()]

    def head(self, most: int) -> list[Operation]:
        """The operations that have been here longest, up to ``most``."""
        try:
            return list(islice(self, most))
        except RuntimeError:  # it changed while it was looked at, which without a global lock it may
            return self.operations()[:most]

    def close_if_empty(self) -> bool:
        """Let nobody in any more, if nobody is here; behind the shard's lock. Whether it is closed now."""
        self.closed = True
        try:
            # copy() goes through the dict's own lock in the free-threaded build, where plain truth would not.
            if not self.copy():
                return True
        except BaseException:  # an interrupt
            self.closed = not self.alone
            raise
        self.closed = not self.alone  # a newcomer; had it seen the flag, it comes by the lock and watches again
        return False


class _Keys(dict[Hashable, Watchers]):
    """A dict in which ``[]`` of a key that isn't there gives None."""

    __slots__ = ()

    def __missing__(self, key: Hashable) -> None:
        return None


class Shard:
    """The keys that hash to one shard, the counters of the operations at home here, and what those need.

    What every operation goes through; a type of its own, as it may be native.

    Attributes:
        lock: see the module's header.
        gate: likewise.
        by_key: the watchers of each key.
        find: the watchers of a key, or None.
        parked: operations that were parked with their first key here.
        extended: how often the deadline of one was put off.
        left: operations that left, by the state that they ended in.
        under_way: a cell for each operation between its outcome and the end of its hooks. A list is the one counter
            that two threads can move without a lock in both builds.
        checks: calls of ``try_complete`` of the operations that left.
        observers: who is told of the operations.
        idle_keys: where a key is noted that nobody waits under.
        retrier: tries again what was missed; None in the lobby.
        capacity: whose places the operations take; None if they are not counted.
        timer: expires them; None if they don't expire.
    """

    __slots__ = (
        "by_key",
        "capacity",
        "checks",
        "extended",
        "find",
        "gate",
        "idle_keys",
        "left",
        "lock",
        "observers",
        "parked",
        "retrier",
        "timer",
        "under_way",
    )

    by_key: dict[Hashable, Watchers]
    find: Callable[[Hashable], Watchers | None]

    def __init__(  # noqa: PLR0917  # one caller, below
        self,
        lock: threading.RLock,
        by_key: dict[Hashable, Watchers],
        observers: Observers,
        idle_keys: IdleKeys,
        retrier: Retrier | None = None,
        capacity: Capacity | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.lock = lock
        self.gate: list[None] = [None]
        self._use(by_key)
        self.parked = 0
        self.extended = 0
        self.under_way: list[None] = []
        self.checks = 0
        self.left = [0] * 8
        self.observers = observers
        self.idle_keys = idle_keys
        self.retrier = retrier
        self.capacity = capacity
        self.timer = timer

    def make(self, key: Hashable) -> Watchers:
        """The watchers of a key, made unless another thread was quicker."""
        made = Watchers(key, self)  # type: ignore[arg-type]  # every shard is a list of watchers
        try:
            # Behind the lock: setdefault is one step only for keys that compare in C.
            with self.lock:
                while True:
                    by_key = self.by_key
                    found = by_key.setdefault(key, made)
                    if self.by_key is by_key:  # nearly always: see keep()
                        return found
        except BaseException:
            self.idle_keys.note(made)  # it may be known now, and nobody waits under it
            raise

    def remove_if_empty(self, watchers: Watchers) -> bool:
        """Forget a key, if nobody waits under it; whether it was forgotten."""
        with self.lock:
            # In the look-up the user's code runs: it may raise, or come back here.
            if watchers.closed or self.find(watchers.key) is not watchers:
                return False
            try:
                if not watchers.close_if_empty():
                    return False
                while True:
                    if not (watchers.closed and watchers.alone):
                        return False
                    by_key = self.by_key
                    del by_key[watchers.key]
                    if self.by_key is by_key:  # nearly always: see keep()
                        watchers.alone = ()  # it would be a circle of references
                        return True
                    by_key = self.by_key  # a loop ends with a statement: an interrupt as it goes round is seen below
            except BaseException:  # its __eq__ raised, or an interrupt struck: the key stays
                watchers.closed = not watchers.alone
                raise

    def keep(self, watchers: Watchers) -> None:
        """Keep a key that somebody has come to, if it is this thread that removes it, further up; behind the lock.

        See the module's header.
        """
        while watchers.closed:
            before = self.by_key
            try:
                by_key = _Keys(before)
            except RuntimeError:  # another key's own code has made or removed one meanwhile
                continue
            if self.by_key is before:
                self._use(by_key)
                watchers.closed = False

    def _use(self, by_key: dict[Hashable, Watchers]) -> None:
        self.by_key = by_key
        # Without a global lock, dict.get() of a key that another thread put there waits some forty turns of the
        # scheduler (12 us against 0.15 for []); with one it is the cheaper of the two (70 ns against 105).
        self.find = by_key.__getitem__ if _FREE_THREADED else by_key.get

    def counts(self) -> tuple[int, int, int, tuple[int, ...]]:
        """How many were parked, extensions, checks, and who left by outcome, all of one moment."""
        gate = self.gate
        wait_for(gate, 0)
        try:
            parked, extended, checks = self.parked, self.extended, self.checks
            new, arriving, waiting, immediate, satisfied, expired, cancelled, forced = self.left
        finally:
            gate += A_CELL
        return parked, extended, checks, (new, arriving, waiting, immediate, satisfied, expired, cancelled, forced)

    def answering(self) -> int:
        """How many operations have an outcome, and hooks that have not ended."""
        return len(self.under_way)

    def stop_answering(self, but: int) -> None:
        """In a forked child: whoever was answering isn't here, but for the hooks that forked, nor who had the gate."""
        del self.under_way[but:]
        self.gate[:] = A_CELL


if CORE is not None:
    Watchers, Shard = CORE.Watchers, CORE.Shard  # type: ignore[misc]


class WatcherList(Shard):
    """One shard: see the module's header."""

    __slots__ = ()

    def __init__(
        self,
        observers: Observers,
        idle_keys: IdleKeys,
        retrier: Retrier | None = None,
        capacity: Capacity | None = None,
        timer: Timer | None = None,
    ) -> None:
        # The lock is re-entrant: a key's own code may come back here, and so may a signal's handler.
        super().__init__(threading.RLock(), _Keys(), observers, idle_keys, retrier, capacity, timer)

    def start_over(self, hooks: int) -> None:
        """In a forked child; it has the thread that forked, and so many hooks of it."""
        self.lock = threading.RLock()
        self.stop_answering(hooks)

    def watchers(self) -> list[Watchers]:
        """The watchers of every key here: a copy, made in one step."""
        with self.lock:
            return list(self.by_key.values())
