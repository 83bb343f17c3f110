"""The content of the leaves of the stream's state: keys with their watches, operations, and rows to come.

A leaf is packed as one pickled list of plain tuples. Columns of machine words were rejected: they save 7 percent of the
bytes, and take as much time.

A ``KeyLeaf`` is ordered by key, level and operation. A key comes before the operations that wait on it::

    ("k1",)            level 7
    ("k1", 8, "op-3")  deadline 12:00
    ("k1", 9, "op-1")  deadline 12:05
    ("k2",)            (no level yet)
    ("k2", 1, "op-9")  deadline 11:58

So a key with very many waiting operations spans several leaves. An event opens only those whose levels it reaches, and
empties them. The key's level is in the first of its leaves.

Dead entries are watches past their deadline, and keys whose level no longer counts. They are dropped whenever their
leaf is open. A leaf asks to be opened once half of it is dead. So at most half of the entries are dead, and a sweep
costs each entry a fixed share of one opening.
"""

from __future__ import annotations

import heapq
import pickle
from collections import defaultdict
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from purgatory.pipeline._state.leaf_index import Bound

#: A watch on a key: the level needed, the operation, the number of this key among its keys, the deadline, and the mark
#: of the operation's row.
Waiting: TypeAlias = tuple[int, str, int, int, int]

#: What the answer of an operation repeats of its row: type, number of keys and delay (ms).
About: TypeAlias = tuple[str, int, int]

EVENT: Final = 0
#: The second column of a row in the inbox says whether it is an event or a watch.
WATCH: Final = 1

FOREVER: Final = 2**62
_FEW: Final = 32  # a leaf with fewer entries is opened when the last one is dead
_UNKNOWN: Final = -1


@attrs.define(eq=False, weakref_slot=False)
class Key:
    """A key's level, until when it counts, and a heap of its watches, the lowest level first."""

    level: int = 0
    until: int = _UNKNOWN  # _UNKNOWN: there is no level
    waiting: list[Waiting] = attrs.field(factory=list)


