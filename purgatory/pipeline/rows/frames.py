"""Rows of segments that are not Parquet: open ones, and those that were sealed without pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.journal.records.folder import Segment, batches
from purgatory.journal.records.parquet import to_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

_NO_END = 2**62


def beside(segment: Segment, segments: Sequence[Segment], upto: int = _NO_END) -> Iterator[pa.RecordBatch]:
    """The rows of a segment of frames that no sealed one has already, up to a sequence number."""
    sealed = [each for each in segments if each.path.suffix == ".parquet" and each.first <= segment.first]
    last = max((each.last for each in sealed if each.last is not None), default=-1)
    for batch in batches(segment.path, last):
        rows = to_arrow(batch).slice(max(0, last + 1 - batch.first))
        if batch.last > upto:
            rows = rows.slice(0, max(0, len(rows) - (batch.last - upto)))
        if len(rows):
            yield rows
