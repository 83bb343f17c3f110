"""Completeness: the sequence numbers that were read, compared with those that should be there.

A journal numbers its rows without gaps. So a lost or damaged segment, or old rows that were deleted while they were
read, leave a gap in the numbers. Each reader notes the numbers that it has seen as runs. Together they must be one run
from the first number of the journal to its last number when the work began::

    journal 0..299       readers saw 0..99, 100..149, 200..299      missing: 150..199

A number that was seen twice is as wrong as one that is missing.

Runs are few because each reader reads in order. The cost is one subtraction and one comparison per batch of rows.

Spark's own reader knows files and not sequence numbers. So ``load.runs_of`` reads that column once, before anything is
computed from the rows.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np

from purgatory.journal.records import TRACE
from purgatory.journal.records.errors import JournalFormat, JournalMissing, reduced
from purgatory.journal.records.folder import check_kind, doubled, end, list_segments
from purgatory.journal.records.parquet import opened
from purgatory.pipeline._rows.validity import DataError
from purgatory.pipeline._spark.places import is_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

_MOST_NAMED: Final = 5


@attrs.frozen(order=True)
class Run:
    """Sequence numbers without a gap, of one of the journals."""

    journal: str
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@attrs.frozen
class Gap:
    """Rows that were not read, or were read more than once, and where they should be."""

    journal: str
    first: int
    last: int
    where: str
    doubled: bool = False

    def __str__(self) -> str:
        what = "read twice" if self.doubled else "missing"
        return f"{self.last - self.first + 1:,} rows {what}, {self.first:,} to {self.last:,}: {self.where}"


class IncompleteJournal(DataError):
    """Not all rows of a journal could be read."""

    __reduce__ = reduced

    def __init__(self, gaps: Sequence[Gap], damaged: Sequence[str] = ()) -> None:
        named = [*damaged, *map(str, gaps)]
        more = f" (and {len(named) - _MOST_NAMED} more)" if len(named) > _MOST_NAMED else ""
        where = sorted({gap.journal for gap in gaps})
        super().__init__(
            f"not all of {', '.join(where) or 'the journal'} could be read: {'; '.join(named[:_MOST_NAMED])}{more}. "
            "pass --allow-gaps to use the rest and list what is missing"
        )
        self.gaps = tuple(gaps)
        self.damaged = tuple(damaged)


def noting_runs(batches: Iterable[pa.RecordBatch], journal: str, runs: list[Run]) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and add their sequence numbers to the runs."""
    for batch in batches:
        seq = batch.column("seq").to_numpy(zero_copy_only=False)
        for part in np.split(seq, np.flatnonzero(np.diff(seq) != 1) + 1) if len(seq) else ():
            first = int(part[0])
            if runs and (runs[-1].journal, runs[-1].last + 1) == (journal, first):
                first = runs.pop().first
            runs.append(Run(journal, first, int(part[-1])))
        yield batch


def runs_in(batches: Iterable[pa.RecordBatch], journal: str) -> list[Run]:
    """Collect the runs of all sequence numbers in some batches."""
    runs: list[Run] = []
    for _ in noting_runs(batches, journal, runs):
        pass
    return runs


def gaps_in(expected: Sequence[Run], runs: Iterable[Run]) -> list[Gap]:
    """Find what was not read of the expected runs, or was read twice."""
    gaps = []
    ordered = sorted(runs)
    for each in expected:
        name, after = each.journal, each.first - 1
        for run in ordered:
            if run.journal != name:
                continue
            if run.first > after + 1:
                gaps.append(_gap(name, after + 1, run.first - 1))
            if run.first <= after:
                gaps.append(_gap(name, run.first, min(run.last, after), doubled=True))
            after = max(after, run.last)
        if after < each.last:
            gaps.append(_gap(name, after + 1, each.last))
    return gaps


def doubled_in(folder: Path) -> list[Gap]:
    """The rows that two sealed segments of a folder have, by their names. ``read_range`` reads only one of the two."""
    return [_gap(str(folder), first, last, doubled=True) for first, last, *_ in doubled(list_segments(folder))]


def _gap(journal: str, first: int, last: int, *, doubled: bool = False) -> Gap:
    where = f"in {journal}"
    if is_folder(journal):
        segments = [s for s in list_segments(Path(journal)) if s.first <= last and (s.last is None or s.last >= first)]
        names = [segment.path.name for segment in segments]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        where = f"in {', '.join(names[:2])}{more}" if names else "no segment has them"
    return Gap(journal, first, last, where, doubled)


def describe_gaps(gaps: Sequence[Gap], damaged: Iterable[str]) -> list[str]:
    """Describe each damaged segment with its missing rows, and each other gap, in one line."""
    rest, lines = list(gaps), []
    for text in damaged:
        mine = [gap for gap in rest if text.startswith(f"{gap.where.removeprefix('in ')} ")]
        rest = [gap for gap in rest if gap not in mine]
        rows = "; ".join(f"{gap.last - gap.first + 1:,} rows, {gap.first:,} to {gap.last:,}" for gap in mine)
        lines.append(f"{text} ({rows})" if mine else text)
    return [*lines, *map(str, rest)]


def spans_by_journal(runs: Sequence[Run]) -> list[Run]:
    """From the first number to the last that was read of each journal. For a range of time, the numbers in between."""
    spans: dict[str, Run] = {}
    for run in runs:
        span = spans.get(run.journal, run)
        spans[run.journal] = Run(run.journal, min(span.first, run.first), max(span.last, run.last))
    return list(spans.values())


def check_streamable(folder: Path, *, allow_gaps: bool = False) -> None:
    """Check the names and versions of a trace's files, which a stream reads one by one.

    Raises:
        IncompleteJournal: a segment is missing between two others, and gaps aren't allowed.
        JournalFormat: it holds a journal, or a segment that was sealed without pyarrow or is of another version.
    """
    with suppress(JournalMissing):  # nothing has been written yet
        check_kind(folder, TRACE)
    gaps = _missing_between(folder)
    if gaps and not allow_gaps:
        raise IncompleteJournal(gaps)
    for segment in list_segments(folder):
        if segment.is_open:
            continue
        if segment.path.suffix != ".parquet":
            raise JournalFormat(
                f"{segment.path.name} is not Parquet, so a stream cannot read it: "
                f"install pyarrow and run `purgatory journal seal {folder}`"
            )
        with opened(segment.path, check=False):
            pass


def _missing_between(folder: Path) -> list[Gap]:
    written = end(folder).next - 1
    segments = list_segments(folder)
    name = str(folder)
    runs = [Run(name, each.first, each.last) for each in segments if each.last is not None and each.last >= each.first]
    if not runs:
        return []
    # An open segment is begun once all before it was in others.
    begun = min((each.first - 1 for each in segments if each.is_open), default=written)
    whole = Run(name, runs[0].first, max(begun, *(run.last for run in runs)))
    return [gap for gap in gaps_in([whole], runs) if not gap.doubled]
