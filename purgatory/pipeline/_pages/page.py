"""The page: one HTML file with everything in it, which needs neither Spark nor a network to be read.

The page begins with a row of figures, and the findings by their cause, the weightiest on top. Lesser findings are
folded away, so that the plots begin on the first screen. The colours follow the reader's system, and a button overrides
that. A plot shows its figures to a pointer, a touch, and the arrow keys.

Findings are on cards: one card per cause, and one per incident. An incident is a stretch of time in which most of a
type's expiries lie. It rarely shows in one figure only: operations expire, answers are slow, and more operations are
parked. Findings about the same stretch are on one card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import attrs

from purgatory.journal.records.normal import CANCELLED, EXPIRED
from purgatory.pipeline._pages import listings, sections
from purgatory.pipeline._pages.findings import TONES, Finding, Tone, find
from purgatory.pipeline._pages.parts import shell, tile
from purgatory.pipeline._pages.tables import Tables, total
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text

_SHOWN: Final = 4
_LINES: Final = 2
_NAMED: Final = 3


def page(tables: Tables, title: str) -> str:
    """The whole page. Without a title the heading names the instances that wrote the journal."""
    parts = [
        _findings(cards(find(tables), tables)),
        sections.outcomes(tables),
        listings.changes(tables),
        sections.latency(tables),
        sections.waiting(tables),
        sections.survival(tables),
        sections.occupancy(tables),
        sections.expiries(tables),
        sections.lateness(tables),
        sections.keys(tables),
        listings.slowest(tables),
        listings.raised(tables),
        listings.instances(tables),
        listings.summary(tables),
        listings.about(tables),
    ]
    body = "\n".join(part for part in parts if part)
    name = tables.journals[0].rpartition("/")[2] if tables.journals else ""
    source = f"the journal in {name}" if len(tables.journals) == 1 else f"{len(tables.journals)} journals"
    return shell(title or _instances(tables), listings.about_when(tables), _tiles(tables), body, source)


def _instances(tables: Tables) -> str:
    names = sorted({row["instance"] for row in tables.instances if row["instance"]})
    if not names:
        return f"{total(tables.outcomes, 'operations'):,} delayed operations"
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _tiles(tables: Tables) -> str:
    operations = total(tables.outcomes, "operations")
    cancelled = total(tables.normally(tables.outcomes, CANCELLED), CANCELLED)
    answered = sum(total(tables.outcomes, name) for name in ("immediate", "satisfied")) + cancelled
    answered += total(tables.normally(tables.outcomes, EXPIRED), EXPIRED)
    late = total(tables.outcomes, "late")
    expired = total(tables.failing(tables.outcomes), "expired")
    others = total(tables.outcomes, "cancelled") + total(tables.outcomes, "forced") - cancelled
    wasted, checks = total(tables.outcomes, "wasted_checks"), total(tables.outcomes, "checks")
    peak = sum(row["peak"] for row in tables.peaks)
    rate = tables.per_second(operations)
    how = f"{expired:,} expired"
    how += "".join(f", {n:,} {what}" for n, what in ((late, "late"), (others, "cancelled or forced")) if n)
    tiles = [
        (count_text(operations), "operations", "within a second" if rate is None else f"{count_text(rate)} per second"),
        (share_text((answered - late) / max(1, operations)), "answered in time", how),
        _typical(tables),
        (count_text(peak), "parked at most", "sum of the purgatories' peaks" if len(tables.peaks) > 1 else ""),
        (share_text(wasted / checks) if checks else "0%", "wasted checks", f"of {count_text(checks)}"),
    ]
    return "".join(tile(*each) for each in tiles)


def _typical(tables: Tables) -> tuple[str, str, str]:
    """The median of the type with the most answers, over the whole time."""
    if not tables.waiting:
        return "-", "typical wait", "nothing was answered"
    row = max(tables.waiting, key=lambda row: int(row["answered"]))
    name = tables.display_name((row["purgatory"], row["type"]))
    return duration_text(row["p50_ms"]), "typical wait", f"median of {name}"


def _findings(cards: Sequence[Card]) -> str:
    shown = "".join(map(_card, cards[:_SHOWN]))
    rest = "".join(map(_card, cards[_SHOWN:]))
    more = f"<details><summary>{len(cards) - _SHOWN} more</summary><ul class=findings>{rest}</ul></details>"
    body = f"<ul class=findings>{shown}</ul>{more if rest else ''}"
    return f"<section><h2>What stands out</h2>{body}</section>"


def _card(card: Card) -> str:
    lines = [f"<p><b>{escape(each.head)}</b> {escape(each.text)}</p>" for each in card.findings]
    few, rest = "".join(lines[:_LINES]), "".join(lines[_LINES:])
    more = f"<details><summary>{len(lines) - _LINES} more</summary>{rest}</details>" if rest else ""
    return f'<li class="{card.tone}"><h3>{escape(card.cause)}</h3>{few}{more}</li>'


@attrs.frozen
class Card:
    """The findings of one cause or of one incident, the weightiest first."""

    cause: str
    findings: tuple[Finding, ...]

    @property
    def tone(self) -> Tone:
        """The worst tone of the findings."""
        return max((finding.tone for finding in self.findings), key=TONES.index)


def cards(findings: Sequence[Finding], tables: Tables) -> list[Card]:
    """The cards, in the order of the weightiest finding of each."""
    incident = _incident(findings, tables.window_us)
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[_card_name(incident, tables) if finding in incident else finding.cause].append(finding)
    return [Card(cause, tuple(each)) for cause, each in groups.items()]


def _incident(findings: Sequence[Finding], margin_us: int) -> list[Finding]:
    """The findings about the weightiest incident, if there are several: they overlap it, or are a window away."""
    first = next((finding for finding in findings if finding.begins_incident), None)
    if first is None or first.at is None:
        return []
    start, end = first.at[0] - margin_us, first.at[1] + margin_us
    inside = [finding for finding in findings if finding.at and finding.at[0] < end and start < finding.at[1]]
    return inside if len(inside) > 1 else []


def _card_name(incident: Iterable[Finding], tables: Tables) -> str:
    start, end = next(finding.at for finding in incident if finding.begins_incident and finding.at)
    return f"Incident, {tables.clock(start)} to {tables.clock(end)}"
