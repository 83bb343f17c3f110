"""The work that a timing wheel of another tick and size would have done, in closed form: no simulation.

A bucket of level L spans ``size ** L`` ticks, and the ring of a level has ``2 * size`` buckets. So an entry goes in at
the finest level whose ring reaches its due tick. Its bucket is emptied one span ahead of the bucket's first tick, and
the entry then moves to the next finer level, unless its operation was answered before::

    size 20, due in 8,437 ticks: level 0 reaches 40 ticks ahead, level 1 800, level 2 16,000
        in at level 2, its bucket begins at 8,400
        moved to level 1 at 8,000, where its bucket begins at 8,420
        moved to level 0 at 8,400

Each level is a few operations on whole columns, and only the entries that lie above it go on. So one core counts tens
of millions of operations per second and setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline._rows.validity import LONGEST_MS
from purgatory.pipeline._tables.table import PerPart, Table, schema

_UNANSWERED: Final = 2**60
WAITS: Final = Table("select arrival_us, delay_ms, wait_us from waits", "arrival_us delay_ms:int wait_us")
COUNTED: Final = schema("tick_ms:int wheel_size operations levels:rank reinsertions")


def levels_and_reinsertions(due: Any, start: Any, end: Any, size: int) -> tuple[int, int]:
    """The levels that entries need, and how often they move to a lower level.

    Args:
        due: when each is due, in ticks.
        start: when each arrived.
        end: when each was answered, or ``due``.
        size: the buckets of a wheel.
    """
    levels, again, span = 1, 0, size
    while (above := due - start >= 2 * span).any():
        due, start, end = due[above], start[above], end[above]
        again += int(np.count_nonzero((due // span - 1) * span <= end))
        levels, span = levels + 1, span * size
    return levels, again


def sum_counts(counts: pa.Table) -> pa.Table:
    """Sum the counts of all parts: the levels used and the re-insertions of each setting."""
    totals = counts.group_by(["tick_ms", "wheel_size"]).aggregate(
        [("operations", "sum"), ("levels", "max"), ("reinsertions", "sum")]
    )
    totals = totals.select(["tick_ms", "wheel_size", "operations_sum", "levels_max", "reinsertions_sum"])
    totals = totals.rename_columns(COUNTED.names)
    each = pc.divide(totals["reinsertions"].cast(pa.float64()), totals["operations"].cast(pa.float64()))
    totals = totals.append_column("reinsertions_each", each).append_column("late_ms_at_most", totals["tick_ms"])
    return totals.sort_by([("tick_ms", "ascending"), ("wheel_size", "ascending")])


def wheel_counter(ticks_ms: tuple[int, ...], sizes: tuple[int, ...]) -> PerPart:
    """Return a function that counts each setting's entries in the batches of a task."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = {(tick, size): [0, 1, 0] for tick in ticks_ms for size in sizes}
        for batch in batches:
            arrival = batch.column("arrival_us").to_numpy()
            delay_us = np.clip(pc.fill_null(batch.column("delay_ms"), 0).to_numpy(), 0, LONGEST_MS) * 1000
            wait_us = pc.fill_null(batch.column("wait_us"), _UNANSWERED).to_numpy()
            for tick in ticks_ms:
                tick_us = tick * 1000
                start, delay = -(-arrival // tick_us), -(-delay_us // tick_us)
                end = start + np.minimum(wait_us // tick_us, delay)
                for size in sizes:
                    sums = counts[tick, size]
                    levels, again = levels_and_reinsertions(start + delay, start, end, size)
                    sums[0] += len(arrival)
                    sums[1] = max(sums[1], levels)
                    sums[2] += again
        rows = [dict(zip(COUNTED.names, (*setting, *sums), strict=True)) for setting, sums in counts.items()]
        yield pa.RecordBatch.from_pylist(rows, COUNTED)

    return count
