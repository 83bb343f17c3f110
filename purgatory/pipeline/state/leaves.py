"""The content of the leaves of the stream's state: keys with their watches, operations, and rows to come.

Packed, they are columns: numbers as machine words, names as they are. That takes half the bytes and a third of the time
of pickling each entry.

A `KeyLeaf` is ordered by key, level and operation. A key comes before the operations that wait on it::

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
from array import array
from collections import defaultdict
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from purgatory.pipeline.state.leaf_index import Bound

Waiting: TypeAlias = tuple[int, str, int, int, int]
"""A watch on a key: the level needed, the operation, the number of this key among its keys, the deadline, and the
mark of the operation's row."""

EVENT: Final = 0
WATCH: Final = 1
"""The second column of a row in the inbox says whether it is an event or a watch."""

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
        keys = self.keys.values()
        watches = [watch for key in keys for watch in (sorted(key.waiting) if len(key.waiting) > 1 else key.waiting)]
        levels, operations, numbers, deadlines, marks = zip(*watches, strict=True) if watches else ((),) * 5
        sizes = [len(key.waiting) if key.until == _UNKNOWN else ~len(key.waiting) for key in keys]
        known = [key for key in keys if key.until != _UNKNOWN]
        deaths = sorted([*deadlines, *(key.until for key in known if key.until < FOREVER)])
        columns = (
            *(list(self.keys), _pack("i", sizes)),  # the number of watches, inverted if the key has a level
            *(_pack("q", [key.level for key in known]), _pack("q", [key.until for key in known])),
            *(_pack("q", levels), operations, _pack("h", numbers), _pack("q", deadlines), _pack("I", marks)),
        )
        return pickle.dumps(columns, 5), deaths[max(len(deaths) // 2, min(len(deaths) - 1, _FEW))] if deaths else None

    @classmethod
    def unpack(cls, data: bytes) -> KeyLeaf:
        """The leaf that was packed. A checkpoint is as trusted as the program."""
        names, sizes, level, until, levels, operations, numbers, deadlines, marks = pickle.loads(data)  # noqa: S301
        columns = (array("q", levels), operations, array("h", numbers), array("q", deadlines), array("I", marks))
        watches = zip(*columns, strict=True)
        known = zip(array("q", level), array("q", until), strict=True)
        leaf = cls()
        keys = leaf.keys
        for name, size in zip(names, array("i", sizes), strict=True):
            key = keys[name] = Key(*next(known)) if size < 0 else Key()
            key.waiting = list(islice(watches, ~size if size < 0 else size))
        return leaf

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
        columns = (
            list(self.operations),
            _pack("q", [operation.arrival for operation in kept]),
            _pack("q", [operation.deadline for operation in kept]),
            _pack("I", [operation.mark for operation in kept]),
            [operation.missing for operation in kept],  # up to a thousand bits
            _pack("q", [operation.latest for operation in kept]),
        )
        return pickle.dumps(columns, 5), min((operation.deadline for operation in kept), default=None)

    @classmethod
    def unpack(cls, data: bytes) -> OperationLeaf:
        """The leaf that was packed."""
        names, arrivals, deadlines, marks, missing, latest = pickle.loads(data)  # our own  # noqa: S301
        columns = (array("q", arrivals), array("q", deadlines), array("I", marks), missing, array("q", latest))
        return cls(dict(zip(names, map(Operation, *columns), strict=True)))

    def cut(self, size: int) -> list[tuple[Bound, OperationLeaf]]:
        """Split it into leaves of this size."""
        names = sorted(self.operations)
        runs = [names[start : start + size] for start in range(0, len(names), size)]
        return [((run[0],), OperationLeaf({name: self.operations[name] for name in run})) for run in runs]

    def join(self, other: OperationLeaf) -> None:
        """Add the next leaf."""
        self.operations |= other.operations


_EVENTS: Final = "q sq"
_WATCHES: Final = "q shhsqqIq"
"""The columns of a row in the inbox: machine words (see `_pack`), texts (`s`), and which of the two it is (a blank)."""


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
        came = [row for row in self.rows if row[1] == EVENT]
        rest = [row for row in self.rows if row[1] == WATCH] if came else self.rows
        packed = _columns(came, _EVENTS), _columns(rest, _WATCHES)
        return pickle.dumps(packed, 5), min((row[0] for row in self.rows), default=None)

    @classmethod
    def unpack(cls, data: bytes) -> RowLeaf:
        """The leaf that was packed."""
        events, watches = pickle.loads(data)  # our own  # noqa: S301
        return cls([*_rows(events, _EVENTS, EVENT), *_rows(watches, _WATCHES, WATCH)])

    def cut(self, size: int) -> list[tuple[Bound, RowLeaf]]:
        """Split it into leaves of this size."""
        self.rows.sort()
        runs = [self.rows[start : start + size] for start in range(0, len(self.rows), size)]
        return [(run[0], RowLeaf(run)) for run in runs]

    def join(self, other: RowLeaf) -> None:
        """Add the next leaf."""
        self.rows += other.rows


def _columns(rows: list[tuple[Any, ...]], codes: str) -> tuple[Any, ...]:
    """The columns of rows, packed, without the one that says what all these rows are."""
    columns = zip(codes, zip(*rows, strict=True) if rows else repeat(()), strict=False)
    return tuple(column if code == "s" else _pack(code, column) for code, column in columns if code != " ")


def _rows(columns: tuple[Any, ...], codes: str, what: int) -> Iterable[tuple[Any, ...]]:
    """The rows that were packed, with what they are."""
    at, *rest = (
        column if code == "s" else array(code, column)
        for code, column in zip(codes.replace(" ", ""), columns, strict=True)
    )
    return zip(at, repeat(what), *rest, strict=False)


def _pack(code: str, numbers: Iterable[int]) -> bytes:
    """Numbers as machine words: of 16 bits (`h`), 32 (`i`, or `I` without a sign) or 64 (`q`)."""
    return array(code, numbers).tobytes()
