"""The planner's page: the chosen settings, the reasons, and the trade-offs behind them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from purgatory.pipeline._pages import plots
from purgatory.pipeline._pages.axes import Series
from purgatory.pipeline._pages.listings import missing as unread
from purgatory.pipeline._pages.parts import figure, listing, section, shell, table, tile
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text
from purgatory.pipeline._summaries.groups import rows_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from purgatory.pipeline._summaries.choices import Choice
    from purgatory.pipeline._summaries.groups import Row

_TILES: Final = 6
NORMAL: Final = "an expiry or a cancellation is a normal end of its operations"
UNEXPLAINED: Final = "the trace does not say why some of its operations left ({})"


def plan(
    tables: Mapping[str, Sequence[Row]],
    chosen: Sequence[Choice],
    *,
    exact: bool,
    missing: Sequence[str] = (),
    without: Mapping[str, str] | None = None,
) -> str:
    """The whole page. For the types ``without`` advice on timeouts, it says why."""
    shared = [each for each in chosen if each.of == "the timer"]
    tiles = "".join(tile(f"{each.value:,}", each.setting, each.of) for each in (shared or chosen)[:_TILES])
    reasons = "".join(
        f'<li class="good"><h3>{escape(each.of)}</h3><p><b>{escape(each.setting)} = {each.value:,}</b> '
        f"{escape(each.why)}.</p></li>"
        for each in chosen
    )
    reasons += "".join(
        f"<li><h3>{escape(name)}</h3><p>No timeout is advised: {escape(why)}.</p></li>"
        for name, why in (without or {}).items()
    )
    lost = f"<section><h2>Rows are missing</h2>{unread(missing)}</section>" if missing else ""
    parts = [
        lost,
        f'<section><h2>What it would choose, and why</h2><ul class="findings">{reasons}</ul></section>',
        _timeouts(tables["timeouts"], chosen, exact=exact),
        _wheels(tables["wheels"]),
        _purges(tables["purges"], chosen),
        _shards(tables["shards"]),
    ]
    about = "every operation's outcome under every timeout, exactly" if exact else "estimates, up to what was observed"
    return shell("What if", about, tiles, "".join(part for part in parts if part), "a grid of settings")


def _value(chosen: Sequence[Choice], setting: str, of: str) -> int | None:
    return next((each.value for each in chosen if (each.setting, each.of) == (setting, of)), None)


def _timeouts(rows: Sequence[Row], chosen: Sequence[Choice], *, exact: bool) -> str:
    figures, lines = [], []
    for kind, mine in rows_by(rows, "purgatory", "type").items():
        name = " · ".join(filter(None, kind))
        known = [row for row in mine if row["expiry_share"] is not None]
        if known:
            at = [row["timeout_ms"] for row in known]
            mark = _value(chosen, "timeout_ms", name)
            shares = Series("expire", "var(--expired)", [row["expiry_share"] for row in known])
            svg = plots.curve(f"Expiry share of {name}", at, shares, x_text=duration_text, mark=mark)
            figures.append(figure(f"{name}: share that expires", svg))
        for row in mine:
            share = row["expiry_share"]
            cells = [name, duration_text(row["timeout_ms"]), "not known" if share is None else share_text(share)]
            if exact:
                cells += [duration_text(row["mean_wait_ms"]), f"{row['mean_parked']:,.1f}", f"{row['still_parked']:,}"]
            lines.append(cells)
    names = ["", "timeout", "expire", *(["mean wait", "parked on average", "parked at the end"] if exact else [])]
    how = "A longer timeout lets fewer expire, and parks more: the two sides of the same choice."
    if exact:
        how += " The share is of the operations whose deadline lies within the trace."
    else:
        how += " A journal cannot know this for times that no operation was allowed to wait."
    return section("Timeouts", how, "".join(figures) + table(names, lines)) if lines else ""


def _wheels(rows: Sequence[Row]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "tick": lambda row: duration_text(row["tick_ms"]),
        "wheel size": lambda row: str(row["wheel_size"]),
        "levels": lambda row: str(row["levels"]),
        "re-insertions": lambda row: count_text(row["reinsertions"]),
        "each": lambda row: f"{row['reinsertions_each']:.3f}",
        "late by at most": lambda row: duration_text(row["late_ms_at_most"]),
    }
    how = "Entries that go in at a higher level are put again as they come nearer, unless they are answered before."
    return section("The wheel", how, listing(rows, columns))


def _purges(rows: Sequence[Row], chosen: Sequence[Choice]) -> str:
    figures = []
    for name, mine in rows_by(rows, "purgatory").items():
        at = [max(1, row["purge_interval"]) for row in mine]
        anew = Series("anew", "var(--c)", [row["anew_share"] for row in mine])
        mark = _value(chosen, "purge_interval", name)
        svg = plots.curve(f"Keys of {name} made again", at, anew, x_text=count_text, mark=mark)
        figures.append(figure(f"{name}: waits that find their key forgotten", svg))
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row["purgatory"],
        "purge interval": lambda row: f"{row['purge_interval']:,}",
        "keys": lambda row: f"{row['keys']:,}",
        "in use on average": lambda row: f"{row['in_use']:,.1f}",
        "made again": lambda row: f"{row['anew']:,}",
        "idle at most": lambda row: f"{row['idle_at_most']:,}",
    }
    how = (
        "An idle key is remembered for a while: a larger interval remembers more of them, a smaller "
        "one forgets keys that are wanted again."
    )
    return section("Idle keys", how, "".join(figures) + listing(rows, columns))


def _shards(rows: Sequence[Row]) -> str:
    figures = []
    for name, mine in rows_by(rows, "purgatory").items():
        busiest = Series("busiest", "var(--e)", [row["busiest_shard"] for row in mine])
        svg = plots.curve(f"Busiest shard of {name}", [row["shards"] for row in mine], busiest, x_text=count_text)
        figures.append(figure(f"{name}: the busiest key alone takes {share_text(mine[-1]['busiest_key'])}", svg))
    how = "The share of the busiest shard. No number of shards gets below the busiest key's."
    return section("Shards", how, "".join(figures))
