"""The page: one HTML file with everything in it, which needs neither Spark nor a network to be read.

What comes first is what matters: the findings, the weightiest on top. Then the plots, each with a sentence
on how to read it. The colours follow the reader's system, and a button overrides that.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline import plots
from purgatory.pipeline.findings import Finding, Row, Tables, by_type, find, total
from purgatory.pipeline.plots import Series, clock_text, count_text, duration_text, share_text
from purgatory.pipeline.style import shell

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUTCOMES: Final = ("immediate", "satisfied", "expired", "cancelled", "forced")
_PALETTE: Final = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)", "var(--f)")
_MOST: Final = 6
_FEW: Final = 20  # what happened less often than this is in the table, and in no plot


def page(tables: Tables, title: str, source: str) -> str:
    """The whole page."""
    sections = [
        _findings(find(tables)),
        _outcomes(tables),
        _latency(tables),
        _survival(tables),
        _occupancy(tables),
        _heat(tables),
        _keys(tables),
        _summary(tables),
    ]
    body = "\n".join(section for section in sections if section)
    return shell(title, _when(tables), _tiles(tables), body, source)


def tile(value: str, name: str, more: str) -> str:
    """A figure that is to be seen from afar."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(more)}</small></div>'


def _when(tables: Tables) -> str:
    first = datetime.fromtimestamp(tables.first_us / 1e6, UTC)
    last = datetime.fromtimestamp(tables.last_us / 1e6, UTC)
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%d %b %Y, %H:%M:%S}"
    return f"{first:%d %b %Y, %H:%M:%S} to {end} UTC"


def _tiles(tables: Tables) -> str:
    operations = total(tables.outcomes, "operations")
    expired = total(tables.failing(tables.outcomes), "expired")
    wasted, checks = total(tables.outcomes, "wasted_checks"), total(tables.outcomes, "checks")
    peak = sum(row["peak"] for row in tables.peaks)
    seconds = tables.span_us / 1e6
    tiles = [
        (count_text(operations), "operations", f"{count_text(operations / seconds)} a second"),
        (share_text(1 - expired / operations), "answered in time", f"{expired:,} expired"),
        (_typical(tables), "typical wait", "median of the busiest type"),
        (count_text(peak), "parked at most", "sum of the purgatories' peaks"),
        (share_text(wasted / checks) if checks else "0%", "checks in vain", f"of {count_text(checks)}"),
    ]
    return "".join(tile(*each) for each in tiles)


