"""A small table's rows by group and in order."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    Numbers: TypeAlias = npt.NDArray[np.int64]

Row: TypeAlias = dict[str, Any]


def rows_by(rows: Iterable[Row], *by: str) -> dict[Any, list[Row]]:
    """The rows by their values in some columns (one value, or a tuple of several), in order of first appearance."""
    by_value: dict[Any, list[Row]] = {}
    key = itemgetter(*by)
    for row in rows:
        by_value.setdefault(key(row), []).append(row)
    return by_value


def groups(table: pa.Table, by: Sequence[str], *order: str) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each group, in order."""
    if not len(table):
        return
    table = table.sort_by([(name, "ascending") for name in (*by, *order)]).combine_chunks()
    changes = np.zeros(len(table) - 1, bool)
    for name in by:
        encoded = table.column(name).combine_chunks().dictionary_encode().indices.to_numpy()
        changes |= encoded[1:] != encoded[:-1]
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(table)]
    for start, end in pairwise(starts):
        yield tuple(table.column(name)[start].as_py() for name in by), table.slice(start, end - start)


def numbers(table: pa.Table, name: str) -> Numbers:
    """A column of whole numbers."""
    values: Numbers = table.column(name).to_numpy()
    return values
