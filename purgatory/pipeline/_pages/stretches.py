"""Where expiries are concentrated: on which key, and in which stretch of time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from purgatory.pipeline._pages.tables import Tables
    from purgatory.pipeline._summaries.groups import Row

MANY: Final = 0.5
_SPECIAL: Final = 2.0  # times the rate of the others at which a key's expiries are its own


def special_key(operations: int, expired: int, expiries: list[Row]) -> Row | None:
    """The key under which most of them expired, if that isn't just because most of them are under it.

    Where each operation has several keys, or all are under one, there is always a key with half of the expiries. What
    makes it a finding is that its operations expire more often than the others do.
    """
    key = max((row for row in expiries if row["key"] is not None), key=lambda row: int(row["of_key"]), default=None)
    if key is None or key["of_key"] / expired < MANY:
        return None
    others, of_others = operations - key["operations"], max(0, expired - key["of_key"])
    if others <= 0 or key["of_key"] / key["operations"] < _SPECIAL * of_others / others:
        return None
    return key


def when(tables: Tables, at: tuple[int, int] | None) -> str:
    """A stretch of time, to follow a sentence."""
    if at is None:
        return ""
    return f", most of them between {tables.clock(at[0])} and {tables.clock(at[1])}"


def stretch(tables: Tables, rows: list[Row]) -> tuple[int, int] | None:
    """The shortest stretch of windows with most of the expiries, if it is a small part of the whole."""
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        counts[row["window_us"]] += row["expired"]
    windows = sorted(counts)
    wanted = 0.8 * sum(counts.values())
    best: tuple[int, int] | None = None
    start, held = 0, 0
    for window in windows:
        held += counts[window]
        while start < len(windows) - 1 and held - counts[windows[start]] >= wanted:
            held -= counts[windows[start]]
            start += 1
        if held >= wanted and (best is None or window - windows[start] < best[1] - best[0]):
            best = (windows[start], window)
    if best is None or best[1] + tables.window_us - best[0] > tables.span_us / 2:
        return None
    return best[0], best[1] + tables.window_us
