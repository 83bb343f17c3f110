"""The planner's page: what was chosen and why, and the trade-offs behind it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from purgatory.pipeline import plots
from purgatory.pipeline.page import figure, section, tile
from purgatory.pipeline.plots import Series, count_text, duration_text, share_text
from purgatory.pipeline.style import shell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plan(
    found: Mapping[str, Sequence[Mapping[str, Any]]], chosen: Sequence[tuple[str, int, str]], *, exact: bool
) -> str:
    """The whole page."""
    values = {name: value for name, value, _ in chosen}
    tiles = "".join(tile(f"{value:,}", name, "") for name, value, _ in chosen)
    reasons = "".join(
        f'<li class="good"><b>{escape(name)} = {value:,}</b><p>{escape(why)}.</p></li>' for name, value, why in chosen
    )
    parts = [
        f'<section><h2>What it would choose, and why</h2><ul class="findings">{reasons}</ul></section>',
        _timeouts(found["timeouts"], values, exact=exact),
        _wheels(found["wheels"]),
        _purges(found["purges"], values),
        _shards(found["shards"], values),
    ]
    about = "every operation's outcome under every timeout, exactly" if exact else "estimates, up to what was observed"
    return shell("What if", about, tiles, "".join(part for part in parts if part), "a grid of settings")


def _timeouts(rows: Sequence[Mapping[str, Any]], values: Mapping[str, int], *, exact: bool) -> str:
    known = [row for row in rows if row["expiry_share"] is not None]
    if not known:
        return ""
    at = [row["timeout_ms"] for row in known]
    mark = values.get("timeout_ms")
    shares = Series("expire", "var(--expired)", [row["expiry_share"] for row in known])
    body = figure("Share that expires", plots.curve("Expiry share", at, shares, x_text=duration_text, mark=mark))
    if exact:
        parked = Series("parked", "var(--a)", [row["mean_parked"] for row in known])
        body += figure("Parked on average", plots.curve("Parked", at, parked, x_text=duration_text, mark=mark))
    names = ["timeout", "expire", *(["mean wait", "parked on average"] if exact else [])]
    lines = []
    for row in rows:
        share = row["expiry_share"]
        cells = [duration_text(row["timeout_ms"]), "not known" if share is None else share_text(share)]
        if exact:
            cells += [duration_text(row["mean_wait_ms"]), f"{row['mean_parked']:,.1f}"]
        lines.append(cells)
    how = "A longer timeout lets fewer expire, and parks more: the two sides of the same choice."
    if not exact:
        how += " Where nobody was let wait that long, a journal can't know."
    return section("Timeouts", how, body + _table(names, lines))


def _wheels(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ["tick", "wheel size", "levels", "re-insertions", "each", "late by at most"]
    lines = [
        [
            duration_text(row["tick_ms"]),
            str(row["wheel_size"]),
            str(row["levels"]),
            count_text(row["reinsertions"]),
            f"{row['reinsertions_each']:.3f}",
            duration_text(row["late_ms_at_most"]),
        ]
        for row in rows
    ]
    how = "Entries that go in at a higher level are put again as they come nearer, unless they are answered before."
    return section("The wheel", how, _table(names, lines))


def _purges(rows: Sequence[Mapping[str, Any]], values: Mapping[str, int]) -> str:
    if not rows:
        return ""
    at = [row["purge_interval"] for row in rows]
    worst = Series("entries", "var(--c)", [row["most_entries"] for row in rows])
    svg = plots.curve("Entries in one purge", at, worst, x_text=count_text, mark=values.get("purge_interval"))
    names = ["purge interval", "purges", "entries in the largest", "entries walked in all", "left at the end"]
    lines = [
        [f"{row[name]:,}" for name in ("purge_interval", "purges", "most_entries", "entries_scanned", "left_at_end")]
        for row in rows
    ]
    how = "A larger interval purges seldom and walks more each time, which is what stalls; a smaller one walks often."
    return section("Purging", how, figure("Entries walked by the largest purge", svg) + _table(names, lines))


def _shards(rows: Sequence[Mapping[str, Any]], values: Mapping[str, int]) -> str:
    if not rows:
        return ""
    at = [row["shards"] for row in rows]
    busiest = Series("busiest", "var(--e)", [row["busiest_shard"] for row in rows])
    svg = plots.curve("Busiest shard", at, busiest, x_text=count_text, mark=values.get("shards"))
    how = f"The busiest key alone takes {share_text(rows[-1]['busiest_key'])}: no number of shards gets below that."
    return section("Shards", how, figure("Share of the busiest shard", svg))


def _table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
