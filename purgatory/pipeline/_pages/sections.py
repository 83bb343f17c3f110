"""The report's plots, each with a sentence on how to read it. All that go over time have one axis."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from purgatory.journal.records import OUTCOMES
from purgatory.journal.records.normal import EXPIRED
from purgatory.pipeline._pages import plots
from purgatory.pipeline._pages.axes import Series, Times, legend
from purgatory.pipeline._pages.parts import figure, section
from purgatory.pipeline._pages.tables import Tables, by_type, name_of, total
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text
from purgatory.pipeline._summaries.advice import TARGETS
from purgatory.pipeline._summaries.groups import rows_by
from purgatory.pipeline._tables.queries import BANDS_US

if TYPE_CHECKING:
    from purgatory.pipeline._summaries.groups import Row

_PALETTE: Final = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)", "var(--f)")
MOST: Final = 6
_BANDS: Final = (*BANDS_US, -1)
_FEW: Final = 20  # what happened less often than this is in the table, and in no plot


def times(tables: Tables) -> Times:
    """The windows from the first to the one that the last departure is in, also those without a row."""
    first = tables.first_us - tables.first_us % tables.window_us
    at = range(first, tables.last_us + 1, tables.window_us)
    return Times(at, tables.window_us, (first, at[-1] + tables.window_us))


def _biggest(groups: dict[tuple[str, str], list[Row]], column: str) -> list[tuple[tuple[str, str], list[Row]]]:
    ranked = sorted(groups.items(), key=lambda item: -total(item[1], column))[:MOST]
    return [item for item in ranked if total(item[1], column) >= _FEW] or ranked


def _outcome_style(tables: Tables, kind: tuple[str, str], outcome: str) -> tuple[str, str]:
    """The name and the colour of an outcome. A normal end is no alarm."""
    if tables.normal(kind, outcome):
        return f"{'deadline' if outcome == EXPIRED else outcome} (normal)", "var(--bar)"
    return outcome, f"var(--{outcome})"


def outcomes(tables: Tables) -> str:
    """How operations left, over time."""
    at = times(tables)
    figures = []
    for kind, rows in _biggest(by_type(tables.outcomes), "operations"):
        by_window = {row["window_us"]: row for row in rows}
        series = [
            Series(*_outcome_style(tables, kind, name), [by_window.get(us, {}).get(name, 0) for us in at.at_us])
            for name in OUTCOMES
            if total(rows, name)
        ]
        operations, expired = total(rows, "operations"), total(rows, "expired")
        how = "ended by their deadline, as is normal" if tables.normal(kind, EXPIRED) else "expired"
        caption = f"{name_of(kind)}: {count_text(operations)} operations, {share_text(expired / operations)} {how}"
        svg = plots.stacked(caption, at, series)
        figures.append(figure(caption, svg, legend(series)))
    how = f"Operations that left, by how they left, for each {duration_text(tables.window_us / 1000)}."
    if tables.asked_us not in (0, tables.window_us):
        how += f" Windows of {duration_text(tables.asked_us / 1000)} would be too many."
    return section("Outcomes over time", how, "".join(figures))


def _lines(
    tables: Tables,
    label: str,
    kind: tuple[str, str],
    rows: list[Row],
    columns: tuple[tuple[str, str, str], ...],
    *,
    height: int,
) -> str:
    """A plot of some columns (with a name and a colour each) over time. Windows without a row are gaps."""
    at = times(tables)
    by_window = {row["window_us"]: row for row in rows}
    series = [
        Series(text, colour, [by_window.get(us, {}).get(name, math.nan) for us in at.at_us])
        for name, text, colour in columns
    ]
    return figure(name_of(kind), plots.lines(label, at, series, height=height), legend(series))


def latency(tables: Tables) -> str:
    """Percentiles of the waits, over time."""
    columns = (("p50_ms", "p50", "var(--a)"), ("p90_ms", "p90", "var(--b)"), ("p99_ms", "p99", "var(--c)"))
    figures = [
        _lines(tables, f"Waits of {name_of(kind)}", kind, tables.whole_windows(rows), columns, height=220)
        for kind, rows in _biggest(by_type(tables.latency), "answered")
    ]
    how = (
        "How long answered operations waited: exact percentiles, logarithmic scale. Expired operations are not "
        "included, nor are windows at either end that the journal covers only in part."
    )
    return section("Waiting", how, "".join(figures))


def survival(tables: Tables) -> str:
    """The share that needs longer than a timeout, and the timeouts that would do."""
    outcomes = by_type(tables.outcomes)  # a type of which a shutdown ended every operation has none
    curves_of = by_type([row for row in tables.failing(tables.survival) if (row["purgatory"], row["type"]) in outcomes])
    groups = [(k, rows) for k, rows in _biggest(curves_of, "left") if len(rows) > 1]
    if not groups:
        return ""
    curves, waits, marks = [], [], []
    for (kind, rows), colour in zip(groups, _PALETTE, strict=False):
        thin = _thin(sorted(rows, key=lambda row: row["wait_ms"]), 240)
        curves.append(Series(name_of(kind), colour, [row["survival"] for row in thin]))
        waits.append([max(row["wait_ms"], 1) for row in thin])
        shortest = min(row["shortest_ms"] for row in outcomes[kind])
        longest = max(row["delay_ms"] for row in outcomes[kind])
        label = f"timeout in use {duration_text(longest)}"
        marks.append((max(longest, 1), label if shortest == longest else f"longest {label}"))
    svg = plots.survival("Share of operations that need longer than a timeout", curves, waits, marks)
    how = (
        "Read it from below: choose a timeout, go up to the curve, and find the share of operations that it would "
        "cut off. Dotted: the timeout in use, the longest where there are several. A curve ends at the "
        "longest time that an operation was allowed to wait."
    )
    return section("Which timeout would do", how, figure("", svg, legend(curves)) + _advice(tables))


def _thin(rows: list[Row], most: int) -> list[Row]:
    """A limited number of rows, evenly over the curve's steps. Both ends stay."""
    if len(rows) <= most:
        return rows
    kept = {round(n * (len(rows) - 1) / (most - 1)) for n in range(most)}
    return [row for n, row in enumerate(rows) if n in kept]


