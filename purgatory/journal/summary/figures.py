"""The figures of a summary, from records in any order."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import attrs

from purgatory.journal.records import LATEST_US, OUTCOMES
from purgatory.journal.records.normal import CANCELLED, EXPIRED, Normal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from purgatory.journal.records import Record

#: How many different keys are counted before the rarer half of them is forgotten.
MOST_KEYS: Final = 1_000_000
PERCENTILES: Final = (50, 95, 99, 100)
ENDED_WELL: Final = ("immediate", "satisfied", "forced")


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
        doubled: the first and the last number of each run of records that a folder has twice. They are counted once.
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
    doubled: tuple[tuple[int, int], ...] = ()
    dropped: int = 0
    journals: tuple[str, ...] = ()


class _Kind:
    """The counts of one type in one purgatory."""

    __slots__ = ("checks", "ends", "errors", "outcomes", "shut_down", "waits")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors = self.checks = self.shut_down = 0
        self.waits = array("q")
        self.ends: set[str | None] = set()  # that records call normal

    def add(self, record: Record) -> None:
        self.checks += record.checks
        self.errors += record.error is not None
        self.ends.add(record.normal_ends)
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
    normal = normal.saying((*name, ends) for name, kind in kinds.items() for ends in kind.ends)
    summaries = [_settled(*name, kind, normal) for name, kind in kinds.items()]
    summaries.sort(key=lambda kind: (-kind.records, kind.purgatory, kind.type))
    of = Counter[str]()
    for kind_summary in summaries:
        of[kind_summary.purgatory] += kind_summary.records
    ranked = sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:top]
    hottest = tuple(KeySummary(*name, count, count / of[name[0]]) for name, count in ranked)
    return Summary(of.total(), first, last, tuple(summaries), hottest, exact, aside)


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
    well += sum(kind.outcomes[outcome] for outcome in (EXPIRED, CANCELLED) if normal((purgatory, name), outcome))
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
