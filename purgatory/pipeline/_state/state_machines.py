"""The purgatory as two state machines over event time. Plain Python: no Spark, no clock, no thread.

Rows arrive in any order. The *watermark* is the instant up to which all rows have arrived. Everything up to the
watermark can be put in its true order and decided. Everything after it waits.

Stage 1, ``KeyCore``, holds the keys of a bucket: their levels, and the operations that wait for a level::

    inbox  -> (watermark passes) -> in order of time, events before operations
        -> a watch whose level is there: "hit"
        -> an event that reaches levels: one "hit" per watch

Stage 2, ``OperationCore``, holds the operations of a bucket, and which of their keys were hit. When all are hit, the
operation completes at the latest of those instants. When the watermark passes its deadline first, it expires.

Why this is exact: the keys of an operation may lie in different buckets, but each bucket dates its hits by the instants
of the rows, not by when they were processed. The date of the last hit against the deadline decides the outcome. So the
outcome does not depend on batches, files, restarts or the number of machines. Expiry at watermark W is safe, because
every hit dated before W was passed on in the same batch or an earlier one.

Ties are decided as in the library: at one instant, deadlines expire first, then events apply, then operations arrive.
So an event at an operation's deadline is too late, and an event at its arrival counts.

A row older than the watermark cannot be answered exactly. It is handed back as late, and counted. A row that is
delivered twice is one row: its double has the same instant, so both are in the inbox together.

An operation is known by its name while it is open. Another row with that name, of another instant or with other needs
(its ``mark`` differs), is refused. From the instant of the answer on, it is another operation.

A key keeps its level as long as the settings say, from the latest row that named the key to the row that asks, by their
own instants. After that it is as if there had been no event (``records``). So no answer depends on when a sweep drops
the key. Without such a limit, no key could ever be dropped, because an operation may ask for it at any time.

The state lies in leaves (``leaf_index``, ``leaves``). A call opens those that its rows, deadlines and sweeps need.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from purgatory.pipeline._state.leaf_index import LeafIndex
from purgatory.pipeline._state.leaves import EVENT, FOREVER, WATCH, About, KeyLeaf, Operation, OperationLeaf, RowLeaf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from purgatory.pipeline._state.leaf_index import Store

#: An instant (us), a key and the level that it has reached.
Event: TypeAlias = tuple[int, str, int]

#: An instant (us), an operation, the number of this key of so many, the key, the level needed, the deadline (us), the
#: row's mark and number, and what its answer repeats: type, number of keys and delay (with the first key only).
Watch: TypeAlias = tuple[int, str, int, int, str, int, int, int, int, About | None]

#: An operation, how many keys it has, its arrival, its deadline, its row's mark and number, and what its answer
#: repeats.
Open: TypeAlias = tuple[str, int, int, int, int, int, About]

#: An operation, which of its keys, when, and the mark of its row.
Hit: TypeAlias = tuple[str, int, int, int]

#: An operation, its outcome, its arrival, when it was finished, its row's mark, and what its answer repeats.
Done: TypeAlias = tuple[str, str, int, int, int, About]

#: The name of an operation that was open, and the instant and the number of the row that claimed it.
Refused: TypeAlias = tuple[str, int, int]

_INBOX: Final = 1024


class KeyCore:
    """Stage 1 for the keys of one bucket.

    Args:
        agenda: the value of ``agenda`` when the core was last saved (None: a new core).
        leaves: the store of the keys and their watches.
        inbox: the store of the rows that the watermark has not passed.
        keep_us: how long a key keeps its level after the latest row that named it (None: forever).
    """

    __slots__ = ("_fresh", "_inbox", "_index", "_keep", "armed")

    def __init__(self, agenda: bytes | None, leaves: Store, inbox: Store, *, keep_us: int | None = None) -> None:
        # Its own bytes only: a checkpoint is as trusted as the program.
        self.armed: int | None  # the timer that is set, in milliseconds
        keys, rows, self.armed = (None, None, None) if agenda is None else pickle.loads(agenda)  # noqa: S301
        self._index = LeafIndex(KeyLeaf, leaves, directory=keys)
        self._inbox = LeafIndex(RowLeaf, inbox, _INBOX, directory=rows)
        self._fresh: list[tuple[Any, ...]] = []
        self._keep = keep_us

    def events(self, rows: Iterable[Event]) -> None:
        """Take events that are not late."""
        self._fresh += [(at, EVENT, key, level) for at, key, level in rows]

    def watches(self, rows: Iterable[Watch]) -> None:
        """Take watches that are not late: one row for each key of an operation."""
        self._fresh += [(row[0], WATCH, *row[1:]) for row in rows]

    def advance(self, watermark: int) -> tuple[list[Open], list[Hit]]:
        """Decide everything up to the watermark, and save: operations to open, and keys that were reached."""
        opened: list[Open] = []
        hits: list[Hit] = []
        by_key: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        before: tuple[Any, ...] = (None,) * 4
        for row in self._ripe(watermark):
            # Doubles differ only in the number of the row, and what follows it. Neighbors that are not doubles mostly
            # differ in the fourth column, the number of the key.
            if row[3] != before[3] or row[0] != before[0] or row[:9] != before[:9]:
                by_key[row[2] if row[1] == EVENT else row[5]].append(row)
                before = row
        for name, rows in by_key.items():
            self._decide(name, rows, opened, hits)
        for leaf in self._index.open_with(watermark):
            leaf.sweep(watermark)
        self._index.save()
        return opened, hits

    @property
    def next_us(self) -> int | None:
        """The earliest instant at which there is something to do."""
        instants = [due for due in (self._inbox.next_due, self._index.next_due) if due is not None]
        return min(instants, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not len(self._index) and not len(self._inbox) and self.armed is None

    @property
    def kept(self) -> int:
        """How many keys and watches there are (some of them perhaps dead, but no more than half)."""
        return len(self._index)

    @property
    def agenda(self) -> bytes:
        """The values to keep beside the leaves, once saved."""
        return pickle.dumps((self._index.directory, self._inbox.directory, self.armed), 5)

    def _ripe(self, watermark: int) -> list[tuple[Any, ...]]:
        """Put new rows into the inbox. Take those up to the watermark, in order, doubles next to each other."""
        self._fresh.sort()
        for leaf, rows in self._inbox.shared(self._fresh):
            leaf.rows += rows
        self._fresh = []
        ripe: list[tuple[Any, ...]] = []
        for leaf in self._inbox.span((), (watermark + 1,)):
            ripe += leaf.take(watermark)
        self._inbox.save()
        ripe.sort()
        return ripe

    def _decide(self, name: str, rows: list[tuple[Any, ...]], opened: list[Open], hits: list[Hit]) -> None:
        """One key's rows, in order of time."""
        sole = self._index.whole(name)  # None if the key spans several leaves
        key = (self._index.find((name,)) if sole is None else sole).keys[name]
        for row in rows:
            if row[1] == EVENT:
                at, _, _, level = row
                if at > key.until or level > key.level:  # the key does not have this level yet, or no longer
                    key.level = level
                    for leaf in self._index.span((name,), (name, level + 1)) if sole is None else (sole,):
                        leaf.reach(name, level, at, hits)
                key.until = FOREVER if self._keep is None else at + self._keep
                continue
            at, _, operation, number, count, _, level, deadline, mark, seq, about = row
            if number == 0:
                opened.append((operation, count, at, deadline, mark, seq, about))
            if at <= key.until:  # there is a level
                if self._keep is not None:
                    key.until = at + self._keep
                if level <= key.level:
                    hits.append((operation, number, at, mark))
                    continue
            if deadline > at:
                watching = key if sole is not None else self._index.find((name, level, operation)).keys[name]
                heappush(watching.waiting, (level, operation, number, deadline, mark))