def _advice(tables: Tables) -> str:
    often = {kind for kind, rows in by_type(tables.outcomes).items() if total(rows, "operations") >= _FEW}
    groups = {kind: rows for kind, rows in by_type(tables.failing(tables.advice)).items() if kind in often}
    if not groups:
        return ""
    head = "".join(f"<th>at most {share_text(target)} expire</th>" for target in TARGETS)
    body = []
    for kind, rows in groups.items():
        cells = []
        for row in sorted(rows, key=lambda row: -row["target"]):
            if row["timeout_ms"] is None:
                there = f"{share_text(row['survival_there'])} still wait at the end"
                cells.append(f"<td class=unknown title='{there}'>not known</td>")
            else:
                cells.append(f"<td>{duration_text(row['timeout_ms'])}</td>")
        body.append(f"<tr><th>{escape(name_of(kind))}</th>{''.join(cells)}</tr>")
    return (
        f"<table><thead><tr><th>shortest timeout so that</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def occupancy(tables: Tables) -> str:
    """How many were parked, over time."""
    groups = rows_by(tables.occupancy, "purgatory")
    peaks = {row["purgatory"]: (float(row["at_us"]), float(row["peak"])) for row in tables.peaks}
    figures = []
    for (name, rows), colour in zip(groups.items(), _PALETTE, strict=False):
        rows.sort(key=lambda row: row["slot_us"])
        width = rows[1]["slot_us"] - rows[0]["slot_us"] if len(rows) > 1 else tables.window_us
        at = Times([row["slot_us"] for row in rows], width, times(tables).span)
        series = Series(name, colour, [row["mean"] for row in rows])
        figures.append(figure(name, plots.area(f"Parked in {name}", at, series, peaks.get(name))))
    how = "Operations parked at the same time: the time-weighted mean, and the exact peak."
    return section("Occupancy", how, "".join(figures))


def waiting(tables: Tables) -> str:
    """Where the waits of the busiest types lie, over time."""
    groups = _biggest(by_type(tables.bands), "answered")[:3]
    at = times(tables)
    figures = []
    for kind, rows in groups:
        places = [_BANDS.index(row["upto_us"]) for row in rows]
        whole = _BANDS[min(places) : max(places) + 1]
        counts = {(row["upto_us"], row["window_us"]): row["answered"] for row in rows}
        lines = [(_band(us), [counts.get((us, window), 0) for window in at.at_us]) for us in reversed(whole)]
        label, what = f"Waits of {name_of(kind)} by time", "answered after such a wait"
        figures.append(figure(name_of(kind), plots.heat(label, at, lines, "var(--a)", what=what, tall=17)))
    how = (
        "Each row is a band of waits, each cell a window: the stronger the colour, the more were answered after such a "
        "wait."
    )
    return section("Waiting, band by band", how, "".join(figures))


def _band(upto_us: int) -> str:
    return "longer" if upto_us < 0 else f"up to {duration_text(upto_us / 1000)}"


def lateness(tables: Tables) -> str:
    """How long after their deadline operations expired."""
    most = len(times(tables).at_us)
    columns = (("p50_ms", "p50", "var(--a)"), ("max_ms", "max", "var(--c)"))
    figures = [
        _lines(tables, f"Lateness of {name_of(kind)}", kind, rows, columns, height=170)
        for kind, rows in _biggest(by_type(tables.lateness), "expired")
        if total(rows, "expired") >= _FEW and len(rows) >= most / 4  # the others are in the findings
    ]
    how = "How long after its deadline an operation left: the timer's tick, and any delay of its thread."
    return section("Lateness of expiry", how, "".join(figures))


def expiries(tables: Tables) -> str:
    """Where and when operations expired."""
    rows = [row for row in tables.failing(tables.expiries) if row["key"] is not None]
    if not rows:
        return ""
    at = times(tables)
    cells: dict[tuple[tuple[str, str], str], dict[float, int]] = {}
    for row in rows:
        cells.setdefault(((row["purgatory"], row["type"]), row["key"]), {})[row["window_us"]] = row["expired"]
    ranked = sorted(cells.items(), key=lambda item: -sum(item[1].values()))[:14]
    several = len({kind for (kind, _), _ in ranked}) > 1
    lines = [
        (f"{key} ({tables.display_name(kind)})" if several else key, [counts.get(us, 0) for us in at.at_us])
        for (kind, key), counts in ranked
    ]
    svg = plots.heat("Expiries by key and time", at, lines, "var(--expired)")
    how = "Each row is a key, each cell a window: the stronger the colour, the more operations expired there and then."
    return section("Where and when operations expire", how, figure("", svg))


def keys(tables: Tables) -> str:
    """The busiest keys."""
    figures = []
    for name, rows in list(rows_by(tables.hot_keys, "purgatory").items())[:MOST]:
        rows.sort(key=lambda row: row["rank"])
        lines = [
            (
                row["key"],
                row["operations"],
                row["expired"],
                f"{count_text(row['operations'])}  ({share_text(row['share'])}), {count_text(row['expired'])} expired",
            )
            for row in rows[:8]
        ]
        svg = plots.bars(f"Busiest keys of {name}", lines, "var(--bar)", "var(--expired)")
        figures.append(figure(f"{name}: {rows[0]['keys']:,} key{'' if rows[0]['keys'] == 1 else 's'}", svg))
    how = (
        "The keys that most operations were watched under, as a share of the purgatory's operations. The warning "
        "colour shows those that expired. An operation with several keys counts under each of them, so shares may "
        "add up to more than 100%."
    )
    return section("Hot keys", how, "".join(figures))
