"""How many operations were parked, over time: sums of +1 and -1, never a join of intervals.

Each operation is an arrival and a departure. Summed by slot (`kernels.slots`), a running sum over *slots*
gives the level at each slot's end, and the time-weighted mean follows from the same sums: in a slot that
ends at E, an arrival at t adds E - t, a departure takes E - t away, and what was there at the start adds
the whole slot. ::

    slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9:   area = 2*10 + (10-4) - (10-9) =
    25, mean 2.5

Slots in which nothing happened have no row; they are filled in between with the level before them. So the
area under the curve is exactly the sum of all waits, which is checked. (The exact peak: `exact`.)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.walks.grouped import dated, groups, numbers, texts

_MAX_FILL: Final = 1_000_000
_LAYOUT: Final = pa.schema(
    [
        *(("purgatory", pa.string()), ("slot_us", pa.int64()), ("close", pa.int64()), ("mean", pa.float64())),
        *(("arrived", pa.int64()), ("left", pa.int64()), ("area_us", pa.int64())),
    ]
)


def occupancy(slots: pa.Table, width_us: int) -> pa.Table:
    """Per purgatory and slot: the level at its end (`close`), its time-weighted mean, arrivals and departures."""
    parts = [_LAYOUT.empty_table()]
    for name, rows in groups(slots, ["purgatory"], "slot_us"):
        columns = _filled(rows, width_us)
        (names,) = texts(name, len(columns[0]))
        parts.append(pa.table([names, *columns], schema=_LAYOUT))
    return dated(pa.concat_tables(parts), "slot")


def with_means(peaks: pa.Table, occupancy: pa.Table) -> pa.Table:
    """The peaks, each with the mean of its purgatory's slots beside it."""
    means = occupancy.group_by("purgatory", use_threads=False).aggregate([("mean", "mean")])
    mean = dict(zip(means["purgatory"].to_pylist(), means["mean_mean"].to_pylist(), strict=True))
    return peaks.append_column("mean", pa.array([mean[name] for name in peaks["purgatory"].to_pylist()], pa.float64()))


def highest(peaks: pa.Table, most: int) -> list[str]:
    """The purgatories with the highest peaks."""
    ranked = peaks.sort_by([("peak", "descending"), ("purgatory", "ascending")])
    return [str(name) for name in ranked["purgatory"].slice(0, most).to_pylist()]


def _filled(rows: pa.Table, width_us: int) -> list[Any]:
    """The columns of one purgatory, with those slots in which nothing happened."""
    begin, arrived, left = (numbers(rows, column) for column in ("slot_us", "arrived", "left"))
    net = arrived - left
    close = np.cumsum(net)
    area = (close - net) * width_us + numbers(rows, "moved_us")
    # Each slot makes as many rows as there are slots up to the next that has a row: its own first, then empty ones.
    count = np.minimum(np.diff(begin, append=begin[-1] + width_us) // width_us, _MAX_FILL)
    source = np.repeat(np.arange(len(count)), count)
    after = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    own = after == 0
    level = close[source]
    whole = np.where(own, area[source], level * width_us)
    moved = [np.where(own, each[source], 0) for each in (arrived, left)]
    return [begin[source] + after * width_us, level, whole / width_us, *moved, whole]
