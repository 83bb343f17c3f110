"""A journal's folder: the names of its files, and which of them a reader should read.

    .lock                                 held by the one writer
    .open-<first>.frames                  being written; the dot hides it from Spark and from globs
    _journal-<first>-<last>.frames        sealed where pyarrow is missing (the underscore hides it from Spark)
    journal-<first>-<last>.parquet        sealed
    .end                                  the next sequence number, as JSON: written at each sealing and at the end

``<first>`` and ``<last>`` are sequence numbers. So a name says which rows a file holds, and sealing a segment twice
gives the same file. A reader that sees a segment both open and sealed (after a crash between the last two steps) drops
the doubles. The files of a trace begin with ``trace``.

The newest segment has no successor whose name would show that it is missing. The ``.end`` file shows that.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import attrs

from purgatory.journal.records import TRACE
from purgatory.journal.records.errors import JournalFormat, JournalMissing
from purgatory.journal.records.frames import Batch, decode, scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from purgatory.journal.records import Schema

_OPEN: Final = re.compile(r"\.open-(\d{20})\.frames")
SEALED: Final = re.compile(r"_?(journal|trace)-(\d{20})-(\d{20})\.(parquet|frames)")

DROPPED: Final = "purgatory.dropped"
"""The entry in a sealed Parquet file's metadata that says how many rows were dropped before or between its rows."""
_DROPPED: Final = re.compile(DROPPED.encode() + rb"\x18.([0-9]+)", re.DOTALL)
AT_END: Final = 1 << 16
"""How far from a file's end its metadata is looked for. At most some kilobytes follow it."""


@attrs.frozen(order=True)
class Segment:
    """One file of the folder. ``last`` is unknown while it is open."""

    first: int
    last: int | None
    path: Path = attrs.field(order=False)

    @property
    def is_open(self) -> bool:
        """Whether it may still grow."""
        return self.last is None


END: Final = ".end"
"""The file in which a writer records the end of the folder (``end``)."""


@attrs.frozen
class End:
    """All rows below ``next`` are there. If none follows, ``dropped`` rows were dropped since the last one."""

    next: int = 0
    dropped: int = 0


def end(folder: Path) -> End:
    """The end of the folder, as its writer recorded it. Read it before the folder is listed.

    Folders of earlier versions have no such file. A file that is incomplete or cannot be read counts as missing.
    """
    try:
        told = json.loads((folder / END).read_bytes())
        numbers = told["next"], told["dropped"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return End()
    return End(*numbers) if all(type(number) is int and 0 <= number < 2**62 for number in numbers) else End()


def open_name(first: int) -> str:
    """The name of a segment being written."""
    return f".open-{first:020d}.frames"


def sealed_name(schema: Schema, first: int, last: int, *, parquet: bool) -> str:
    """The name of a segment that is complete."""
    name = f"{schema.name}-{first:020d}-{last:020d}"
    return f"{name}.parquet" if parquet else f"_{name}.frames"


def segment_of(path: Path) -> Segment | None:
    """The segment that a file's name describes, or None if it is not the name of a segment."""
    if match := SEALED.fullmatch(path.name):
        return Segment(int(match[2]), int(match[3]), path)
    match = _OPEN.fullmatch(path.name)
    return Segment(int(match[1]), None, path) if match else None


def list_segments(folder: Path) -> list[Segment]:
    """All files that a reader should read, in sequence. Of a segment sealed in both forms, the Parquet file."""
    paths = folder.iterdir() if folder.is_dir() else ()
    segments = [segment for path in paths if (segment := segment_of(path)) and path.is_file()]  # no broken link
    segments.sort(key=lambda s: (s.first, s.is_open, -(s.last or 0), _rows_named(s), s.path.suffix != ".parquet"))
    return [next(same) for _, same in groupby(segments, _rows_named)]


def existing_segments(folder: Path) -> list[Segment]:
    """The same.

    Raises:
        JournalMissing: there is none.
    """
    segments = list_segments(folder)
    if not segments:
        raise JournalMissing(folder)
    return segments


def _rows_named(segment: Segment) -> str:
    """The part of the name that both forms of a sealed segment have: the kind and the numbers."""
    return segment.path.stem.lstrip("_")


def doubled(segments: Iterable[Segment]) -> Iterator[tuple[int, int, Segment, Segment]]:
    """The numbers that two sealed segments both have, by their names: the first, the last and the two segments.

    No writer leaves such a folder. Somebody has put the files of two writers into it.

    Args:
        segments: in the order of ``list_segments``.
    """
    longest: Segment | None = None
    for each in segments:
        if each.last is None:
            continue
        if longest is None or longest.last is None or each.first > longest.last:
            longest = each
            continue
        yield each.first, min(each.last, longest.last), longest, each
        longest = max(longest, each, key=lambda s: s.last or 0)


def batches(path: Path, after: int = -1) -> Iterator[Batch]:
    """The frames of a file whose rows are not all at or below the sequence number ``after``."""
    data = path.read_bytes()
    for frame in scan(data):
        if frame.last > after:
            yield decode(data, frame)


def dropped(folder: Path) -> int:
    """How many rows the writer dropped or refused between those that are there, and after them: these have no numbers.

    Its frames say so, and sealed files among their metadata, which is looked for as bytes: nothing is interpreted.
    """
    while True:
        ended = end(folder)
        segments = list_segments(folder)
        sealed = {segment.first for segment in segments if not segment.is_open}
        try:
            drops = [_dropped_in(each) for each in segments if not (each.is_open and each.first in sealed)]
        except FileNotFoundError:  # sealed since it was listed
            continue
        last = max((upto for _, upto in drops), default=-1)
        return sum(count for count, _ in drops) + (ended.dropped if last < ended.next else 0)


def _dropped_in(segment: Segment) -> tuple[int, int]:
    """How many rows were dropped before or between those of a segment, and the number of its last one."""
    if segment.path.suffix != ".parquet":
        count, last = 0, segment.first - 1
        for batch in batches(segment.path):
            count, last = count + batch.dropped, batch.last
        return count, last
    assert segment.last is not None
    with segment.path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - AT_END))
        match = _DROPPED.search(file.read())
    return int(match[1]) if match else 0, segment.last