def _typical(tables: Tables) -> str:
    groups = by_type(tables.latency)
    if not groups:
        return "-"
    rows = max(groups.values(), key=lambda rows: total(rows, "answered"))
    ordered = sorted(row["p50_ms"] for row in rows)
    return duration_text(ordered[len(ordered) // 2])


def _findings(findings: Sequence[Finding]) -> str:
    items = "".join(f'<li class="{f.tone}"><b>{escape(f.head)}</b><p>{escape(f.text)}</p></li>' for f in findings[:10])
    return f'<section><h2>What stands out</h2><ul class="findings">{items}</ul></section>'


def section(heading: str, how: str, body: str) -> str:
    """A part of the page: a heading, how to read it, and what there is to read."""
    return f"<section><h2>{escape(heading)}</h2><p class=how>{escape(how)}</p>{body}</section>"


def figure(caption: str, svg: str, keys: str = "") -> str:
    """A plot under its caption and the names of its colours."""
    head = f"<figcaption><b>{escape(caption)}</b>{keys}</figcaption>" if caption or keys else ""
    return f"<figure>{head}{svg}</figure>"


def _windows(tables: Tables, rows: Sequence[Row]) -> list[int]:
    """Every window from the first to the last, also those without a row."""
    known = [row["window_us"] for row in rows]
    return list(range(min(known), max(known) + 1, tables.window_us))


def _biggest(groups: dict[tuple[str, str], list[Row]], column: str) -> list[tuple[tuple[str, str], list[Row]]]:
    ranked = sorted(groups.items(), key=lambda item: -total(item[1], column))[:_MOST]
    return [item for item in ranked if total(item[1], column) >= _FEW] or ranked


def _name(kind: tuple[str, str]) -> str:
    return f"{kind[0]} · {kind[1]}"


def _named(tables: Tables, kind: tuple[str, str], outcome: str) -> tuple[str, str]:
    """What an outcome is called, and its colour: to expire is no alarm where it is the normal end."""
    if outcome == "expired" and kind[1] in tables.expiry_normal:
        return "deadline (normal)", "var(--bar)"
    return outcome, f"var(--{outcome})"


def _outcomes(tables: Tables) -> str:
    at = _windows(tables, tables.outcomes)
    figures = []
    for kind, rows in _biggest(by_type(tables.outcomes), "operations"):
        by_window = {row["window_us"]: row for row in rows}
        series = [
            Series(*_named(tables, kind, name), [by_window.get(us, {}).get(name, 0) for us in at])
            for name in _OUTCOMES
            if total(rows, name)
        ]
        operations, expired = total(rows, "operations"), total(rows, "expired")
        how = "ended by their deadline, as is normal" if kind[1] in tables.expiry_normal else "expired"
        caption = f"{_name(kind)}: {count_text(operations)} operations, {share_text(expired / operations)} {how}"
        svg = plots.stacked(caption, at, tables.window_us, series, 210)
        figures.append(figure(caption, svg, plots.legend(series)))
    how = f"Operations that left, by how they left, for each {duration_text(tables.window_us / 1000)}."
    return section("Outcomes over time", how, "".join(figures))


def _latency(tables: Tables) -> str:
    if not tables.latency:
        return ""
    at = _windows(tables, tables.outcomes)
    figures = []
    for kind, rows in _biggest(by_type(tables.latency), "answered"):
        by_window = {row["window_us"]: row for row in rows}
        series = [
            Series(text, colour, [by_window.get(us, {}).get(f"{name}_ms", math.nan) for us in at])
            for name, text, colour in (
                ("p50", "half of them within", "var(--a)"),
                ("p90", "90%", "var(--b)"),
                ("p99", "99%", "var(--c)"),
            )
        ]
        svg = plots.lines(f"Waits of {_name(kind)}", at, series, duration_text, log=True, height=220)
        figures.append(figure(_name(kind), svg, plots.legend(series)))
    how = (
        "How long answered operations waited: exact percentiles, logarithmic scale. Those that expired aren't in here."
    )
    return section("Waiting", how, "".join(figures))


def _survival(tables: Tables) -> str:
    groups = [(k, rows) for k, rows in _biggest(by_type(tables.failing(tables.survival)), "left") if len(rows) > 1]
    if not groups:
        return ""
    delays: dict[tuple[str, str], int] = {}
    for kind, rows in by_type(tables.outcomes).items():
        delays[kind] = max(row["delay_ms"] for row in rows)
    curves, waits, marks = [], [], []
    for (kind, rows), colour in zip(groups, _PALETTE, strict=False):
        thin = _thin(sorted(rows, key=lambda row: row["wait_ms"]), 240)
        curves.append(Series(_name(kind), colour, [row["survival"] for row in thin]))
        waits.append([max(row["wait_ms"], 1) for row in thin])
        marks.append(min(delays[kind], thin[-1]["wait_ms"]))
    svg = plots.survival("Share of operations that need longer than a timeout", curves, waits, marks)
    how = (
        "Read it from below: choose a timeout, go up to the curve, and find the share of operations that it would "
        "cut off. Dotted: the timeout in use. A curve ends where nobody was let wait longer; "
        "what lies beyond isn't known."
    )
    return section("Which timeout would do", how, figure("", svg, plots.legend(curves)) + _advice(tables))


def _thin(rows: list[Row], most: int) -> list[Row]:
    """At most so many rows, evenly over the curve's steps; both ends stay."""
    if len(rows) <= most:
        return rows
    kept = {round(n * (len(rows) - 1) / (most - 1)) for n in range(most)}
    return [row for n, row in enumerate(rows) if n in kept]


def _advice(tables: Tables) -> str:
    often = {kind for kind, rows in by_type(tables.outcomes).items() if total(rows, "operations") >= _FEW}
    groups = {kind: rows for kind, rows in by_type(tables.failing(tables.advice)).items() if kind in often}
    if not groups:
        return ""
    targets = sorted({row["target"] for rows in groups.values() for row in rows}, reverse=True)
    head = "".join(f"<th>at most {share_text(t)} expire</th>" for t in targets)
    body = []
    for kind, rows in groups.items():
        by_target = {row["target"]: row for row in rows}
        cells = []
        for target in targets:
            row = by_target.get(target)
            if row is None or row["timeout_ms"] is None:
                there = "" if row is None else f" title='{share_text(row['survival_there'])} still wait at the end'"
                cells.append(f"<td class=unknown{there}>not known</td>")
            else:
                cells.append(f"<td>{duration_text(row['timeout_ms'])}</td>")
        body.append(f"<tr><th>{escape(_name(kind))}</th>{''.join(cells)}</tr>")
    return (
        f"<table><thead><tr><th>shortest timeout so that</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _occupancy(tables: Tables) -> str:
    groups: dict[str, list[Row]] = {}
    for row in tables.occupancy:
        groups.setdefault(row["purgatory"], []).append(row)
    if not groups:
        return ""
    peaks = {row["purgatory"]: (float(row["at_us"]), float(row["peak"])) for row in tables.peaks}
    figures = []
    for (name, rows), colour in zip(groups.items(), _PALETTE, strict=False):
        rows.sort(key=lambda row: row["slot_us"])
        width = rows[1]["slot_us"] - rows[0]["slot_us"] if len(rows) > 1 else tables.window_us
        at = [row["slot_us"] for row in rows]
        series = Series(name, colour, [row["mean"] for row in rows])
        svg = plots.area(f"Parked in {name}", at, width, series, peaks.get(name))
        figures.append(figure(name, svg))
    how = "Operations parked at the same time: the time-weighted mean, and the exact peak."
    return section("Occupancy", how, "".join(figures))


def _heat(tables: Tables) -> str:
    rows = [row for row in tables.failing(tables.expiries) if row["key"] is not None]
    if not rows:
        return ""
    at = _windows(tables, tables.outcomes)
    cells: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        key = (row["type"], row["key"])
        cells.setdefault(key, {}).setdefault(row["window_us"], 0)
        cells[key][row["window_us"]] += row["expired"]
    ranked = sorted(cells.items(), key=lambda item: -sum(item[1].values()))[:14]
    several = len({kind for (kind, _), _ in ranked}) > 1
    lines = [
        (f"{key} ({kind})" if several else key, [counts.get(us, 0) for us in at]) for (kind, key), counts in ranked
    ]
    svg = plots.heat("Expiries by key and time", at, tables.window_us, lines, "var(--expired)")
    how = "Each row is a key, each cell a window: the stronger the colour, the more operations expired there and then."
    return section("Where and when operations expire", how, figure("", svg))


def _keys(tables: Tables) -> str:
    groups: dict[str, list[Row]] = {}
    for row in tables.hot_keys:
        groups.setdefault(row["purgatory"], []).append(row)
    figures = []
    for name, rows in list(groups.items())[:_MOST]:
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
        figures.append(figure(f"{name}: {rows[0]['keys']:,} keys", svg))
    how = "The keys that most operations were watched under; in the warning colour, those that expired."
    return section("Hot keys", how, "".join(figures)) if figures else ""


def _summary(tables: Tables) -> str:
    body = []
    seen = [name for name in _OUTCOMES if total(tables.outcomes, name)]  # a column of zeros is one too many
    for kind, rows in by_type(tables.outcomes).items():
        operations = total(rows, "operations")
        cells: list[Any] = [f"{operations:,}", *(f"{total(rows, name):,}" for name in seen)]
        cells += [share_text(total(rows, "expired") / operations)]
        cells += [duration_text(total(rows, "waited_us") / operations / 1000)]
        cells += [f"{total(rows, 'checks') / operations:.1f}", f"{total(rows, 'errors'):,}"]
        body.append(f"<tr><th>{escape(_name(kind))}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    names = ("operations", *seen, "expiry share", "mean wait", "checks each", "errors")
    head = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return section("In numbers", f"Times are UTC. {clock_text(tables.first_us, 1)} is the first arrival.", table)
