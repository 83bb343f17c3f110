"""The work that a timing wheel of another tick and size would have done, in closed form: no simulation.

An entry that goes in at level L moves to a lower level each time its bucket comes due. That happens once per non-zero
digit of its due tick, in base `size`, below L. A digit that comes due after the operation was answered costs nothing::

    size 20, due at tick 8,437 = digits 1|1|1|17: in at level 3, moved to levels 2, 1, 0 if it waits that long

The computation goes level by level. At each one, the due tick, the arrival and the answer are divided by `size`. The
entry lies above this level if it is due `size` or more ahead of its arrival. It moves into this level if its digit here
is not zero, and if it was still there when its bucket above came due: then the digits of the answer above agree with
its own. Each level is a few operations on whole columns, and only the few entries above it go on. So one core counts
tens of millions of operations per second and setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.rows.validity import LONGEST_MS
from purgatory.pipeline.tables.relations import Table, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_UNANSWERED: Final = 2**60
WAITS: Final = Table("select arrival_us, delay_ms, wait_us from waits", schema("arrival_us delay_ms:int wait_us"))
COUNTED: Final = schema("tick_ms:int wheel_size operations levels:rank reinsertions")


def levels_and_reinsertions(due: Any, start: Any, end: Any, size: int) -> tuple[int, int]:
    """The levels that entries need, and how often they move to a lower level.

    Args:
        due: when each is due, in ticks.
        start: when each arrived.
        end: when each was answered, or `due`.
        size: the buckets of a wheel.
    """
    levels, again = 1, 0
    while True:
        above = due - start >= size
        if not above.any():
            return levels, again
        if not above.all():
            due, start, end = due[above], start[above], end[above]
        up, up_end = due // size, end // size
        again += int(np.count_nonzero((up == up_end) & (up * size != due)))
        due, start, end = up, start // size, up_end
        levels += 1


def summed(counts: pa.Table) -> pa.Table:
    """The sums of what `counting` gave for several parts: the levels used and the re-insertions of each setting."""
    found = counts.group_by(["tick_ms", "wheel_size"]).aggregate(
        [("operations", "sum"), ("levels", "max"), ("reinsertions", "sum")]
    )
    found = found.select(["tick_ms", "wheel_size", "operations_sum", "levels_max", "reinsertions_sum"])
    found = found.rename_columns(COUNTED.names)
    each = pc.divide(found["reinsertions"].cast(pa.float64()), found["operations"].cast(pa.float64()))
    found = found.append_column("reinsertions_each", each).append_column("late_ms_at_most", found["tick_ms"])
    return found.sort_by([("tick_ms", "ascending"), ("wheel_size", "ascending")])


def counting(
    ticks_ms: tuple[int, ...], sizes: tuple[int, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that counts each setting's entries in the batches of a task."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = {(tick, size): [0, 1, 0] for tick in ticks_ms for size in sizes}
        for batch in batches:
            arrival = batch.column("arrival_us").to_numpy()
            delay_us = np.clip(pc.fill_null(batch.column("delay_ms"), 0).to_numpy(), 0, LONGEST_MS) * 1000
            wait_us = pc.fill_null(batch.column("wait_us"), _UNANSWERED).to_numpy()
            for tick in ticks_ms:
                tick_us = tick * 1000
                start, delay = -(-arrival // tick_us), -(-delay_us // tick_us)
                end = start + np.minimum(wait_us // tick_us, delay)
                for size in sizes:
                    sums = found[tick, size]
                    levels, again = levels_and_reinsertions(start + delay, start, end, size)
                    sums[0] += len(arrival)
                    sums[1] = max(sums[1], levels)
                    sums[2] += again
        rows = [(*setting, *sums) for setting, sums in found.items()]
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), COUNTED.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, COUNTED.names)

    return count
