"""Where a summary's records come from: a folder, a file, or lines of JSON."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from purgatory.journal._reader import read, read_segment
from purgatory.journal.records import Record, TraceRow
from purgatory.journal.records.errors import JournalFormat, JournalMissing
from purgatory.journal.records.folder import doubled, dropped, journals_in, list_segments, segment_of, tip
from purgatory.journal.summary.figures import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from purgatory.journal.records.normal import Normal
    from purgatory.journal.summary.figures import Summary

_NAMES: Final = frozenset(field.name for field in attrs.fields(Record))


def summarize_source(
    source: str | Path,
    *,
    top: int = 10,
    allow_gaps: bool = False,
    normal: Normal | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> Summary:
    """Summarize the records that ``records_of`` reads. For a folder, also count missing, doubled and dropped records.

    Args:
        source: a folder, a file, or ``-``.
        top: how many keys are named.
        allow_gaps: summarize the rest of a damaged journal.
        normal: which expiries and cancellations are good ends, instead of what the records say.
        since_us: leave out operations that left before this instant, in microseconds since the epoch.
        until_us: leave out operations that left at this instant or later.
    """

    def wanted(record: Record) -> bool:
        left = record.finished
        if not isinstance(left, int):
            return True  # counted as a record that cannot be true
        return (since_us is None or left >= since_us) and (until_us is None or left < until_us)

    folder = Path(source)
    if str(source) == "-" or not folder.is_dir():
        return summarize(filter(wanted, records_of(source, allow_gaps=allow_gaps)), top=top, normal=normal)
    folders = journals_in(folder)
    missing: list[tuple[int, int]] = []
    twice = [(first, last) for each in folders for first, last, *_ in doubled(list_segments(each))]
    records = chain.from_iterable(_of_folder(each, missing, allow_gaps=allow_gaps) for each in folders)
    return attrs.evolve(
        summarize(filter(wanted, records), top=top, normal=normal),
        missing=tuple(missing),
        doubled=tuple(twice),
        dropped=sum(map(dropped, folders)),
        journals=() if folders == [folder] else tuple(each.name for each in folders),
    )


def _of_folder(folder: Path, missing: list[tuple[int, int]], *, allow_gaps: bool) -> Iterator[Record]:
    """The records of a folder. Numbers that they skip are noted."""
    ends = tip(folder)
    due = ends["first"]
    for record in _records(read(folder, allow_gaps=allow_gaps), folder):
        if record.seq > due:
            missing.append((due, record.seq - 1))
        due = record.seq + 1
        yield record
    if due <= ends["last"]:
        missing.append((due, ends["last"]))


def records_of(source: str | Path, *, allow_gaps: bool = False) -> Iterator[Record]:
    """The records of a folder, of one of its files, of a file of JSON lines, or (``-``) of the standard input.

    Args:
        source: where they are.
        allow_gaps: give what is left of a journal that is damaged.

    Raises:
        JournalMissing: there is nothing there.
        JournalDamaged: records are missing, or can't be read.
        JournalFormat: it is no journal.
        ModuleNotFoundError: it is in Parquet, and pyarrow isn't installed.
    """
    return _records(_rows_of(source, allow_gaps=allow_gaps), source)


def _records(rows: Iterable[Record | TraceRow], source: str | Path) -> Iterator[Record]:
    for row in rows:
        if isinstance(row, TraceRow):
            message = f"{source} is a trace, which does not say how operations ended: run purgatory pipeline replay"
            raise JournalFormat(message)
        yield row


def _rows_of(source: str | Path, *, allow_gaps: bool) -> Iterator[Record | TraceRow]:
    if str(source) == "-":
        yield from _from_json(sys.stdin, "the standard input")
        return
    path = Path(source)
    if path.is_dir():
        for folder in journals_in(path):
            yield from read(folder, allow_gaps=allow_gaps)
    elif not path.exists():
        raise JournalMissing(path)
    elif path.suffix in (".parquet", ".frames"):
        segment = segment_of(path)
        if segment is None:
            raise JournalFormat(f"{path} has not the name of a journal's segment, which says what rows it holds")
        yield from read_segment(segment, allow_gaps=allow_gaps)
    else:
        with path.open(encoding="utf-8") as lines:
            yield from _from_json(lines, str(path))


def _from_json(lines: Iterable[str], name: str) -> Iterator[Record]:
    """Records as ``purgatory journal tail`` prints them. Unknown columns are ignored."""
    number = 1
    try:
        for line in lines:
            if line.strip():
                values = {key: value for key, value in json.loads(line).items() if key in _NAMES}
                yield _with_texts(Record(**{**values, "keys": tuple(values["keys"])}))
            number += 1
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = f"{name}, line {number}: no record as `purgatory journal tail` prints it ({error!r})"
        raise JournalFormat(message) from error


def _with_texts(record: Record) -> Record:
    """Return the record if its type, its keys and its normal ends are texts."""
    if not all(text is None or isinstance(text, str) for text in (record.type, record.normal_ends, *record.keys)):
        raise JournalFormat("type, keys and normal_ends must be texts")
    return record
