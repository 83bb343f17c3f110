"""Whether all of a journal was read: its sequence numbers against those that should be there.

A journal numbers its rows without gaps, so what is missing shows: a segment that was lost or is damaged, a worker
that doesn't see the folder, old rows that were deleted while they were read. Each task says which numbers it has seen,
as runs; put together they must be one run from the journal's first number to its last when the work began. ::

    journal 0..299       tasks saw 0..99, 100..149, 200..299      missing: 150..199

A number that was seen twice is as wrong as one that is missing.

Runs are few (a task reads in order), so this costs a subtraction and a comparison for each batch of rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
import pyarrow as pa

from purgatory.journal.records.folder import list_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_NAMED: Final = 5


@attrs.frozen(order=True)
class Run:
    """Sequence numbers without a gap, of one of the journals (by its place among them)."""

    journal: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@attrs.frozen
class Gap:
    """Rows that should have been read and weren't (or were read more than once), and where they should be."""

    journal: str
    first: int
    last: int
    where: str
    doubled: bool = False

    def __str__(self) -> str:
        what = "read twice" if self.doubled else "missing"
        return f"{self.last - self.first + 1:,} rows {what}, {self.first:,} to {self.last:,}: {self.where}"


class IncompleteJournal(ValueError):
    """Not all rows of a journal could be read."""

    def __init__(self, gaps: Sequence[Gap], damaged: Sequence[str] = ()) -> None:
        named = [*damaged, *map(str, gaps)]
        more = f" (and {len(named) - _MOST_NAMED} more)" if len(named) > _MOST_NAMED else ""
        where = sorted({gap.journal for gap in gaps})
        super().__init__(
            f"not all of {', '.join(where) or 'the journal'} could be read: {'; '.join(named[:_MOST_NAMED])}{more}. "
            "--allow-gaps reports on the rest and says what is missing"
        )
        self.gaps = tuple(gaps)
        self.damaged = tuple(damaged)


def told(damaged: Sequence[str], gaps: Sequence[Gap]) -> tuple[str, ...]:
    """What could not be read, each once: a damaged segment together with the rows that are missing for it."""
    rest, lines = list(gaps), []
    for text in damaged:
        mine = [gap for gap in rest if text.startswith(f"{gap.where.removeprefix('in ')} ")]
        rest = [gap for gap in rest if gap not in mine]
        rows = "; ".join(f"{gap.last - gap.first + 1:,} rows, {gap.first:,} to {gap.last:,}" for gap in mine)
        lines.append(f"{text} ({rows})" if mine else text)
    return (*lines, *map(str, rest))


def noted(batches: Iterable[pa.RecordBatch], journal: int, runs: list[Run]) -> Iterator[pa.RecordBatch]:
    """The same batches; which sequence numbers went by is added to the runs."""
    for batch in batches:
        seq = batch.column("seq").to_numpy(zero_copy_only=False)
        if len(seq):
            ends = np.append(np.flatnonzero(np.diff(seq) != 1), len(seq) - 1)
            first = 0
            for end in ends.tolist():
                _add(runs, Run(journal, int(seq[first]), int(seq[end])))
                first = end + 1
        yield batch


def _add(runs: list[Run], run: Run) -> None:
    before = runs[-1] if runs else None
    if before is not None and (before.journal, before.last + 1) == (run.journal, run.first):
        runs[-1] = Run(run.journal, before.first, run.last)
    else:
        runs.append(run)


def as_table(runs: Sequence[Run]) -> pa.Table:
    """Runs on their way from a task."""
    columns = {
        name: pa.array([getattr(run, name) for run in runs], pa.int64()) for name in ("journal", "first", "last")
    }
    return pa.table(columns)


def of_table(table: pa.Table) -> list[Run]:
    """What `as_table` made."""
    return [Run(**row) for row in table.to_pylist()]


def gaps(expected: Sequence[Run], runs: Iterable[Run], journals: Sequence[str]) -> list[Gap]:
    """What of the expected runs was not read, or more than once."""
    found = []
    ordered = sorted(runs)
    for each in expected:
        name, after = journals[each.journal], each.first - 1
        for run in ordered:
            if run.journal != each.journal:
                continue
            if run.first > after + 1:
                found.append(_gap(name, after + 1, run.first - 1))
            if run.first <= after:
                found.append(_gap(name, run.first, min(run.last, after), doubled=True))
            after = max(after, run.last)
        if after < each.last:
            found.append(_gap(name, after + 1, each.last))
    return found


def _gap(journal: str, first: int, last: int, *, doubled: bool = False) -> Gap:
    where = f"in {journal}"
    if "://" not in journal:
        segments = [s for s in list_segments(Path(journal)) if s.first <= last and (s.last is None or s.last >= first)]
        names = [segment.path.name for segment in segments]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        where = f"in {', '.join(names[:2])}{more}" if names else "no segment has them"
    return Gap(journal, first, last, where, doubled)
