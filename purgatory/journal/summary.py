"""A quick look at a journal, on the base install: how operations ended, how long they waited, on which keys.

    var/journal: 12,345 records of 20 minutes, 2026-11-21 10:00:00 to 10:20:00 UTC

    purgatory  type   records  immediate  satisfied  expired  cancelled  forced  errors  checks  p50 ms  p95 ms ...
    fetch      Fetch   10,000      0.0 %     98.1 %    1.9 %      0.0 %   0.0 %       0     2.3    12.0    80.5 ...

    purgatory  key       records
    fetch      orders-0    5,000  40.5 %

It takes one pass over the rows, about ten seconds per million. Waits are kept, with eight bytes each, so percentiles
are exact: the smallest wait that this share of the operations does not exceed, of those that waited (all but the
immediate ones). Keys are counted exactly up to :data:`MOST_KEYS` different ones. If there are more, the rarer half is
forgotten, and the summary says that counts are lower bounds.

It reads a journal's folder, one of its files, or the JSON lines that ``purgatory journal tail`` prints, from a file
or (``-``) from the standard input. Only sealed segments in Parquet need pyarrow.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import attrs

from purgatory.journal._reader import read, read_segment
from purgatory.journal.records import LATEST_US, OUTCOMES, Record, TraceRow
from purgatory.journal.records.errors import JournalError, JournalFormat, JournalMissing
from purgatory.journal.records.folder import dropped, journals_in, segment_of, tip

__all__ = [
    "KeySummary",
    "KindSummary",
    "Normal",
    "Summary",
    "as_json",
    "as_text",
    "records_of",
    "summarize",
    "summarize_source",
]

#: How many different keys are counted before the rarer half of them is forgotten.
MOST_KEYS: Final = 1_000_000
PERCENTILES: Final = (50, 95, 99, 100)
ENDED_WELL: Final = ("immediate", "satisfied", "forced")
_WIDEST: Final = 60  # characters of a name, in a table
_MOST_RUNS: Final = 5  # of missing records that are told one by one

_NAMES: Final = frozenset(field.name for field in attrs.fields(Record))


@attrs.frozen
class KindSummary:
    """The operations of one type in one purgatory.

    Attributes:
        outcomes: records by outcome, without those that a shutdown ended. Every outcome is there.
        errors: records whose hooks raised something.
        checks: calls of ``try_complete`` a record, on average.
        wait_us: waits in microseconds by percentile, 100 being the longest. Empty if none waited.
        shut_down: records of operations that a shutdown ended. How they would have ended is unknown, so they are in no
            outcome and in no wait.
        ended_well: the share of the other records that ended well: immediate, satisfied, forced, or in a way that is
            normal for the type. None if there are no others.
    """

    purgatory: str
    type: str
    records: int
    outcomes: dict[str, int]
    errors: int
    checks: float
    wait_us: dict[int, int]
    shut_down: int = 0
    ended_well: float | None = None


@attrs.frozen
class KeySummary:
    """The operations of one purgatory that were watched under one key. Keys of other purgatories are other keys.

    Attributes:
        share: of the purgatory's records.
    """

    purgatory: str
    key: str
    records: int
    share: float


@attrs.frozen
class Summary:
    """The summary of a journal.

    Attributes:
        records: how many operations.
        first_us: when the earliest of them was parked, in microseconds since the epoch, or None if there are none.
        last_us: when the latest of them left.
        kinds: by purgatory and type, those with most records first.
        keys: the keys with most records.
        keys_exact: whether ``keys`` are exact, and not lower bounds.
        aside: records that can't be true, and are in no other figure.
        missing: the first and the last number of each run of records that a folder should have and does not have.
        dropped: operations that the folder's writer dropped, which have no record.
        journals: the journals, by name, if the folder holds several.
    """

    records: int
    first_us: int | None
    last_us: int | None
    kinds: tuple[KindSummary, ...]
    keys: tuple[KeySummary, ...]
    keys_exact: bool
    aside: int
    missing: tuple[tuple[int, int], ...] = ()
    dropped: int = 0
    journals: tuple[str, ...] = ()


@attrs.frozen
class Normal:
    """Types for which an end is normal that is a failure for others.

    Attributes:
        expiry: types whose operations end by their deadline as a rule.
        cancel: types whose operations end by a cancellation as a rule, as leases do.
    """

    expiry: frozenset[str] = frozenset()
    cancel: frozenset[str] = frozenset()


class _Kind:
    """The counts of one type in one purgatory."""

    __slots__ = ("checks", "errors", "outcomes", "shut_down", "waits")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors = self.checks = self.shut_down = 0
        self.waits = array("q")

    def add(self, record: Record) -> None:
        self.checks += record.checks
        self.errors += record.error is not None
        if record.is_censored:
            self.shut_down += 1
            return
        self.outcomes[record.outcome] += 1
        if record.outcome != "immediate":
            self.waits.append(record.waited_us)


def summarize(
    records: Iterable[Record], *, top: int = 10, most_keys: int = MOST_KEYS, normal: Normal | None = None
) -> Summary:
    """Summarize records. ``top`` is the number of keys to name."""
    normal = normal or Normal()
    kinds: dict[tuple[str, str], _Kind] = {}
    keys: defaultdict[tuple[str, str], int] = defaultdict(int)  # Counter.update took half of the pass
    exact = True
    first: int | None = None
    last: int | None = None
    aside = 0
    for record in records:
        if not _can_be_true(record):
            aside += 1
            continue
        name = record.purgatory, record.type or ""
        kind = kinds.get(name)
        if kind is None:
            kind = kinds[name] = _Kind()
        kind.add(record)
        if first is None or record.created < first:
            first = record.created
        if last is None or record.finished > last:
            last = record.finished
        for key in record.keys or ():
            if key is not None:
                keys[record.purgatory, key] += 1
        if len(keys) > most_keys:
            keys = defaultdict(int, Counter(keys).most_common(most_keys // 2))
            exact = False
    found = [_settled(*name, kind, normal) for name, kind in kinds.items()]
    found.sort(key=lambda kind: (-kind.records, kind.purgatory, kind.type))
    of = Counter[str]()
    for kind_summary in found:
        of[kind_summary.purgatory] += kind_summary.records
    ranked = sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:top]
    hottest = tuple(KeySummary(*name, count, count / of[name[0]]) for name, count in ranked)
    return Summary(of.total(), first, last, tuple(found), hottest, exact, aside)


def summarize_source(
    source: str | Path,
    *,
    top: int = 10,
    allow_gaps: bool = False,
    normal: Normal | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> Summary:
    """Summarize the records that `records_of` reads. For a folder, also count its missing and dropped records.

    Args:
        source: a folder, a file, or ``-``.
        top: how many keys are named.
        allow_gaps: summarize the rest of a damaged journal.
        normal: types for which an expiry or a cancellation is a good end.
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
    records = chain.from_iterable(_of_folder(each, missing, allow_gaps=allow_gaps) for each in folders)
    return attrs.evolve(
        summarize(filter(wanted, records), top=top, normal=normal),
        missing=tuple(missing),
        dropped=sum(map(dropped, folders)),
        journals=() if folders == [folder] else tuple(each.name for each in folders),
    )


