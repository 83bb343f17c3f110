"""Rows by their sequence numbers, from whatever files hold them, as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from purgatory.journal.records.folder import batches, existing_segments, list_segments
from purgatory.journal.records.parquet import BATCH, grouped, read_arrow, to_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from purgatory.journal.records import Schema
    from purgatory.journal.records.folder import Segment


def read_range(folder: Path, schema: Schema, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    """The rows with sequence numbers above ``after`` up to ``upto``, each once, whatever file they are in by now.

    Raises:
        JournalMissing: there is no segment: on a cluster, this worker does not see the folder.
        JournalDamaged: a segment cannot be read.
    """
    listed = existing_segments(folder)
    while listed:
        for segment in listed:
            if segment.first > upto or (segment.last is not None and segment.last <= after):
                continue
            try:
                for seen, part in _segment_range(segment, schema, after, upto):
                    after = seen
                    yield part
            except FileNotFoundError:  # it was sealed (its rows are in a new file) or deleted
                listed = list_segments(folder)
                break
        else:
            return


def beside(segment: Segment, segments: Iterable[Segment], schema: Schema, upto: int) -> Iterator[pa.RecordBatch]:
    """The rows of a segment of frames that no Parquet file among some segments has, up to a sequence number."""
    sealed = [each.last or 0 for each in segments if each.path.suffix == ".parquet" and each.first <= segment.first]
    return (part for _, part in _segment_range(segment, schema, max(sealed, default=-1), upto))


def _segment_range(segment: Segment, schema: Schema, after: int, upto: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The part of the range that lies in one segment, each batch with the last sequence number that it settles."""
    if segment.path.suffix == ".parquet":
        parts = read_arrow(segment.path, schema, after, upto)
    else:
        # A writer with little to do makes a frame of each few rows, and each batch has a cost, however small it is: a
        # report on 2,900 records in 534 frames took five times as long.
        tables = grouped(map(to_arrow, batches(segment.path, after)), BATCH)
        parts = (table.combine_chunks().to_batches()[0] for table in tables)
    for part in parts:
        sequence = part.column("seq")
        first, last = sequence[0].as_py(), sequence[-1].as_py()
        if last <= after or first > upto:
            continue
        if first <= after or last > upto:
            part = part.filter(pc.and_(pc.greater(sequence, after), pc.less_equal(sequence, upto)))  # noqa: PLW2901
        after = min(last, upto)
        yield after, part
