"""The report's lists: examples, errors, instances, what changed, everything in numbers, and what it is all about."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Final

from purgatory.journal.records import OUTCOMES
from purgatory.pipeline._pages.parts import listing, section, table
from purgatory.pipeline._pages.tables import Tables, by_type, name_of, total
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from purgatory.pipeline._summaries.groups import Row


def _kind(row: Row) -> str:
    return name_of((row["purgatory"], row["type"]))


def slowest(tables: Tables) -> str:
    """Examples of those that waited longest."""
    names = ["operation"] * any(row["operation"] for row in tables.slowest) + ["instance"] * _several(tables)
    columns: dict[str, Callable[[Row], str]] = {
        "": _kind,
        "keys": lambda row: ", ".join("-" if key is None else key for key in row["keys"] or []) or "-",
        **{name: lambda row, name=name: row[name] or "-" for name in names},  # type: ignore[misc]
        "arrived": lambda row: tables.clock(row["created"].timestamp() * 1e6, 1000),
        "waited": lambda row: duration_text(row["wait_us"] / 1000),
        "checks": lambda row: str(row["checks"]),
        "record": lambda row: f"{row['seq']:,}",
    }
    rows = sorted(tables.slowest, key=lambda row: (row["purgatory"], row["type"], row["rank"]))
    shown = listing([row for row in rows if row["rank"] <= _EXAMPLES], columns, texts=3 + len(names))
    how = "The answered operations that waited longest, up to three of each type, with their number in the journal."
    return section("The slowest", how, shown)


_EXAMPLES: Final = 3


def _several(tables: Tables) -> bool:
    return len({row["instance"] for row in tables.instances}) > 1


def raised(tables: Tables) -> str:
    """What hooks raised."""
    columns: dict[str, Callable[[Row], str]] = {
        "": _kind,
        "error": lambda row: row["error"],
        "for example": lambda row: row["example"],
        "times": lambda row: f"{row['times']:,}",
        "first": lambda row: tables.clock(row["first_us"], 1e6),
        "last": lambda row: tables.clock(row["last_us"], 1e6),
    }
    shown = listing(tables.raised[:20], columns, texts=3)
    return section("Errors of hooks", "The operations completed all the same.", shown)


def instances(tables: Tables) -> str:
    """The share of each instance."""
    columns: dict[str, Callable[[Row], str]] = {
        "instance": lambda row: row["instance"] or "-",
        "": _kind,
        "operations": lambda row: f"{row['operations']:,}",
        "expired": lambda row: share_text(row["expiry_share"]),
        "mean wait": lambda row: duration_text(row["mean_ms"]),
        "errors": lambda row: f"{row['errors']:,}",
    }
    rows = sorted(tables.instances, key=lambda row: (row["instance"], row["purgatory"], row["type"]))
    shown = listing(rows, columns, texts=2)
    return section("By instance", "Each process's own part.", shown) if _several(tables) else ""


def changes(tables: Tables) -> str:
    """Beside an earlier report."""
    earlier = tables.earlier
    if earlier is None:
        return ""
    before, now = _measures(earlier), _measures(tables)
    unknown = ["-"] * len(_MEASURES)
    lines = [
        [name_of(kind), *chain.from_iterable(zip(before.get(kind, unknown), now.get(kind, unknown), strict=True))]
        for kind in sorted({*before, *now})
    ]
    names = ["", *chain.from_iterable((f"{name}, then", "now") for name in _MEASURES)]
    how = f"Beside the report made on {_moment(earlier.made)}, about {about_when(earlier)}."
    if earlier.gaps:
        how += " That report covers only a part of its records. It could not read the following."
    return section("What has changed", how, missing(earlier.gaps) + table(names, lines))


def missing(gaps: Sequence[str]) -> str:
    """What could not be read, if anything."""
    return f"<ul class=missing>{''.join(f'<li>{escape(text)}</li>' for text in gaps)}</ul>" if gaps else ""


_MEASURES: Final = ("a second", "expired", "median wait", "slowest 1%")


def _measures(tables: Tables) -> dict[tuple[str, str], list[str]]:
    waits, measures = _waits(tables), {}
    for kind, rows in by_type(tables.outcomes).items():
        operations = total(rows, "operations")
        rate = tables.per_second(operations)
        share = share_text(total(rows, "expired") / operations)
        measures[kind] = ["-" if rate is None else count_text(rate), share, *waits.get(kind, ["-", "-"])]
    return measures


def _waits(tables: Tables) -> dict[tuple[str, str], list[str]]:
    """The median and the 99th percentile of the waits of each type that was answered."""
    return {
        (row["purgatory"], row["type"]): [duration_text(row["p50_ms"]), duration_text(row["p99_ms"])]
        for row in tables.waiting
    }


def summary(tables: Tables) -> str:
    """Every type in numbers."""
    seen = [name for name in OUTCOMES if total(tables.outcomes, name)]  # a column of zeros is one too many
    waits = _waits(tables)
    lines = []
    for kind, rows in by_type(tables.outcomes).items():
        operations = total(rows, "operations")
        cells = [name_of(kind), f"{operations:,}", *(f"{total(rows, name):,}" for name in seen)]
        cells += [share_text(total(rows, "expired") / operations)]
        cells += waits.get(kind, ["-", "-"])
        cells += [f"{total(rows, 'checks') / operations:.1f}"]
        lines.append(cells)
    names = ("", "operations", *seen, "expiry share", "median", "99%", "checks each")
    first = tables.clock(tables.first_us, 1e6)
    how = f"Times are UTC. {first} is the first arrival. Median and 99% are of those answered."
    return section("In numbers", how, table(names, lines))


def lost(tables: Tables) -> str:
    """The operations that were never written."""
    many = "1 more operation was" if tables.dropped == 1 else f"{tables.dropped:,} more operations were"
    return f"{many} dropped by the journals' writers, which had no room left or could not write them."


def about(tables: Tables) -> str:
    """The records that were read, and whether these are all."""
    operations = total(tables.outcomes, "operations")
    lines: list[Sequence[str]] = []
    for name, ends in zip(tables.journals, tables.ranges, strict=False):
        first, last = ends or (0, -1)
        lines.append([name, f"{first:,} to {last:,}" if ends else "none yet", f"{last - first + 1:,}"])
    text = f"{tables.rows:,} records were read"
    text += f", of which {tables.quarantined:,} can't be true: {operations:,} operations" if tables.quarantined else ""
    text += "." if tables.gaps else f". Nothing is missing{' of what was written' if tables.dropped else ''}."
    if tables.shut_down:
        text += f" A shutdown ended {tables.shut_down:,} operations before their deadline: they are in no outcome."
    text += f" {lost(tables)}" if tables.dropped else ""
    text += " Left out are the folders named below the table." if tables.left_out else ""
    body = table(["journal", "records", "number"], lines) + missing([*tables.gaps, *tables.left_out])
    return section("About this report", f"{text} Made on {_moment(tables.made)}.", body)


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y, %H:%M:%S} UTC"


def about_when(tables: Tables) -> str:
    """From when to when."""
    first = datetime.fromtimestamp(tables.first_us / 1e6, UTC)
    last = datetime.fromtimestamp(tables.last_us / 1e6, UTC)
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%d %b %Y, %H:%M:%S}"
    return f"{first:%d %b %Y, %H:%M:%S} to {end} UTC"
