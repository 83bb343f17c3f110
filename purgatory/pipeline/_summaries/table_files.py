"""Write tables as Parquet, and prepare their rows for the page."""

from __future__ import annotations

import shutil
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from purgatory.pipeline._summaries.groups import Row

_ORDER: Final = ("purgatory", "type", "window_us", "slot_us", "wait_ms", "upto_us", "target", "rank", "instance", "seq")
#: Characters of a name on the page at most. The label of a key has 120.
LONGEST: Final = 160


def highest_peaks(peaks: pa.Table, most: int) -> list[str]:
    """The purgatories with the highest peaks."""
    ranked = peaks.sort_by([("peak", "descending"), ("purgatory", "ascending")])
    return [str(name) for name in ranked["purgatory"].slice(0, most).to_pylist()]


def write_table(folder: Path, table: pa.Table, drawn: Collection[str] | None = None) -> list[Row]:
    """Write a table as Parquet. Return its rows for the page: all, or those of the purgatories that are drawn."""
    order = [(name, "ascending") for name in _ORDER if name in table.column_names]
    table = table.sort_by(order) if order else table
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet", compression="zstd")
    if drawn is not None:
        table = table.filter(pc.is_in(table["purgatory"], value_set=pa.array(drawn, pa.string())))
    return rows_of(table)


def rows_of(table: pa.Table) -> list[Row]:
    """A table's rows for the page, with no text longer than ``LONGEST``."""
    rows: list[Row] = table.to_pylist()
    for field in table.schema:
        if pa.types.is_string(field.type):
            for row in rows:
                row[field.name] = row[field.name] and shorten(row[field.name])
        elif pa.types.is_list(field.type):
            for row in rows:
                row[field.name] = row[field.name] and [text and shorten(text) for text in row[field.name]]
    return rows


def shorten(text: str) -> str:
    """Cut a text that is too long for a page. A hash of the whole text keeps different texts different."""
    if len(text) <= LONGEST:
        return text
    whole = blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: LONGEST - 1 - len(whole)]}…{whole}"
