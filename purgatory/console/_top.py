"""The state as a screenful of text: what ``purgatory top`` shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from rich.columns import Columns
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

OUTCOMES: Final = {
    "immediate": "blue",
    "satisfied": "green",
    "expired": "dark_orange",
    "cancelled": "bright_black",
    "forced": "magenta",
}
#: The same in a terminal narrower than :data:`_WIDE`.
_SHORT: Final = {
    "immediate": "imm.",
    "satisfied": "satis.",
    "expired": "exp.",
    "cancelled": "canc.",
    "forced": "forced",
}
_WIDE: Final = 120
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_STALLED_MS: Final = 1000
#: Whether a process follows a feed. None: it only publishes.
_FOLLOWING: Final = {
    True: Text("following", "green"),
    False: Text("NOT FOLLOWING", "bold red"),
    None: Text("publishes only", "bright_black"),
}

Json = dict[str, Any]


def duration(ms: float | None) -> str:
    """Milliseconds in the unit that suits.

    >>> duration(1.25), duration(1500), duration(90_000), duration(None)
    ('1.2 ms', '1.5 s', '1.5 min', '-')
    """
    if ms is None:
        return "-"
    for limit, unit, size in ((1000, "ms", 1), (60_000, "s", 1000), (3_600_000, "min", 60_000)):
        if abs(ms) < limit:
            return f"{ms / size:.1f} {unit}"
    return f"{ms / 3_600_000:.1f} h"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as blocks, scaled to the greatest."""
    shown = values[-width:]
    most = max(1.0, *shown) if shown else 1.0
    return "".join(_BLOCKS[min(8, round(8 * max(0.0, value) / most))] for value in shown)


def screen(
    state: Json, history: Mapping[str, Sequence[float]], url: str, *, keys: int = 8, width: int = 120
) -> RenderableType:
    """All of it, for a terminal of that width. Texts that came from keys are shown as they are, not as markup."""
    narrow = width < _WIDE
    parts: list[RenderableType] = [
        _head(state, url, narrow=narrow),
        _purgatories(state["purgatories"], history, narrow=narrow),
    ]
    if state.get("feeds"):
        parts.append(_feeds(state["feeds"], narrow=narrow))
    if state.get("gates"):
        parts.append(_gates(state["gates"]))
    parts += [_timer(timer) for timer in state["timers"]]
    lists = [_keys(purgatory, keys) for purgatory in state["purgatories"] if purgatory["oldest"]]
    if lists:
        parts.append(Columns(lists, equal=True, expand=True))
    return Group(*parts)


def _head(state: Json, url: str, *, narrow: bool) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(state["at"]))
    head = Text.assemble(("purgatory", "bold dark_orange"), f"  {url}  process {state['pid']}  {at}")
    return head.append("\noutcomes per second: immediate, satisfied, ...", "bright_black") if narrow else head


