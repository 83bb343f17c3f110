"""``purgatory pipeline report``: from journals to Parquet tables and a page, with progress on standard error.

Each table is defined once, in SQL (``_tables.queries``). An engine runs it: DuckDB in this process, or Spark. The
results are small. Each is written as Parquet, and its rows go to the page.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow.parquet as pq

from purgatory.journal.records.normal import CANCELLED, EXPIRED, UNSAID, Normal
from purgatory.pipeline._pages.findings import find
from purgatory.pipeline._pages.page import page
from purgatory.pipeline._pages.sections import MOST
from purgatory.pipeline._pages.tables import Tables
from purgatory.pipeline._rows.validity import DataError
from purgatory.pipeline._summaries import advice, table_files
from purgatory.pipeline._tables import levels, queries, relations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from purgatory.pipeline._summaries.groups import Row
    from purgatory.pipeline._tables.local import Local

_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
_SLOTS_US: Final = (10_000, 50_000, 100_000, 500_000, *(s * 1_000_000 for s in _WIDTHS_S))
_WINDOWS: Final = 90
_MOST_WINDOWS: Final = 900  # about one per pixel; 2,000 windows of three types made a page of 7.7 MB
_SLOTS: Final = 1_500
_ABOUT: Final = "about.json"
_FINDINGS: Final = "findings.json"
_COMPARED: Final = {
    "outcomes": ("purgatory", "type", "operations", "expired"),
    "waiting": ("purgatory", "type", "answered", "p50_ms", "p99_ms"),
}
#: What of an earlier report's folder a comparison reads.
COMPARISON_FILES: Final = (_ABOUT, *(f"tables/{name}" for name in _COMPARED))


class EmptyJournal(DataError):
    """There is nothing to report on."""


@contextmanager
def _step(name: str, *, quiet: bool) -> Iterator[None]:
    """Print a step of the work as it begins, and how long it took, to standard error."""
    started = time.monotonic()
    if not quiet:
        sys.stderr.write(f"{name} ... ")
        sys.stderr.flush()
    yield
    if not quiet:
        sys.stderr.write(f"{time.monotonic() - started:.1f} s\n")


class NoReport(ValueError):
    """There is no earlier report where one was looked for."""


@attrs.frozen(kw_only=True)
class ReportOptions:
    """The settings of a report.

    Args:
        window_s: the length of a window (default: chosen for the journal's span).
        title: the page's heading. By default the names of the instances that wrote the journal.
        normal: the ends that are no failures, instead of what the records say.
        against: the folder of an earlier report, to compare with.
        allow_gaps: report on what is there where rows are missing, and say so on the page.
        quiet: no progress.
        made: when the report was made, for the page (default: now).
    """

    window_s: int | None = None
    title: str = ""
    normal: Normal = UNSAID
    against: str | Path | None = None
    allow_gaps: bool = False
    quiet: bool = False
    made: datetime | None = None


def report(engine: Local, out: str | Path, options: ReportOptions | None = None) -> Path:
    """Write the tables and the page. Return the page's path.

    Raises:
        EmptyJournal: the journals hold no record, or none that can be true.
        IncompleteJournal: rows are missing, and gaps aren't allowed.
        NoReport: there is no earlier report to compare with.
    """
    options = options or ReportOptions()
    folder = Path(out)
    earlier = None if options.against is None else _earlier(Path(options.against))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _step("[1/3] checking that all of it is there", quiet=options.quiet):
            unread = engine.open(allow_gaps=options.allow_gaps)
            normal = relations.prepare(engine, options.normal)
            (span,) = engine.query(queries.SPAN).to_pylist()
        if not span["operations"]:
            raise EmptyJournal(f"{', '.join(engine.journals)} holds no record that can be reported on")
        span_us = span["last_us"] - span["first_us"]
        window_us = _window_s(span_us / 1e6, options) * 1_000_000
        slot_us = next((w for w in _SLOTS_US if span_us / w <= _SLOTS), _days(span_us / 1e6, _SLOTS) * 1_000_000)
        with _step(f"[2/3] counting {span['operations']:,} operations", quiet=options.quiet):
            widths = levels.widths_of(window_us, slot_us, span)
            made = _query_tables(engine, widths, malformed=span["malformed"] > 0)
        if engine.summary and not options.quiet:
            sys.stderr.write(f"{engine.summary}\n")
    finally:
        engine.close()
    with _step("[3/3] the tables and the page", quiet=options.quiet):
        shutil.rmtree(folder / "tables" / "quarantine", ignore_errors=True)  # an earlier report's, if there was one
        drawn = {"occupancy": table_files.highest_peaks(made["peaks"], MOST)}  # many purgatories have many slots
        places = {name: (folder / "tables" / name, table, drawn.get(name)) for name, table in made.items()}
        rows = {name: table_files.write_table(*each) for name, each in places.items()}
        known = {"window_us": window_us, "normal": normal, "gaps": tuple(unread), "earlier": earlier}
        tables = _collect(rows, engine, span, options, **known)
        path = folder / "index.html"
        path.write_text(page(tables, options.title), encoding="utf-8")
        _describe(folder, tables)
    return path


def report_on(
    journals: str | Path | Sequence[str | Path], out: str | Path, *, engine: str = "auto", **options: Any
) -> Path:
    """Report on journals, from a notebook or a program. Return the page's path.

    Args:
        journals: folders of journals or of a fleet's journals, or places that only Spark reads.
        out: the folder to write to.
        engine: ``local``, ``spark`` (in the session that is active, if there is one), or ``auto``.
        options: the fields of ``ReportOptions``.
    """
    from purgatory.pipeline._tables.engine import engine_for

    places = [journals] if isinstance(journals, str | Path) else journals
    return report(engine_for(list(map(str, places)), engine), out, ReportOptions(**{"quiet": True, **options}))


def _query_tables(engine: Local, widths: relations.Widths, *, malformed: bool) -> dict[str, pa.Table]:
    """Every table, by name. The advice follows from the counts of waits."""
    tables = queries.tables(engine, widths, malformed=malformed)
    curve = advice.survival(tables.pop("waits"))
    tables |= {"survival": curve, "advice": advice.advice(curve)}
    return tables


def _collect(rows: Mapping[str, list[Row]], engine: Local, span: Row, options: ReportOptions, **more: Any) -> Tables:
    more |= {name: table for name, table in rows.items() if name != "quarantine"}
    more |= {name: span[name] for name in ("first_us", "last_us", "shut_down")}
    more["normal"] = more["normal"].renamed(table_files.shorten)
    ends = {run.journal: (run.first, run.last) for run in engine.expected}
    return Tables(
        **more,
        asked_us=(options.window_s or 0) * 1_000_000,
        quarantined=span["malformed"],
        rows=span["operations"] + span["malformed"],
        journals=tuple(_names(engine)),
        ranges=tuple(map(ends.get, engine.journals)),
        left_out=tuple(engine.left_out),
        dropped=engine.dropped,
        made=options.made or datetime.now(UTC),
    )


def _window_s(span_s: float, options: ReportOptions) -> int:
    """The length of a window: as asked for, unless there would be too many of them to be drawn or read."""
    if options.window_s and span_s / options.window_s <= _MOST_WINDOWS:
        return options.window_s
    most = _MOST_WINDOWS if options.window_s else _WINDOWS
    return next((width for width in _WIDTHS_S if span_s / width <= most), _days(span_s, most))


def _days(span_s: float, parts: int) -> int:
    """The length of a part in whole days, in seconds, so that the span has at most this many parts."""
    return 86_400 * math.ceil(span_s / parts / 86_400)


def _names(engine: Local) -> list[str]:
    """The journals as they are called on the page: by their folders' last parts, as many as tell them apart."""
    parts = [name.rstrip("/").split("/") for name in engine.journals]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(engine.journals)


def _describe(folder: Path, tables: Tables) -> None:
    """The facts, beside its tables, that a later report needs to compare with this one."""
    about = {
        "made": tables.made.isoformat(),
        "first_us": tables.first_us,
        "last_us": tables.last_us,
        "window_us": tables.window_us,
        "rows": tables.rows,
        "malformed": tables.quarantined,
        "normal": {outcome: tables.normal.pairs(outcome) for outcome in (EXPIRED, CANCELLED)},
        "gaps": list(tables.gaps),
    }
    (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    listed = [attrs.asdict(finding) for finding in find(tables)]
    (folder / _FINDINGS).write_text(json.dumps(listed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _earlier(folder: Path) -> Tables:
    """The tables of an earlier report, for a comparison."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        rows: dict[str, Any] = {
            name: table_files.rows_of(pq.read_table(folder / "tables" / name, columns=list(columns)))
            for name, columns in _COMPARED.items()
        }
        numbers: dict[str, Any] = {name: int(about[name]) for name in ("window_us", "first_us", "last_us", "rows")}
        return Tables(
            **rows, **numbers, gaps=tuple(map(str, about.get("gaps", ()))), made=datetime.fromisoformat(about["made"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        hint = "give the folder that an earlier one was written to"
        raise NoReport(f"{folder} holds no report to compare with: {hint}") from error
