"""Ranges of time, and the segments that may hold rows of one, by the statistics in their footers.

So a report about the last hour reads an hour. A record belongs to the range in which its operation left (``finished``),
a trace's row to that of its own instant (``ts``).
"""

from __future__ import annotations

from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING

import attrs

from purgatory.journal.records import JOURNAL, Schema
from purgatory.journal.records.errors import JournalDamaged, JournalError, JournalMissing
from purgatory.journal.records.folder import list_segments
from purgatory.journal.records.parquet import NO_END, opened
from purgatory.journal.records.ranges import beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

    from purgatory.journal.records.folder import Segment


@attrs.frozen
class Between:
    """From ``since`` (included) until ``until`` (excluded), in microseconds since the epoch. None means no limit."""

    since_us: int | None = None
    until_us: int | None = None

    def of_rows(self, schema: Schema) -> str:
        """The condition on the rows of a folder, as Spark's SQL."""
        at_us = f"unix_micros({'finished' if schema is JOURNAL else 'ts'})"
        bounds = [f"{at_us} >= {self.since_us}"] * (self.since_us is not None)
        bounds += [f"{at_us} < {self.until_us}"] * (self.until_us is not None)
        return " and ".join(bounds) or "true"

    def overlaps(self, first_us: int, last_us: int) -> bool:
        """Whether rows from the first to the last instant may be in the range."""
        return (self.since_us is None or last_us >= self.since_us) and (
            self.until_us is None or first_us < self.until_us
        )

    def each(
        self,
        folder: Path,
        schema: Schema,
        sealed: Callable[[Path, pq.ParquetFile], object],
        rest: Callable[[Iterable[pa.RecordBatch]], object],
        *,
        upto: int = NO_END,
        damaged: list[str] | None = None,
    ) -> None:
        """Call ``sealed`` with each Parquet file that may hold rows of the range, and ``rest`` with all other rows.

        A segment that is sealed meanwhile is taken once, under its old or its new name. So the folder is listed again
        until there is nothing new: a listing may have neither name. Two sealed segments are both taken, also if their
        rows begin with the same number, so that doubled rows show.

        Args:
            folder: a journal's, or a trace's.
            schema: which of the two it is.
            sealed: takes a file, which was checked and is open.
            rest: takes the rows of a segment of frames that no such file has.
            upto: rows after this sequence number came after the work began.
            damaged: if given, files that cannot be read are noted here and left out.

        Raises:
            JournalMissing: there is no segment.
            JournalDamaged: a segment cannot be read.
        """
        may_hold = cache(partial(self._may_hold, schema=schema))
        done: dict[int, set[int | None]] = {}
        for listing in count():
            is_complete = True
            try:
                every = list_segments(folder)
                segments = self._choose(every, may_hold)
                for segment in segments:
                    lasts = done.setdefault(segment.first, set())
                    if segment.first > upto or (lasts and (segment.is_open or lasts & {None, segment.last})):
                        continue
                    is_complete = False
                    if segment.path.suffix != ".parquet":
                        rest(beside(segment, segments, schema, upto))
                    else:
                        _take(segment.path, sealed, damaged)
                    lasts.add(segment.last)
            except FileNotFoundError:  # sealed since it was listed, or deleted
                continue
            if listing and not every:
                raise JournalMissing(folder)
            if listing and is_complete:
                return

    def _choose(self, segments: Sequence[Segment], may_hold: Callable[[Segment], bool]) -> Sequence[Segment]:
        """The segments that may hold rows of the range, and all between them, so that gaps show."""
        if self == ALL:
            return segments
        places = [place for place, segment in enumerate(segments) if may_hold(segment)]
        return segments[places[0] : places[-1] + 1] if places else []

    def _may_hold(self, segment: Segment, schema: Schema) -> bool:
        if segment.path.suffix != ".parquet":
            return True
        column = "finished" if schema is JOURNAL else "ts"
        try:
            with opened(segment.path, check=False) as file:
                place = file.metadata.schema.names.index(column)
                known = [file.metadata.row_group(n).column(place).statistics for n in range(file.num_row_groups)]
        except JournalError:
            return True  # it is read, and then the error is reported
        return any(not each or not each.has_min_max or self.overlaps(_us(each.min), _us(each.max)) for each in known)


def _take(path: Path, sealed: Callable[[Path, pq.ParquetFile], object], damaged: list[str] | None) -> None:
    try:
        with opened(path) as file:
            sealed(path, file)
    except JournalDamaged as error:
        if damaged is None:
            raise
        damaged.append(str(error))


def _us(at: datetime | int) -> int:
    return at if isinstance(at, int) else round(at.timestamp() * 1_000_000)


ALL = Between()