def _purgatories(purgatories: Iterable[Json], history: Mapping[str, Sequence[float]], *, narrow: bool) -> Table:
    """One row per purgatory. In a narrow terminal the curve is left out, and outcomes have short headings."""
    table = Table(expand=True, box=None, header_style="bright_black", pad_edge=False)
    table.add_column("purgatory", no_wrap=True, overflow="ellipsis", ratio=1, min_width=9)
    table.add_column("parked", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("over time", no_wrap=True)
    table.add_column("keys", justify="right", no_wrap=True)
    for outcome, color in OUTCOMES.items():
        heading = _SHORT[outcome] if narrow else f"{outcome}/s"
        table.add_column(heading, justify="right", style=color, no_wrap=True)
    table.add_column("rejected", justify="right", no_wrap=True)
    table.add_column("errors", justify="right", no_wrap=True)
    for seen in purgatories:
        limit = f" of {seen['capacity']:,}" if seen["capacity"] and not narrow else ""
        curve = () if narrow else (Text(sparkline(history.get(seen["id"], ()), 30), "blue"),)
        table.add_row(
            Text(seen["id"], "bold"),
            f"{seen['parked']:,}{limit}",
            *curve,
            f"{seen['keys']:,}",
            *(_rate(seen, outcome, narrow=narrow) for outcome in OUTCOMES),
            _count(seen["rejected"]),
            _count(seen["errors"]),
        )
    return table


def _rate(seen: Json, outcome: str, *, narrow: bool) -> Text:
    """How many per second end that way. Those that their type calls normal are grey, or counted beside the others."""
    rate, normal = seen["rates"][outcome], seen.get("normal_rates", {}).get(outcome, 0.0)
    text = f"{rate:,.0f}"
    if not round(normal):
        return Text(text)
    if round(rate - normal) and not narrow:
        text += f" ({normal:,.0f} normal)"
    return Text(text, "" if round(rate - normal) else "bright_black")


def _feeds(feeds: Iterable[Json], *, narrow: bool) -> Table:
    """One row per feed. In a narrow terminal the position, which may be long, and what is published are left out."""
    table = Table(expand=True, box=None, header_style="bright_black", pad_edge=False)
    table.add_column("feed", no_wrap=True, overflow="ellipsis", ratio=1, min_width=9)
    table.add_column("state", no_wrap=True)
    if not narrow:
        table.add_column("position", no_wrap=True, overflow="ellipsis", max_width=36)
    for name in ("lag", "events", "applied/s", *(() if narrow else ("published/s",))):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("gaps", "reconn." if narrow else "reconnections", "skipped"):
        table.add_column(name, justify="right", no_wrap=True)
    for seen in feeds:
        totals, rates, lag = seen["totals"], seen["rates"], seen["lag_events"]
        table.add_row(
            Text(seen["id"], "bold"),
            _FOLLOWING[seen["is_following"]],
            *(() if narrow else (Text(seen["position"] or "-"),)),
            duration(seen["lag_ms"]),
            "-" if lag is None else f"{lag:,}",
            f"{rates['applied']:,.0f}",
            *(() if narrow else (f"{rates['published']:,.0f}",)),
            _count(totals["gaps"]),
            f"{totals['reconnections']:,}",
            _count(totals["skipped"]),
        )
    return table


def _gates(gates: Iterable[Json]) -> Table:
    """One row per gate."""
    table = Table(expand=True, box=None, header_style="bright_black", pad_edge=False)
    table.add_column("gate", no_wrap=True, overflow="ellipsis", ratio=1, min_width=9)
    for name in ("inside", "permits", "waiting", "hold", "granted", "late", "full"):
        table.add_column(name, justify="right", no_wrap=True)
    for seen in gates:
        totals = seen["totals"]
        table.add_row(
            Text(seen["id"], "bold"),
            f"{seen['in_use']:,}",
            f"{seen['permits']:,}",
            f"{seen['waiting']:,}",
            duration(seen["hold_ms"]),
            f"{totals['granted']:,}",
            _count(totals["late"]),
            _count(totals["full"]),
        )
    return table


def _timer(timer: Json) -> Panel:
    """The wheel: one line per level, one cell per bucket, and the hand in reverse."""
    size, lines = timer["wheel_size"], []
    most = max(1, *(tasks for level in timer["buckets"] for tasks in level))
    for depth in reversed(range(len(timer["buckets"]))):
        level = timer["buckets"][depth]
        each_ms = timer["tick_ms"] * size**depth
        here = timer["now_tick"] // size**depth % len(level)
        line = Text(f"{duration(each_ms):>9} per bucket  ", "bright_black")
        for slot, tasks in enumerate(level):
            block = _BLOCKS[max(1, round(8 * (tasks / most) ** 0.5))] if tasks else "·"
            line.append(block, "reverse blue" if slot == here else "dark_orange" if tasks else "bright_black")
        line.append(f"  {sum(level):,}")
        lines.append(line)
    lines.append(_reaper(timer))
    return Panel(Group(*lines), title=Text(f"wheel {timer['name']}"), title_align="left", border_style="bright_black")


def _reaper(timer: Json) -> Text:
    reaper = timer["reaper"]
    behind_ms = max(timer["overdue_ms"], timer["batch_ms"])
    if reaper is None:
        health = ("driven by hand", "bright_black")
    elif not reaper["alive"]:
        health = ("REAPER DEAD", "bold red")
    elif behind_ms > _STALLED_MS:
        health = (f"{duration(behind_ms)} BEHIND", "bold red")
    else:
        health = ("reaper on time", "green")
    late = timer["late_ms"]
    return Text.assemble(
        health,
        f"   {timer['pending']:,} pending   99% within {duration(late['p99'])}   half within {duration(late['p50'])}",
        f"   {reaper['restarts'] if reaper else 0} restarts   {timer['handed_over']:,} given to the executor",
    )


def _keys(seen: Json, most: int) -> Panel:
    table = Table(expand=True, box=None, header_style="bright_black", pad_edge=False)
    table.add_column("waiting longest under", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("type", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("age", "left", "checks"):
        table.add_column(name, justify="right", no_wrap=True)
    for waiting in seen["oldest"][:most]:
        over = waiting["left_ms"] is not None and waiting["left_ms"] < 0
        table.add_row(
            _Key(waiting["key"]),
            Text(waiting["type"]),
            duration(waiting["age_ms"]),
            Text(duration(waiting["left_ms"]), "bold red" if over else ""),
            f"{waiting['checks']:,}",
        )
    hot = Text("hottest: ", "bright_black")
    hot.append(
        ", ".join(f"{_shorten_middle(key['key'], 32)} {key['entries']:,}" for key in seen["hottest"][:4]), "none"
    )
    if seen["sampled"]:
        hot.append(f"  (sampled: {seen['visited']:,} of {seen['keys']:,} keys at a time)", "yellow")
    return Panel(Group(table, hot), title=Text(seen["id"]), title_align="left", border_style="bright_black")


class _Key:
    """A key in one cell, shortened in the middle to the cell's width."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_shorten_middle(self._key, options.max_width), no_wrap=True, overflow="ellipsis")


def _shorten_middle(text: str, most: int) -> str:
    """The text, shortened in the middle: both ends of a key identify it better than its beginning alone."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) + 1 - most + most // 2 :]}"


def _count(number: int) -> Text:
    return Text(f"{number:,}", "bold red" if number else "bright_black")
