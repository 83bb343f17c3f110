"""Occupancy: the parked operations by slot of time, and the exact peak."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from purgatory.pipeline._tables.relations import Widths
from purgatory.pipeline._tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINEST_US: Final = 1_000
_MOST_PARTS: Final = 400_000

#: Arrivals and departures. An operation that was in for no time at all was never parked.
_MOVES: Final = """select purgatory, case when change > 0 then created_us else finished_us end as at_us, change
    from records cross join (values (1), (-1)) as t(change) where wait_us > 0"""


def steps(widths: Widths) -> str:
    """The relation ``steps``: arrivals and departures by part of a slot.

    ``moved_us`` is what these changes add to the area under the curve until the end of the slot.
    """
    fine, slot = widths.fine_us, widths.slot_us
    return f"""select purgatory, at_us - at_us % {fine} as fine_us, count_if(change > 0) as arrived,
            count_if(change < 0) as gone, sum(change * ({slot} - at_us % {slot})) as moved_us
        from ({_MOVES}) as moves group by all"""


def occupancy(widths: Widths) -> Table:
    """Per purgatory and slot: the level at its end (``close``), its time-weighted mean, arrivals and departures.

    A running sum over slots gives the level at each slot's end. The mean follows from the same sums: in a slot that
    ends at E, an arrival at t adds E - t, a departure removes E - t, and what was there at its start adds the whole
    slot. So the area under the curve is exactly the sum of all waits::

        slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9: area = 2*10 + (10-4) - (10-9) = 25
    """
    width = widths.slot_us
    return Table(
        f"""with moved as (
            select purgatory, fine_us - fine_us % {width} as slot_us, sum(arrived) as arrived, sum(gone) as gone,
                sum(moved_us) as moved_us
            from steps group by all),
        ends as (select purgatory, min(slot_us) as first_us, max(slot_us) as last_us from moved group by all),
        slots as (
            select purgatory, first_us + n * {width} as slot_us
            from ends join range(0, {widths.slots}) as t(n) on first_us + n * {width} <= last_us),
        levels as (
            select s.purgatory, s.slot_us, coalesce(arrived, 0) as arrived, coalesce(gone, 0) as gone,
                coalesce(moved_us, 0) as moved_us,
                sum(coalesce(arrived - gone, 0)) over (partition by s.purgatory order by s.slot_us) as close_
            from slots as s left join moved as m on s.purgatory = m.purgatory and s.slot_us = m.slot_us),
        areas as (select *, (close_ - arrived + gone) * {width} + moved_us as area_us from levels)
        select purgatory, slot_us, close_, area_us / {width}, arrived, gone, area_us from areas""",
        "purgatory:text slot_us close mean:real arrived left area_us",
        "slot",
    )


#: The relation ``crowded``: the parts of a slot in which the peak of a purgatory may lie.
#:
#: Sorting all events to learn a few levels would be the most expensive part of a report. A slot that begins at level
#: 20 and has 5 arrivals cannot exceed 25. If the level was 26 at some slot's end, that slot need not be looked at.
CROWDED: Final = """with levels as (
        select *, sum(arrived - gone) over (partition by purgatory order by fine_us) as ends from steps),
    known as (
        select *, ends - arrived + gone as begins,
            max(greatest(ends, ends - arrived + gone)) over (partition by purgatory) as level
        from levels)
    select purgatory, fine_us, begins from known where arrived > 0 and ends + gone >= level"""


def highest(widths: Widths) -> str:
    """The relation ``highest``: the exact peak of each purgatory, from the events of its crowded slots in order."""
    return f"""with inside as (
            select /*+ broadcast(l) */ l.purgatory, fine_us, begins, at_us, sum(change) as change
            from ({_MOVES}) as m join crowded as l
                on m.purgatory = l.purgatory and m.at_us - m.at_us % {widths.fine_us} = fine_us
            group by all),
        reached as (
            select purgatory, at_us,
                begins + sum(change) over (partition by purgatory, fine_us order by at_us) as level
            from inside),
        ranked as (
            select purgatory, at_us, level, row_number() over (partition by purgatory order by level desc, at_us) as n
            from reached)
        select purgatory, at_us, level from ranked where n = 1"""


def peaks(widths: Widths) -> Table:
    """The exact peak of each purgatory, the instant at which it was first reached, and the mean level."""
    slot = widths.slot_us
    return Table(
        f"""with lasted as (
            select purgatory, max(fine_us) - max(fine_us) % {slot} - (min(fine_us) - min(fine_us) % {slot}) + {slot}
                as slots_us
            from steps group by all),
        waited as (select purgatory, sum(waited_us) as waited_us from sums group by all)
        select f.purgatory, level, at_us, waited_us / slots_us
        from highest as f join lasted as l on f.purgatory = l.purgatory
            join waited as w on f.purgatory = w.purgatory""",
        "purgatory:text peak at_us mean:real",
        "at",
    )


def widths_of(window_us: int, slot_us: int, span: Mapping[str, int]) -> Widths:
    """The widths for a journal's ``SPAN``.

    A peak is looked for in parts of a slot so short that few operations arrive in one, beside how much the level
    varies. With n operations per second that wait w seconds, about n * w are parked, give or take the root of that. In
    root(w / n) seconds just as many arrive. The parts divide a slot, so that both come from the same sums.
    """
    span_us, operations = span["last_us"] - span["first_us"], span["operations"]
    wanted = max(math.sqrt(span["waited_us"] * span_us) / max(1, operations), span_us / _MOST_PARTS, _FINEST_US)
    fine_us = next((width for width in range(math.ceil(wanted), slot_us) if not slot_us % width), slot_us)
    return Widths(window_us=window_us, slot_us=slot_us, fine_us=fine_us, slots=span_us // slot_us + 2)
