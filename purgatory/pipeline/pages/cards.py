"""Findings on cards: one card per cause, and one per incident.

An incident is a stretch of time in which most of a type's expiries lie. It rarely shows in one figure only: operations
expire, answers are slow, and more operations are parked. Findings about the same stretch are on one card.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from purgatory.pipeline.pages.findings import TONES, Finding, Tone
from purgatory.pipeline.pages.texts import clock_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from purgatory.pipeline.pages.tables import Tables


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
        groups[_named(incident, tables) if finding in incident else finding.cause].append(finding)
    return [Card(cause, tuple(each)) for cause, each in groups.items()]


def _incident(findings: Sequence[Finding], margin_us: int) -> list[Finding]:
    """The findings about the weightiest incident, if there are several: they overlap it, or are a window away."""
    first = next((finding for finding in findings if finding.begins_incident), None)
    if first is None or first.at is None:
        return []
    start, end = first.at[0] - margin_us, first.at[1] + margin_us
    found = [finding for finding in findings if finding.at and finding.at[0] < end and start < finding.at[1]]
    return found if len(found) > 1 else []


def _named(incident: Iterable[Finding], tables: Tables) -> str:
    start, end = next(finding.at for finding in incident if finding.begins_incident and finding.at)
    first, last = (clock_text(us, tables.span_us, tables.window_us) for us in (start, end))
    return f"Incident, {first} to {last}"
