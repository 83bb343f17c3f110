"""Reading a folder: every row once, in sequence, from sealed and open segments, even while it is written."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from purgatory.journal.records import SCHEMAS, Record, TraceRow
from purgatory.journal.records.errors import JournalDamaged, JournalFormat
from purgatory.journal.records.folder import (
    Segment,
    batches,
    doubled,
    dropped,
    end,
    existing_segments,
    list_segments,
    tip,
)
from purgatory.journal.records.frames import scan


def read(folder: str | Path, after: int = -1, *, allow_gaps: bool = False) -> Iterator[Record | TraceRow]:
    """The rows above the sequence number ``after``, without a gap from the first that is given.

    A segment that is sealed between the listing and the reading is found under its new name. Old segments may have been
    deleted. Then the first row is the oldest that is left.

    Args:
        folder: a journal's, or a trace's.
        after: the last row that is known already.
        allow_gaps: give what is left of a folder that is damaged, and no error where rows are missing or doubled.

    Raises:
        JournalMissing: there is nothing in the folder.
        JournalDamaged: rows of a segment are missing, or cannot be read. The rows before them were yielded.
        JournalFormat: a segment is missing between two others or behind them, two of them have the same rows, or one is
            of a version that this reader doesn't know.
    """
    folder = Path(folder)
    written = end(folder).next
    segments = existing_segments(folder)
    for first, last, one, other in () if allow_gaps else doubled(segments):
        names = f"{one.path.name} and {other.path.name}"
        raise JournalFormat(f"{folder}: rows {first} to {last} are in both {names}: move one of them to another folder")
    progress, gap, due = True, None, None
    while progress:  # again after a segment vanished under us: it was sealed, and its rows are in the new file
        progress, due = False, None
        for segment in list_segments(folder):
            if due is not None and due < segment.first and not allow_gaps:
                if gap == (due, segment.first):
                    message = f"{folder}: rows {due} to {segment.first - 1} are missing, and there are later ones"
                    raise JournalFormat(message)
                progress, gap = True, (due, segment.first)  # it may have been sealed while the folder was being listed
                break
            is_wanted = segment.last is None or segment.last > after
            try:
                for row in read_segment(segment, after, allow_gaps=allow_gaps) if is_wanted else ():
                    after = row.seq
                    yield row
            except FileNotFoundError:
                progress = True
                break
            due = max(due or 0, segment.first, after + 1, 0 if segment.last is None else segment.last + 1)
    if due is not None and due < written and not allow_gaps:
        first = tip(folder, there=True)["last"] + 1
        raise JournalFormat(f"{folder}: rows {first} to {written - 1} are missing, which were the last")


def read_segment(segment: Segment, after: int = -1, *, allow_gaps: bool = False) -> Iterator[Record | TraceRow]:
    """The rows of one file above the sequence number ``after``: all that its name says, or an error.

    An open one may end in the middle of a frame: so a killed writer leaves it, or one that is just writing.

    Raises:
        JournalDamaged: rows are missing, or cannot be read. Never with ``allow_gaps``.
        JournalFormat: the file is of a version that this reader doesn't know.
    """
    if allow_gaps:
        with contextlib.suppress(JournalDamaged):
            for row in _rows(segment, after):
                if row.seq > after:
                    after = row.seq
                    yield row
        return
    due = max(after + 1, segment.first)
    for row in _rows(segment, after):
        if row.seq > due:
            raise JournalDamaged(segment.path.name, f"row {due} is not in it, and row {row.seq} is")
        if row.seq == due:
            yield row
            due += 1
    if segment.last is not None and due <= segment.last:
        raise JournalDamaged(segment.path.name, f"row {due} is not in it, its name says {segment.last} is the last")


def _rows(segment: Segment, after: int) -> Iterator[Record | TraceRow]:
    if segment.path.suffix == ".parquet":
        from purgatory.journal.records import parquet  # noqa: PLC0415

        schema = SCHEMAS[segment.path.name.partition("-")[0]]
        yield from parquet.read(segment.path, schema, after)
        return
    for batch in batches(segment.path, after):
        yield from batch.rows()


@attrs.frozen
class Verification:
    """The result of ``verify``.

    A folder is ``ok`` when nothing is missing, doubled or damaged. A torn tail is not damage: a
    killed writer leaves it, and the next start cuts it off.
    """

    rows: int
    first: int
    last: int
    segments: int
    open_segments: int
    missing: int
    doubled: int
    damaged_bytes: int
    torn_bytes: int
    damaged: tuple[str, ...] = ()
    """What is wrong with each segment that can't be read."""
    dropped: int = 0
    """Rows that the writer dropped or refused, and so never were in the folder."""

    @property
    def ok(self) -> bool:
        """Whether every row from the first to the last is there once."""
        return not (self.missing or self.doubled or self.damaged_bytes or self.damaged)


