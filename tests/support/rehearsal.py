"""A trace run through the library itself, on a manual clock, and the journal of the outcomes.

This is the yardstick for the pipeline's stream and replay, which answer the same question. It uses real operations, one
real purgatory per purgatory of the trace, and one real wheel, and it moves time by hand. At each instant, deadlines
expire first, then events apply, then operations arrive. So an event at an operation's deadline is too late. A row with
the name of an operation that is still open is left out. A key that no row has named for long is forgotten
(``records``).

Traces are in microseconds, and the library's clock ticks in milliseconds. Rows keep their order by the microsecond, and
each instant is rounded down to a millisecond. So an outcome is dated up to 1 ms early, and an event less than 1 ms
before or after a deadline may fall on the other side of it.
"""

from __future__ import annotations

import heapq
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.journal._journal import Journal
from purgatory.journal._reader import read
from purgatory.journal.records import EVENT, KEEP_KEYS_MS, OPERATION, TraceRow
from timer import MockTimer
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

_RANK = {EVENT: 0, OPERATION: 1}


class _Levels(dict[str, int]):
    """The levels of a purgatory's keys, but for those that no row has named for long."""

    def __init__(self, keep_ms: int | None) -> None:
        super().__init__()
        self._keep_us = math.inf if keep_ms is None else keep_ms * 1000
        self._named: dict[str, int] = {}  # when each was named last

    def name(self, row: TraceRow) -> None:
        """Forget those of a row's keys that were last named too long ago."""
        for key in row.keys:
            if row.ts - self._named.get(key, row.ts) > self._keep_us:
                self.pop(key, None)
            self._named[key] = row.ts


class _Threshold(DelayedOperation):
    """Completes once every key has reached its level. One that has is reached, also if its level is forgotten later."""

    def __init__(self, row: TraceRow, levels: dict[str, int]) -> None:
        super().__init__(row.delay_ms)
        self.row = row
        self.answered = False
        self._missing = dict(zip(row.keys, row.levels, strict=True))
        self._levels = levels

    def try_complete(self) -> bool:
        levels = self._levels
        self._missing = {key: need for key, need in self._missing.items() if levels.get(key, need - 1) < need}
        return not self._missing and self.force_complete()

    def on_complete(self) -> None:
        """Remember it. The journal writes the rest."""
        self.answered = True

    def has_name_at(self, ts: int) -> bool:
        """Whether no other operation can have its name at this instant, after all that is due has happened."""
        return not self.answered or ts == self.row.ts

    def is_of(self, row: TraceRow) -> bool:
        """Whether the row says the same again."""
        mine = self.row
        return (row.ts, row.delay_ms, row.keys, row.levels) == (mine.ts, mine.delay_ms, mine.keys, mine.levels)


def rehearse(trace: Path, journal: Path, *, keep_ms: int | None = KEEP_KEYS_MS) -> int:
    """Run the trace and write a journal. Return the number of operations.

    Args:
        trace: a trace's folder.
        journal: where the journal is to be written.
        keep_ms: how long a key keeps its level after the latest row that named it (None: forever).
    """
    rows = _rows(trace)
    timer = MockTimer()
    start_us = rows[0].ts // 1000 * 1000 if rows else 0
    with ExitStack() as stack:
        sink = stack.enter_context(Journal(journal, instance="rehearsal", when_full="wait", patience_ms=60_000))
        stages = {}
        for name in {row.purgatory for row in rows}:
            watcher = sink.observer(
                name, now_ns=timer.clock, epoch_ns=start_us * 1000, identify=lambda operation: operation.row.operation
            )
            made = DelayedOperationPurgatory[_Threshold](name or "unnamed", timer=timer, observers=(watcher,))
            stages[name] = _Stage(stack.enter_context(made), _Levels(keep_ms))
        clock = _Clock(timer)
        for row in rows:
            at_ms = (row.ts - start_us) // 1000
            clock.advance(at_ms)
            if stages[row.purgatory].take(row):
                clock.stop_at(at_ms + max(0, row.delay_ms))
        clock.advance(math.inf)
        assert sink.flush(60)
    return sum(stage.operations for stage in stages.values())


class _Clock:
    """Moves a timer in milliseconds. It stops at each deadline, so that an expiry is dated exactly."""

    def __init__(self, timer: MockTimer) -> None:
        self._timer = timer
        self._deadlines: list[int] = []

    def stop_at(self, deadline_ms: int) -> None:
        """Stop at a deadline on the way."""
        heapq.heappush(self._deadlines, deadline_ms)

    def advance(self, to_ms: float) -> None:
        """Move on, to the last deadline at most."""
        while self._deadlines and self._deadlines[0] <= to_ms:
            self._move(heapq.heappop(self._deadlines))
        if to_ms != math.inf:
            self._move(int(to_ms))

    def _move(self, to_ms: int) -> None:
        self._timer.advance_clock(max(0, to_ms - self._timer.clock() // NS_PER_MS))


class _Stage:
    """A purgatory, the levels of its keys, and the operation that had each name last."""

    def __init__(self, purgatory: DelayedOperationPurgatory[_Threshold], levels: _Levels) -> None:
        self.operations = 0
        self._purgatory = purgatory
        self._levels = levels
        self._holders: dict[str | None, _Threshold] = {}

    def take(self, row: TraceRow) -> bool:
        """Apply an event, or park an operation. Return whether an operation was parked."""
        self._levels.name(row)
        if row.kind == EVENT:
            key, level = row.keys[0], row.levels[0]
            if level > self._levels.get(key, level - 1):
                self._levels[key] = level
                self._purgatory.check_and_complete(key)
            return False
        holder = self._holders.get(row.operation)
        if holder is not None and (holder.is_of(row) or holder.has_name_at(row.ts)):
            return False
        operation = self._holders[row.operation] = _Threshold(row, self._levels)
        self.operations += 1
        self._purgatory.try_complete_else_watch(operation, row.keys)
        return True


def _rows(trace: Path) -> list[TraceRow]:
    rows = []
    for row in read(trace):
        assert isinstance(row, TraceRow)
        if row.kind in _RANK:
            # One that names no purgatory, as a file that others wrote may have it, is of the one without a name.
            rows.append(row if row.purgatory is not None else attrs.evolve(row, purgatory=""))
    return sorted(rows, key=lambda row: (row.ts, _RANK[row.kind], row.seq))
