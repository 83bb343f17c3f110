"""The purgatory as two state machines over time that has passed for sure. Plain Python: no Spark, clock or thread.

Rows arrive in any order; the *watermark* says how far time has come: nothing older than it will be accepted
any more. So everything up to the watermark can be put in its true order and decided once and for all, and
everything after it waits.

Stage 1, `KeyCore`, holds the keys of a bucket: their levels, and who waits on them for which level. ::

    buffer -> (watermark passes) -> in order of time, events before operations -> a watch whose level is
    there: "hit"
                                                                               -> an event that reaches
                                                                               levels: "hit" each

Stage 2, `OperationCore`, holds the operations of a bucket: which of their keys have been hit. When all
have, the operation completes at the latest of those instants; when the watermark passes its deadline first,
it expires.

Why this is exact: an operation's keys may lie in different buckets, but each bucket dates its hits by the
rows' own instants, not by when they were processed. The last hit's date against the deadline decides the
outcome, so it can't depend on batches, files, restarts or the number of machines. Expiry at watermark W is
safe because every hit dated before W has been handed over in the same batch or an earlier one.

Ties, as the library has them: at one instant what is due expires first, then events apply, then operations
arrive. So an event at an operation's very deadline is too late, and one at its very arrival counts.

A row older than the watermark can't be answered exactly any more, so it isn't answered: it is handed back
as late, and counted. A row that is delivered twice is one row: its double has the same instant, so both are
in the buffer together.
"""

from __future__ import annotations

import heapq
import pickle
from array import array
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Event: TypeAlias = tuple[int, str, int]
"""An instant (us), a key and the level that it has reached."""

Watch: TypeAlias = tuple[int, str, int, int, str, int, int]
"""An instant (us), an operation, the number of this key of so many, the key, the level needed, the deadline (us)."""

Open: TypeAlias = tuple[str, int, int, int]
"""An operation, how many keys it has, its arrival and its deadline."""

Hit: TypeAlias = tuple[str, int, int]
"""An operation, which of its keys, and when."""

Done: TypeAlias = tuple[str, str, int, int]
"""An operation, its outcome, its arrival and when it was finished."""

_EVENT: Final = 0
_WATCH: Final = 1
_SLACK: Final = 256


class KeyCore:
    """Stage 1 for the keys of one bucket."""

    __slots__ = ("_dead", "_due", "_levels", "_live", "_pending", "_waiting", "armed")

    def __init__(self) -> None:
        self._pending: list[tuple[object, ...]] = []
        self._levels: dict[str, int] = {}
        # Who waits on a key, the lowest level first: (level, operation, number, deadline).
        self._waiting: dict[str, list[tuple[int, str, int, int]]] = {}
        self._due: list[int] = []  # the deadlines of those who wait, the next first
        self._live = self._dead = 0
        self.armed: int | None = None

    def events(self, rows: Iterable[Event]) -> None:
        """Take events that are not late."""
        self._pending += [(at, _EVENT, key, level) for at, key, level in rows]

    def watches(self, rows: Iterable[Watch]) -> None:
        """Take watches that are not late: one row for each key of an operation."""
        self._pending += [
            (at, _WATCH, operation, number, count, key, level, deadline)
            for at, operation, number, count, key, level, deadline in rows
        ]

    def advance(self, watermark: int) -> tuple[list[Open], list[Hit]]:
        """Decide everything up to the watermark: operations to open, and keys that were reached."""
        opened: list[Open] = []
        hits: list[Hit] = []
        pending: list[tuple[object, ...]] = []
        later: list[tuple[object, ...]] = []
        for row in self._pending:
            (pending if row[0] <= watermark else later).append(row)  # type: ignore[operator]
        pending.sort()  # doubles become neighbours
        self._pending = later
        before: tuple[object, ...] | None = None
        for row in pending:
            if row == before:
                continue
            before = row
            if row[1] == _EVENT:
                self._reach(row, hits)
            else:
                self._watch(row, opened, hits)
        self._forget(watermark)
        return opened, hits

    @property
    def next_us(self) -> int | None:
        """The earliest instant at which there is something to decide."""
        return min((row[0] for row in self._pending), default=None)  # type: ignore[type-var,return-value]

    @property
    def waiting(self) -> int:
        """How many watches are waiting for a level (some of them perhaps past their deadline)."""
        return self._live

    def _reach(self, row: tuple[object, ...], hits: list[Hit]) -> None:
        at, _, key, level = row
        assert isinstance(at, int)
        assert isinstance(key, str)
        assert isinstance(level, int)
        if level <= self._levels.get(key, level - 1):
            return
        self._levels[key] = level
        heap = self._waiting.get(key)
        while heap and heap[0][0] <= level:
            _, operation, number, deadline = heapq.heappop(heap)
            self._live -= 1
            if at < deadline:
                hits.append((operation, number, at))
        if heap is not None and not heap:
            del self._waiting[key]

    def _watch(self, row: tuple[object, ...], opened: list[Open], hits: list[Hit]) -> None:
        at, _, operation, number, count, key, level, deadline = row
        assert isinstance(at, int)
        assert isinstance(operation, str)
        assert isinstance(number, int)
        assert isinstance(count, int)
        assert isinstance(key, str)
        assert isinstance(level, int)
        assert isinstance(deadline, int)
        if number == 0:
            opened.append((operation, count, at, deadline))
        if level <= self._levels.get(key, level - 1):
            hits.append((operation, number, at))
        elif deadline > at:
            heapq.heappush(self._waiting.setdefault(key, []), (level, operation, number, deadline))
            heapq.heappush(self._due, deadline)
            self._live += 1

    def _forget(self, watermark: int) -> None:
        """Drop watches past their deadline, once they are many: a level never reached must not keep them for ever."""
        due = self._due
        while due and due[0] <= watermark:
            heapq.heappop(due)
            self._dead += 1
        if self._dead > _SLACK and self._dead > len(due):
            kept = {}
            for key, heap in self._waiting.items():
                if alive := [watch for watch in heap if watch[3] > watermark]:
                    heapq.heapify(alive)
                    kept[key] = alive
            self._waiting = kept
            self._live = sum(map(len, kept.values()))
            self._due = sorted(watch[3] for heap in kept.values() for watch in heap)
            self._dead = 0

    def dump(self) -> bytes:
        """The whole state, as columns: that is half the work of writing and reading it watch by watch."""
        watches = [watch for heap in self._waiting.values() for watch in heap]
        levels, operations, numbers, deadlines = zip(*watches, strict=True) if watches else ((), (), (), ())
        sizes = array("q", map(len, self._waiting.values()))
        waiting = (list(self._waiting), sizes, array("q", levels), operations, numbers, array("q", deadlines))
        return pickle.dumps((self._pending, self._levels, waiting, self.armed), 5)

    @classmethod
    def load(cls, data: bytes) -> KeyCore:
        """The core that `dump` was called on. Its own state only: a checkpoint is as trusted as the program."""
        core = cls()
        core._pending, core._levels, waiting, core.armed = pickle.loads(data)  # noqa: S301
        keys, sizes, levels, operations, numbers, deadlines = waiting
        watches = zip(levels, operations, numbers, deadlines, strict=True)
        core._waiting = {key: list(islice(watches, size)) for key, size in zip(keys, sizes, strict=True)}
        core._live = len(deadlines)
        core._due = sorted(deadlines)
        return core


