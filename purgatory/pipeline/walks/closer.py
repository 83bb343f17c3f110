"""Kernels of the second look: exact waits and moves, where the first walk's sums say that a percentile or a peak lies.

What is looked for is of one purgatory, or of one of its types, and there may be thousands of these. So a batch's rows
are put in groups once, by their codes; each group then meets what is wanted of it. (Going over all rows for each of
them, a thousand purgatories cost as many times a batch.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.walks.kernels import GOOD, KIND, Columns, events, grouped, ones, slot, wait_bin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from purgatory.pipeline.walks.kernels import Numbers

_RADIX: Final = 2**16  # below it numpy's stable sort goes over the codes twice, however many there are


def inside(rows: Columns, window_us: int, wanted: Mapping[tuple[str, str], Numbers]) -> pa.Table:
    """How often each exact wait occurs among the answered, in the wanted pairs (window, bin) of a purgatory's type."""
    window, rounded = slot(rows.finished, window_us), wait_bin(rows.wait)
    found = []
    good = np.flatnonzero(rows.among("outcome", GOOD))
    for (purgatory, kind), here in _groups([rows[name] for name in KIND], good):
        pairs = wanted.get((purgatory, kind))
        if pairs is None:
            continue
        windows, times = np.unique(pairs[:, 0]), np.unique(pairs[:, 1])
        # A pair as one number: its places among the windows and among the bins.
        codes = np.unique(_place(windows, pairs[:, 0]) * len(times) + _place(times, pairs[:, 1]))
        w, b = _place(windows, window[here]), _place(times, rounded[here])
        known = (w >= 0) & (b >= 0)
        known[known] = _place(codes, w[known] * len(times) + b[known]) >= 0
        found.append(here[known])
    if not found:
        return _nothing(KIND, "window_us", "bin_us", "wait_us", "answered")
    all_of = np.concatenate(found)
    table = {
        **{name: column.take(pa.array(all_of)) for name, column in rows.kind.items()},
        "window_us": window[all_of],
        "bin_us": rounded[all_of],
        "wait_us": rows.wait[all_of],
        "answered": ones(all_of),
    }
    return grouped("inside", table)


def moves_inside(rows: Columns, width_us: int, into_us: int, wanted: Mapping[str, Numbers]) -> pa.Table:
    """Arrivals and departures in some slots of each purgatory (`wanted`, sorted), by shorter slots."""
    parts = [_nothing(("purgatory",), "slot_us", "arrived", "left")]
    for purgatory, at, change in events(rows):
        outer = slot(at, width_us)
        found = [np.zeros(0, np.int64)]
        for (name,), here in _groups([purgatory], np.arange(len(at))):
            if name in wanted:
                found.append(here[_place(wanted[name], outer[here]) >= 0])
        all_of = np.concatenate(found)
        came = np.full(len(all_of), change > 0, np.int64)
        table = {
            "purgatory": purgatory.take(pa.array(all_of)),
            "slot_us": slot(at[all_of], into_us),
            "arrived": came,
            "left": 1 - came,
        }
        parts.append(grouped("moves", table))
    return pa.concat_tables(parts)


def _groups(columns: Sequence[pa.Array], here: Numbers) -> Iterator[tuple[tuple[str, ...], Numbers]]:
    """The places of those rows that have the same words, in order, and the words."""
    code = np.zeros(len(here), np.int64)
    for column in columns:
        words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        code = code * max(1, len(words.dictionary)) + words.indices.to_numpy(zero_copy_only=False)[here]
    short = code.astype(np.uint16) if not len(code) or code.max() < _RADIX else code
    order = np.argsort(short, kind="stable")
    for each in np.split(here[order], np.flatnonzero(np.diff(code[order])) + 1):
        if len(each):
            yield tuple(column[int(each[0])].as_py() for column in columns), each


def _place(known: Numbers, values: Numbers) -> Numbers:
    """The place of each value among the known ones (sorted), or -1."""
    if not len(known):
        return np.full(len(values), -1, np.int64)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[place] == values, place, -1)


def _nothing(words: Sequence[str], *numbers: str) -> pa.Table:
    return pa.schema([*((n, pa.string()) for n in words), *((n, pa.int64()) for n in numbers)]).empty_table()