def _of_folder(folder: Path, missing: list[tuple[int, int]], *, allow_gaps: bool) -> Iterator[Record]:
    ends = tip(folder)
    yield from _noted(_records(read(folder, allow_gaps=allow_gaps), folder), ends["first"], ends["last"], missing)


def _noted(records: Iterable[Record], due: int, last: int, missing: list[tuple[int, int]]) -> Iterator[Record]:
    """The same records. Numbers from `due` on that they skip are noted."""
    for record in records:
        if record.seq > due:
            missing.append((due, record.seq - 1))
        due = record.seq + 1
        yield record
    if due <= last:
        missing.append((due, last))


def _can_be_true(record: Record) -> bool:
    """Whether a record is whole and ends after it began. A record that another program wrote or changed may not be."""
    numbers = (record.created, record.finished, record.delay_ms, record.checks)
    return (
        all(isinstance(each, int) for each in numbers)
        and isinstance(record.purgatory, str)
        and record.outcome in OUTCOMES
        and 0 <= record.created <= record.finished < LATEST_US
        and record.checks >= 0
    )


def _settled(purgatory: str, name: str, kind: _Kind, normal: Normal) -> KindSummary:
    ended = kind.outcomes.total()
    records = ended + kind.shut_down
    well = sum(kind.outcomes[outcome] for outcome in ENDED_WELL)
    well += kind.outcomes["expired"] * (name in normal.expiry) + kind.outcomes["cancelled"] * (name in normal.cancel)
    waits = sorted(kind.waits)
    return KindSummary(
        purgatory=purgatory,
        type=name,
        records=records,
        outcomes={outcome: kind.outcomes[outcome] for outcome in OUTCOMES},
        errors=kind.errors,
        checks=kind.checks / records,
        wait_us={percent: waits[-(-len(waits) * percent // 100) - 1] for percent in PERCENTILES} if waits else {},
        shut_down=kind.shut_down,
        ended_well=well / ended if ended else None,
    )


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
            message = f"{source} is a trace, which says what operations wait for and not how they ended: rehearse it"
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
                yield Record(**{**values, "keys": tuple(values["keys"])})
            number += 1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"{name}, line {number}: no record as `purgatory journal tail` prints it ({error!r})"
        raise JournalFormat(message) from error


def as_text(summary: Summary, source: str) -> str:
    """The summary for people."""
    if summary.first_us is None or summary.last_us is None:
        raise JournalError(f"{source} holds no record{' that can be true' if summary.aside else ''}")
    length = _length((summary.last_us - summary.first_us) / 1e6)
    begin, end = (_instant(us) for us in (summary.first_us, summary.last_us))
    lines = [f"{source}: {summary.records:,} records of {length}, {begin} to {end} UTC", ""]
    lines[1:1] = _left_out(summary)
    head = ["purgatory", "type", "records", *OUTCOMES, "errors", "checks"]
    head += [f"p{percent} ms" if percent < 100 else "longest ms" for percent in PERCENTILES]  # noqa: PLR2004
    head += ["shut down", "ended well"]
    rows = [head]
    for kind in summary.kinds:
        ended = kind.records - kind.shut_down
        outcomes = [_percent(kind.outcomes[outcome], ended) for outcome in OUTCOMES]
        waits = [f"{kind.wait_us[p] / 1000:,.1f}" if kind.wait_us else "-" for p in PERCENTILES]
        row = [
            _cell(kind.purgatory),
            _cell(kind.type),
            f"{kind.records:,}",
            *outcomes,
            f"{kind.errors:,}",
            f"{kind.checks:.1f}",
        ]
        well = "-" if kind.ended_well is None else f"{100 * kind.ended_well:.1f} %"
        rows.append([*row, *waits, f"{kind.shut_down:,}", well])
    lines += [*_table(rows, left=2), ""]
    rows = [["purgatory", "key", "records" if summary.keys_exact else "records, at least", ""]]
    rows += [
        [_cell(each.purgatory), each.key, f"{each.records:,}", f"{100 * each.share:.1f} %"] for each in summary.keys
    ]
    return "\n".join([*lines, *_table(rows, left=2)]) + "\n"


def _left_out(summary: Summary) -> Iterator[str]:
    """Which journals were read, and what is in no figure of the tables."""
    if summary.journals:
        yield f"{len(summary.journals)} journals: {', '.join(map(_cell, summary.journals))}"
    if summary.missing:
        count = sum(last - first + 1 for first, last in summary.missing)
        runs = ", ".join(f"{first:,} to {last:,}" for first, last in summary.missing[:_MOST_RUNS])
        more = f" and {len(summary.missing) - _MOST_RUNS} more" if len(summary.missing) > _MOST_RUNS else ""
        yield f"{count:,} are missing: {runs}{more}"
    if summary.dropped:
        yield f"{summary.dropped:,} more were dropped by the writer, and have no record"
    if summary.aside:
        yield f"{summary.aside:,} more can't be true, and are left out"


def as_json(summary: Summary) -> str:
    """The summary for programs: one line of JSON."""
    values: dict[str, Any] = attrs.asdict(summary)
    return json.dumps(values, ensure_ascii=False) + "\n"


def _cell(name: str) -> str:
    """A name as it stands in a table: nothing of it moves a cursor, breaks a line or takes all of the room."""
    text = name if name and name.isprintable() else repr(name)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _table(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _instant(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S}"


def _length(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} seconds"