class OperationCore:
    """Stage 2 for the operations of one bucket.

    Args:
        agenda: the value of ``agenda`` when the core was last saved (None: a new core).
        leaves: where the operations are kept.
    """

    __slots__ = ("_index", "armed")

    def __init__(self, agenda: bytes | None, leaves: Store) -> None:
        self.armed: int | None
        operations, self.armed = (None, None) if agenda is None else pickle.loads(agenda)  # our own  # noqa: S301
        self._index = LeafIndex(OperationLeaf, leaves, directory=operations)

    def settle(self, opened: Iterable[Open], hits: Iterable[Hit], watermark: int) -> tuple[list[Done], list[Refused]]:
        """Take operations and hits, and save. Return the operations that are done, and the rows with a name in use.

        Those are done whose keys are all reached, or whose deadline the watermark has passed. All of an operation's
        keys that were there when it arrived are hit in the call that opens it, in any order. So an operation
        that is done at once, or by the watermark, is never kept.
        """
        done: list[Done] = []
        refused: list[Refused] = []
        find = self._index.find
        for name, some in self._claims(opened, hits).items():
            for operation in some if len(some) < 2 else _holders(name, some, watermark, refused):
                if operation.missing and operation.deadline > watermark:  # as most: they have no ``end`` yet
                    find((name,)).operations[name] = operation
                elif (end := operation.end(watermark)) is not None:
                    done.append((name, end[0], operation.arrival, end[1], operation.mark, operation.about))
        for leaf in self._index.due(watermark):
            for name, operation in list(leaf.operations.items()):
                if (end := operation.end(watermark)) is not None:
                    del leaf.operations[name]
                    done.append((name, end[0], operation.arrival, end[1], operation.mark, operation.about))
        self._index.save()
        return done, refused

    def _claims(self, opened: Iterable[Open], hits: Iterable[Hit]) -> dict[str, list[Operation]]:
        """The operations that have or claim a name that was opened or hit, nearly always one. The holder is removed."""
        claims: dict[str, list[Operation]] = {}
        for name, count, arrival, deadline, mark, seq, about in opened:
            operation = Operation(arrival, deadline, mark, (1 << count) - 1, arrival, about, seq)
            claims.setdefault(name, []).append(operation)
        find = self._index.find
        for name, some in claims.items() if self.parked else ():
            if (holder := find((name,)).operations.pop(name, None)) is not None:
                some.append(holder)
        for name, number, at, mark in hits:
            holders = claims.get(name)
            if holders is None:
                holder = find((name,)).operations.pop(name, None)
                holders = claims[name] = [] if holder is None else [holder]
            for operation in holders:
                if operation.mark == mark:
                    operation.hit(number, at)
        return claims

    @property
    def next_us(self) -> int | None:
        """The next deadline."""
        return self._index.next_due

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not self.parked and self.armed is None

    @property
    def parked(self) -> int:
        """How many operations are open."""
        return len(self._index)

    @property
    def agenda(self) -> bytes:
        """The values to keep beside the leaves, once saved."""
        return pickle.dumps((self._index.directory, self.armed), 5)


def _holders(name: str, claims: list[Operation], watermark: int, refused: list[Refused]) -> list[Operation]:
    """Of several rows with one name, those that came while no operation had it."""
    held: list[Operation] = []
    free_at: int | None = None  # when the last one is answered (None: not yet)
    for operation in sorted(claims, key=lambda claim: (claim.arrival, claim.seq)):
        if held and (free_at is None or operation.arrival < free_at or operation.arrival == held[-1].arrival):
            refused.append((name, operation.arrival, operation.seq))
            continue
        held.append(operation)
        end = operation.end(watermark)
        free_at = None if end is None else end[1]
    return held