class OperationCore:
    """Stage 2 for the operations of one bucket."""

    __slots__ = ("_due", "_open", "armed")

    def __init__(self) -> None:
        # [keys still missing as bits or None, arrival, deadline, latest hit, bits hit before it was opened]
        self._open: dict[str, list[int | None]] = {}
        self._due: list[tuple[int, str]] = []
        self.armed: int | None = None

    def opened(self, rows: Iterable[Open]) -> None:
        """Take operations that arrived. One that is there already stays as it is."""
        for operation, count, arrival, deadline in rows:
            entry = self._open.get(operation)
            if entry is None:
                self._open[operation] = [(1 << count) - 1, arrival, deadline, arrival, 0]
            elif entry[0] is None:
                entry[0], entry[1], entry[2] = ((1 << count) - 1) & ~(entry[4] or 0), arrival, deadline
            else:
                continue
            heapq.heappush(self._due, (deadline, operation))

    def hit(self, rows: Iterable[Hit]) -> None:
        """Take keys that were reached, in any order."""
        for operation, number, at in rows:
            entry = self._open.get(operation)
            if entry is None:  # of an operation that another bucket has yet to open in this batch
                self._open[operation] = [None, 0, 0, at, 1 << number]
                continue
            if entry[0] is None:
                entry[4] = (entry[4] or 0) | 1 << number
            else:
                entry[0] &= ~(1 << number)
            entry[3] = max(entry[3] or 0, at)

    def settle(self, watermark: int, touched: Iterable[str] | None = None) -> list[Done]:
        """The operations that are done: all their keys are reached, or the watermark has passed their deadline.

        Args:
            watermark: in microseconds.
            touched: the operations that were opened or hit since the last call; None looks at none of them.
        """
        done: list[Done] = []
        for operation in touched or ():
            entry = self._open.get(operation)
            if entry is not None and entry[0] == 0:
                done.append(self._finish(operation, entry))
        due = self._due
        while due and due[0][0] <= watermark:
            deadline, operation = heapq.heappop(due)
            entry = self._open.get(operation)
            if entry is not None and entry[2] == deadline and entry[0] is not None:
                done.append(self._finish(operation, entry))
        if len(due) > _SLACK and len(due) > 2 * len(self._open):
            self._due = [(entry[2] or 0, name) for name, entry in self._open.items() if entry[0] is not None]
            heapq.heapify(self._due)
        return done

    def _finish(self, operation: str, entry: list[int | None]) -> Done:
        del self._open[operation]
        missing, arrival, deadline, latest, _ = entry
        assert arrival is not None
        assert deadline is not None
        assert latest is not None
        if missing == 0 and latest <= arrival:
            return operation, "immediate", arrival, arrival
        if missing == 0 and latest < deadline:
            return operation, "satisfied", arrival, latest
        return operation, "expired", arrival, deadline

    @property
    def next_us(self) -> int | None:
        """The next deadline."""
        while self._due and self._due[0][1] not in self._open:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    @property
    def parked(self) -> int:
        """How many operations are open."""
        return len(self._open)

    def dump(self) -> bytes:
        """The whole state, as columns."""
        missing, arrivals, deadlines, latest, early = zip(*self._open.values(), strict=True) if self._open else [()] * 5
        instants = (array("q", arrivals), array("q", deadlines), array("q", latest))
        return pickle.dumps((list(self._open), missing, *instants, early, self.armed), 5)

    @classmethod
    def load(cls, data: bytes) -> OperationCore:
        """The core that `dump` was called on."""
        core = cls()
        names, *columns, core.armed = pickle.loads(data)  # noqa: S301
        core._open = dict(zip(names, map(list, zip(*columns, strict=True)), strict=True))
        core._due = [(entry[2] or 0, name) for name, entry in core._open.items() if entry[0] is not None]
        heapq.heapify(core._due)
        return core