class KeyLeaf:
    """Keys with their watches."""

    __slots__ = ("keys",)

    def __init__(self, keys: dict[str, Key] | None = None) -> None:
        self.keys: dict[str, Key] = defaultdict(Key, keys or {})  # a missing key is created

    def reach(self, name: str, level: int, at: int, hits: list[tuple[str, int, int, int]]) -> None:
        """Remove the watches of a key up to a level. Add a hit for each one whose deadline is later."""
        key = self.keys.get(name)
        waiting = None if key is None else key.waiting
        while waiting and waiting[0][0] <= level:
            _, operation, number, deadline, mark = heapq.heappop(waiting)
            if at < deadline:
                hits.append((operation, number, at, mark))

    def sweep(self, watermark: int) -> None:
        """Drop entries that no row after the watermark can change."""
        empty = []
        for name, key in self.keys.items():
            if key.until <= watermark:
                key.until = _UNKNOWN
            waiting = key.waiting
            if len(waiting) == 1:  # the usual case for keys that come and go
                if waiting[0][3] > watermark:
                    continue
                key.waiting = waiting = []
            elif waiting:
                alive = [watch for watch in waiting if watch[3] > watermark]
                if len(alive) < len(waiting):
                    heapq.heapify(alive)
                    key.waiting = waiting = alive
            if not waiting and key.until == _UNKNOWN:
                empty.append(name)
        for name in empty:
            del self.keys[name]

    def __len__(self) -> int:
        return sum([len(key.waiting) + (key.until != _UNKNOWN) for key in self.keys.values()])

    def pack(self) -> tuple[bytes, int | None]:
        """Its bytes, and when half of the entries that expire are dead."""
        rows = [(name, key.level, key.until, key.waiting) for name, key in self.keys.items()]
        deaths = [watch[3] for *_, waiting in rows for watch in waiting]
        deaths += [until for _, _, until, _ in rows if _UNKNOWN < until < FOREVER]
        deaths.sort()
        return pickle.dumps(rows, 5), deaths[max(len(deaths) // 2, min(len(deaths) - 1, _FEW))] if deaths else None

    @classmethod
    def unpack(cls, data: bytes) -> KeyLeaf:
        """The leaf that was packed. A checkpoint is as trusted as the program."""
        rows = pickle.loads(data)  # noqa: S301
        return cls({name: Key(level, until, waiting) for name, level, until, waiting in rows})

    def cut(self, size: int) -> list[tuple[Bound, KeyLeaf]]:
        """Split it into leaves of about this size."""
        parts: list[tuple[Bound, KeyLeaf]] = []
        room = 0
        for name in sorted(self.keys):
            key = self.keys[name]
            known = key.until != _UNKNOWN
            count = len(key.waiting) + known
            if count > room:
                parts.append(((name,), KeyLeaf()))
                room = size
            parts[-1][1].keys[name] = key
            room -= count
            if count > size:  # the key spans several leaves, and its level is in the first
                waiting = sorted(key.waiting)
                key.waiting = waiting[: size - known]
                for start in range(size - known, len(waiting), size):
                    some = waiting[start : start + size]
                    parts.append(((name, *some[0][:2]), KeyLeaf({name: Key(waiting=some)})))
                    room = size - len(some)
        return parts

    def join(self, other: KeyLeaf) -> None:
        """Add the next leaf, which may begin with the last key of this one."""
        for name, key in other.keys.items():
            mine = self.keys.setdefault(name, key)
            if mine is not key:
                mine.waiting += key.waiting
                heapq.heapify(mine.waiting)


@attrs.define(eq=False, weakref_slot=False)
class Operation:
    """An operation that is open."""

    arrival: int
    deadline: int
    mark: int  # the mark of its row, which distinguishes it from others of the same name
    missing: int  # one bit per key that is not reached
    latest: int  # the last hit, or the arrival
    about: About
    seq: int = -1  # the number of its row, which is not stored

    def hit(self, number: int, at: int) -> None:
        """One of its keys is reached."""
        self.missing &= ~(1 << number)
        self.latest = max(self.latest, at)

    def end(self, watermark: int) -> tuple[str, int] | None:
        """Its outcome and when it was finished, or None if it is open."""
        if self.missing == 0 and self.latest <= self.arrival:
            return "immediate", self.arrival
        if self.missing == 0 and self.latest < self.deadline:
            return "satisfied", self.latest
        return ("expired", self.deadline) if self.missing == 0 or self.deadline <= watermark else None


@attrs.define(eq=False)
class OperationLeaf:
    """Operations that are open, by name."""

    operations: dict[str, Operation] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self.operations)

    def pack(self) -> tuple[bytes, int | None]:
        """Its bytes, and the first deadline."""
        kept = self.operations.values()
        rows = [(each.arrival, each.deadline, each.mark, each.missing, each.latest, each.about) for each in kept]
        packed = pickle.dumps((list(self.operations), rows), 5)
        return packed, min((operation.deadline for operation in kept), default=None)

    @classmethod
    def unpack(cls, data: bytes) -> OperationLeaf:
        """The leaf that was packed."""
        names, rows = pickle.loads(data)  # our own  # noqa: S301
        return cls(dict(zip(names, starmap(Operation, rows), strict=True)))

    def cut(self, size: int) -> list[tuple[Bound, OperationLeaf]]:
        """Split it into leaves of this size."""
        names = sorted(self.operations)
        runs = [names[start : start + size] for start in range(0, len(names), size)]
        return [((run[0],), OperationLeaf({name: self.operations[name] for name in run})) for run in runs]

    def join(self, other: OperationLeaf) -> None:
        """Add the next leaf."""
        self.operations |= other.operations


@attrs.define(eq=False)
class RowLeaf:
    """Rows after the watermark, ordered by their instant."""

    rows: list[tuple[Any, ...]] = attrs.field(factory=list)

    def take(self, watermark: int) -> list[tuple[Any, ...]]:
        """Remove the rows up to the watermark, and return them."""
        ripe = [row for row in self.rows if row[0] <= watermark]
        self.rows = [row for row in self.rows if row[0] > watermark] if ripe else self.rows
        return ripe

    def __len__(self) -> int:
        return len(self.rows)

    def pack(self) -> tuple[bytes, int | None]:
        """Its bytes, and the first row's instant."""
        return pickle.dumps(self.rows, 5), min((row[0] for row in self.rows), default=None)

    @classmethod
    def unpack(cls, data: bytes) -> RowLeaf:
        """The leaf that was packed."""
        return cls(pickle.loads(data))  # our own  # noqa: S301

    def cut(self, size: int) -> list[tuple[Bound, RowLeaf]]:
        """Split it into leaves of this size."""
        self.rows.sort()
        runs = [self.rows[start : start + size] for start in range(0, len(self.rows), size)]
        return [(run[0], RowLeaf(run)) for run in runs]

    def join(self, other: RowLeaf) -> None:
        """Add the next leaf."""
        self.rows += other.rows
