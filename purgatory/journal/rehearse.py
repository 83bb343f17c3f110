"""Run a trace through the library itself, on a manual clock, and journal what comes of it.

This is the yardstick for every other way to answer the same question (the stream and the batch twin of the
pipeline): real operations, a real purgatory, the real wheel, and time moved by hand. At each instant what
is due expires first, then the events apply, then the operations of that instant arrive; so an event that
comes at an operation's very deadline is too late.

Traces are in microseconds and the library's delays in milliseconds: instants must be whole milliseconds here.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.journal._journal import Journal
from purgatory.journal._reader import read
from purgatory.journal.records import EVENT, OPERATION, TraceRow
from purgatory.journal.records.errors import JournalFormat
from timer import NS_PER_MS, MockTimer

if TYPE_CHECKING:
    from pathlib import Path

_RANK = {EVENT: 0, OPERATION: 1}


class _Threshold(DelayedOperation):
    """Completes once every key has reached its level."""

    def __init__(self, row: TraceRow, levels: dict[str, int]) -> None:
        super().__init__(row.delay_ms)
        self.name = row.operation
        self._needs = dict(zip(row.keys, row.levels, strict=True))
        self._levels = levels

    def try_complete(self) -> bool:
        levels = self._levels
        if all(levels.get(key, need - 1) >= need for key, need in self._needs.items()):
            return self.force_complete()
        return False

    def on_complete(self) -> None:
        """The journal notes it."""


def rehearse(trace: Path, journal: Path) -> int:
    """Run the trace and write a journal; gives the number of operations.

    Raises:
        JournalFormat: the folder holds a journal, or instants that are not whole milliseconds.
    """
    rows = _rows(trace)
    levels: dict[str, int] = {}
    timer = MockTimer()
    start = rows[0].ts if rows else 0
    deadlines: list[
        int
    ] = []  # milliseconds since the start; the clock stops at each, so that an expiry is dated exactly
    seen: set[str | None] = set()

    def advance(to_ms: float) -> None:
        while deadlines and deadlines[0] <= to_ms:
            timer.advance_clock(max(0, heapq.heappop(deadlines) - timer.clock() // NS_PER_MS))
        if to_ms != math.inf:
            timer.advance_clock(max(0, to_ms - timer.clock() // NS_PER_MS))

    with Journal(journal, instance="rehearsal", when_full="wait", patience_ms=60_000) as sink:
        watcher = sink.observer(
            "rehearsal", now_ns=timer.clock, epoch_ns=start * 1000, identify=lambda operation: operation.name
        )
        with DelayedOperationPurgatory[_Threshold]("rehearsal", timer=timer, observers=(watcher,)) as parked:
            for row in rows:
                at_ms = (row.ts - start) // 1000
                advance(at_ms)
                if row.kind == EVENT:
                    key, level = row.keys[0], row.levels[0]
                    if level > levels.get(key, level - 1):
                        levels[key] = level
                        parked.check_and_complete(key)
                elif row.operation not in seen:  # a row that was delivered twice is one operation
                    seen.add(row.operation)
                    parked.try_complete_else_watch(_Threshold(row, levels), row.keys)
                    heapq.heappush(deadlines, at_ms + max(0, row.delay_ms))
            advance(math.inf)
        assert sink.flush(60)
    return len(seen)


def _rows(trace: Path) -> list[TraceRow]:
    rows = []
    for row in read(trace):
        if not isinstance(row, TraceRow):
            message = f"{trace} holds a journal: rehearse needs a trace, which says what operations wait for"
            raise JournalFormat(message)
        if row.kind in _RANK:
            rows.append(row)
    rows.sort(key=lambda row: (row.ts, _RANK[row.kind], row.seq))
    if any(row.ts % 1000 for row in rows):
        message = "the library counts milliseconds: make the trace with instants that are whole milliseconds"
        raise JournalFormat(message)
    return rows
