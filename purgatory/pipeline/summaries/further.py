"""The report's further tables: what waits were like over time, late expiries, examples, errors, instances."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.walks.grouped import dated, groups, numbers

BANDS_US: Final = tuple(step * 10**power for power in range(2, 11) for step in (1, 2, 5))
"""Where a band of waits ends: three to a power of ten, from 0.1 ms to some hours. The last has no end."""
LATENESS: Final = pa.schema(
    [
        *(("window_us", pa.int64()), ("purgatory", pa.string()), ("type", pa.string()), ("expired", pa.int64())),
        *(("p50_ms", pa.float64()), ("p99_ms", pa.float64()), ("max_ms", pa.float64())),
    ]
)


def bands(bins: pa.Table) -> pa.Table:
    """Answered operations by window, purgatory, type and band of wait: more than the band before, up to `upto_us`."""
    places = np.searchsorted(np.array(BANDS_US), numbers(bins, "bin_us"), side="left")
    ends = np.array([*BANDS_US, -1])[places]
    table = pa.table({**{name: bins[name] for name in ("window_us", "purgatory", "type")}, "upto_us": ends})
    table = table.append_column("answered", bins["answered"])
    by = ["window_us", "purgatory", "type", "upto_us"]
    found = table.group_by(by, use_threads=False).aggregate([("answered", "sum")]).rename_columns([*by, "answered"])
    return dated(found.sort_by([(name, "ascending") for name in by]), "window")


def lateness(bins: pa.Table) -> pa.Table:
    """How long after their deadline expired operations left, by window, purgatory and type.

    `p50_ms` and `p99_ms` are the ends of bins, so rounded up: to the microsecond up to a millisecond, then to
    milliseconds. `max_ms` is exact.
    """
    found = []
    for (purgatory, kind, window), rows in groups(bins, ("purgatory", "type", "window_us"), "late_us"):
        upto, late = np.cumsum(numbers(rows, "expired")), numbers(rows, "late_us")
        row = {"window_us": window, "purgatory": purgatory, "type": kind, "expired": int(upto[-1])}
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
            row[name] = int(late[np.searchsorted(upto, share * upto[-1], side="left")]) / 1000
        found.append({**row, "max_ms": int(numbers(rows, "latest_us").max()) / 1000})
    return dated(pa.Table.from_pylist(found, LATENESS), "window")


def slowest(rows: pa.Table) -> pa.Table:
    """The answered operations of each purgatory and type that waited longest."""
    if not len(rows):
        return rows
    parts = []
    for _, mine in groups(rows, ("purgatory", "type"), "order", "finished", "instance", "seq"):
        rank = pa.array(range(1, len(mine) + 1), pa.int32())
        parts.append(mine.drop_columns("order").append_column("rank", rank))
    return pa.concat_tables(parts)


def raised(rows: pa.Table) -> pa.Table:
    """What hooks raised, the most frequent first."""
    if not len(rows):
        return rows
    order = [("times", "descending"), ("purgatory", "ascending"), ("type", "ascending"), ("error", "ascending")]
    found = rows.sort_by(order)
    return found.append_column("rank", pa.array(range(1, len(found) + 1), pa.int32()))


def instances(rows: pa.Table) -> pa.Table:
    """Operations of each instance by purgatory and type, with the share that expired and the mean wait."""
    if not len(rows):
        return rows
    operations = rows["operations"].cast(pa.float64())
    found = rows.append_column("expiry_share", pc.divide(rows["expired"].cast(pa.float64()), operations))
    return found.append_column(
        "mean_ms", pc.divide(pc.divide(rows["waited_us"].cast(pa.float64()), operations), 1000.0)
    )