def verify(folder: str | Path) -> Verification:
    """Check the checksums and the sequence of a whole folder.

    Raises:
        JournalMissing: there is nothing in the folder.
        JournalFormat: a segment is of a version that this reader doesn't know.
    """
    folder = Path(folder)
    written = end(folder).next
    segments = existing_segments(folder)
    unreadable: list[str] = []
    rows = missing = doubled = damaged = torn = 0
    first = expected = -1
    for segment, look in _looked_at(folder, segments):
        unreadable += look.unreadable
        damaged += look.damaged_bytes
        torn += look.torn_bytes
        # An open one is begun once all before it is in others. What was deleted as we looked isn't missed.
        begins = segment.first if segment.is_open and not look.skipped else expected
        if first >= 0 and expected < begins:
            missing += begins - expected
            expected = begins
        for start, stop in look.spans:
            if first < 0 or (look.skipped and expected < start):
                expected = start
            first = start if first < 0 else first
            if stop < expected:  # the open double of a sealed segment: a reader skips it
                doubled += 0 if segment.is_open else stop - start + 1
                continue
            missing += max(0, start - expected)
            doubled += max(0, expected - start)
            rows += stop - max(start, expected) + 1
            expected = stop + 1
    missing += max(0, written - (expected if first >= 0 else segments[0].first))
    opened = sum(segment.is_open for segment in segments)
    return Verification(
        rows=rows,
        first=first,
        last=max(expected, written) - 1,
        segments=len(segments),
        open_segments=opened,
        missing=missing,
        doubled=doubled,
        damaged_bytes=damaged,
        torn_bytes=torn,
        damaged=tuple(unreadable),
        dropped=dropped(folder),
    )


@attrs.frozen
class _Look:
    """The content of a segment. ``skipped`` is True if the segments before it were deleted meanwhile."""

    spans: Sequence[tuple[int, int]] = ()
    damaged_bytes: int = 0
    torn_bytes: int = 0
    unreadable: tuple[str, ...] = ()
    skipped: bool = False


def _looked_at(folder: Path, segments: Sequence[Segment]) -> Iterator[tuple[Segment, _Look]]:
    """Each segment, and its rows. If one was sealed or deleted since it was listed, those of its successor."""
    waiting, skipped = deque(segments), False
    seen: set[Path] = set()
    while waiting:
        segment = waiting.popleft()
        seen.add(segment.path)
        try:
            look = _look(segment)
        except FileNotFoundError:
            rest = [each for each in list_segments(folder) if each.first >= segment.first]
            skipped = skipped or all(each.first > segment.first for each in rest)
            waiting = deque(each for each in rest if each.path not in seen)
            continue
        yield segment, attrs.evolve(look, skipped=skipped)
        skipped = False


def _look(segment: Segment) -> _Look:
    if segment.path.suffix == ".parquet":
        try:
            return _Look([_parquet_span(segment)])
        except JournalDamaged as error:
            return _Look(unreadable=(str(error),))
    spans, damaged, tail = _frame_spans(segment.path.read_bytes())
    return _Look(spans, damaged, tail) if segment.is_open else _Look(spans, damaged + tail)


def _parquet_span(segment: Segment) -> tuple[int, int]:
    from purgatory.journal.records import parquet  # noqa: PLC0415

    assert segment.last is not None
    with parquet.opened(segment.path) as file:
        for batch in parquet.in_groups(file, range(file.num_row_groups)):  # every column, so every page's checksum
            del batch
        sequence = file.read(columns=["seq"]).column("seq")
    expected = segment.last - segment.first + 1
    if len(sequence) != expected or sequence[0].as_py() != segment.first or sequence[-1].as_py() != segment.last:
        raise JournalDamaged(segment.path.name, f"it holds {len(sequence)} rows, its name says {expected}")
    return segment.first, segment.last


def _frame_spans(data: bytes) -> tuple[list[tuple[int, int]], int, int]:
    """Spans of sequence numbers, bytes damaged between frames, bytes after the last whole frame."""
    spans, damaged, end = [], 0, 0
    for frame in scan(data):
        damaged += frame.start - end
        spans.append((frame.first, frame.last))
        end = frame.end
    return spans, damaged, len(data) - end