def folders_in(folder: Path) -> list[Path]:
    """The subfolders, by name, without hidden ones."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def journals_in(folder: Path) -> list[Path]:
    """The folder itself if it holds segments, else the journals (not the traces) in its subfolders, by name.

    The folder itself if there is neither, so that a reader reports it as missing.

    Raises:
        JournalFormat: an open segment in a subfolder is of a version that this reader does not know.
    """
    if list_segments(folder) or not folder.is_dir():
        return [folder]
    return [each for each in folders_in(folder) if list_segments(each) and not is_trace(each)] or [folder]


def is_trace(folder: Path) -> bool:
    """Whether all segments in a folder are those of a trace. An open one without a row may be of either kind."""
    return _kinds(list_segments(folder)) == {TRACE.name}


def _kinds(segments: Iterable[Segment]) -> set[str]:
    kinds = set()
    for segment in segments:
        if not segment.is_open:
            kinds.add(segment.path.name.lstrip("_").partition("-")[0])
            continue
        with suppress(FileNotFoundError):  # sealed since it was listed
            kinds |= {batch.schema.name for batch in islice(batches(segment.path), 1)}
    return kinds


def check_kind(folder: Path, schema: Schema) -> None:
    """Reject a folder of the other kind.

    Raises:
        JournalMissing: there is no segment in it.
        JournalFormat: it holds the other kind.
    """
    for kind in _kinds(existing_segments(folder)) - {schema.name}:
        raise JournalFormat(f"{folder} holds a {kind}, not a {schema.name}: give each its own folder")


def tip(folder: Path, *, there: bool = False) -> dict[str, int]:
    """The first and the last number that were written, by names of segments, open frames and the ``.end`` file.

    An open segment is started once all rows before its number are in others. So these must exist, even if it is empty.

    Args:
        folder: a journal's, or a trace's.
        there: the last number is that of the segments that exist, whatever the ``.end`` file says.
    """
    while True:
        written = -1 if there else end(folder).next - 1
        segments = existing_segments(folder)
        try:
            return {"first": segments[0].first, "last": max(written, *map(_last_of, segments))}
        except FileNotFoundError:  # sealed since it was listed
            continue


def _last_of(segment: Segment) -> int:
    if segment.last is not None:
        return segment.last
    return max((frame.last for frame in scan(segment.path.read_bytes())), default=segment.first - 1)
