"""A summary as text for people, and as JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from purgatory.journal.records import OUTCOMES
from purgatory.journal.records.errors import JournalError
from purgatory.journal.summary.figures import PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from purgatory.journal.summary.figures import Summary

_WIDEST: Final = 60  # characters of a name in a table
_MOST_RUNS: Final = 5  # of records that are named one by one


def as_text(summary: Summary, source: str) -> str:
    """The summary for people."""
    if summary.first_us is None or summary.last_us is None:
        raise JournalError(f"{source} holds no record{' that can be true' if summary.aside else ''}")
    length = _length((summary.last_us - summary.first_us) / 1e6)
    begin, end = (
        f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S}" for us in (summary.first_us, summary.last_us)
    )
    lines = [f"{source}: {summary.records:,} records of {length}, {begin} to {end} UTC", *_left_out(summary), ""]
    waits = [f"p{percent} ms" if percent < 100 else "longest ms" for percent in PERCENTILES]  # noqa: PLR2004
    rows = [["purgatory", "type", "records", *OUTCOMES, "errors", "checks", *waits, "shut down", "ended well"]]
    for kind in summary.kinds:
        ended = kind.records - kind.shut_down
        cells = [_cell(kind.purgatory), _cell(kind.type), f"{kind.records:,}"]
        cells += [_percent(kind.outcomes[outcome] / ended) if ended else "-" for outcome in OUTCOMES]
        cells += [f"{kind.errors:,}", f"{kind.checks:.1f}"]
        cells += [f"{kind.wait_us[p] / 1000:,.1f}" if kind.wait_us else "-" for p in PERCENTILES]
        cells += [f"{kind.shut_down:,}", "-" if kind.ended_well is None else _percent(kind.ended_well)]
        rows.append(cells)
    lines += [*_table(rows), ""]
    rows = [["purgatory", "key", "records" if summary.keys_exact else "records, at least", ""]]
    rows += [[_cell(each.purgatory), each.key, f"{each.records:,}", _percent(each.share)] for each in summary.keys]
    return "\n".join([*lines, *_table(rows)]) + "\n"


def _left_out(summary: Summary) -> Iterator[str]:
    """Which journals were read, and what is in no figure of the tables."""
    if summary.journals:
        yield f"{len(summary.journals)} journals: {', '.join(map(_cell, summary.journals))}"
    if summary.missing:
        yield "{} are missing: {}".format(*_numbers(summary.missing))
    if summary.doubled:
        yield "{} are there twice, and are counted once: {}".format(*_numbers(summary.doubled))
    if summary.dropped:
        yield f"{summary.dropped:,} more were dropped by the writer, and have no record"
    if summary.aside:
        yield f"{summary.aside:,} more can't be true, and are left out"


def _numbers(runs: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """How many numbers some runs have, and which."""
    count = sum(last - first + 1 for first, last in runs)
    named = ", ".join(f"{first:,} to {last:,}" for first, last in runs[:_MOST_RUNS])
    return f"{count:,}", named + (f" and {len(runs) - _MOST_RUNS} more" if len(runs) > _MOST_RUNS else "")


def as_json(summary: Summary) -> str:
    """The summary for programs: one line of JSON."""
    values: dict[str, Any] = attrs.asdict(summary)
    return json.dumps(values, ensure_ascii=False) + "\n"


def _cell(name: str) -> str:
    """A name as it stands in a table: nothing of it moves a cursor, breaks a line or takes all of the room."""
    text = name if name and name.isprintable() else repr(name)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under each other. The first two columns are names, the others figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [f"{{:<{width}}}" if place < 2 else f"{{:>{width}}}" for place, width in enumerate(widths)]  # noqa: PLR2004
    return ["  ".join(pads).format(*row).rstrip() for row in rows]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _length(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} seconds"
