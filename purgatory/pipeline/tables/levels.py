"""How many operations are parked: by slot of time, and at most."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from purgatory.pipeline.tables.relations import Table, Widths, schema

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINEST_US: Final = 1_000
_MOST_PARTS: Final = 400_000


_MOVES: Final = """moves as (
    select purgatory, created_us as at_us, 1 as change from records where wait_us > 0
    union all select purgatory, finished_us, -1 from records where wait_us > 0)"""
"""Arrivals and departures. An operation that was in for no time at all was never parked."""


def occupancy(widths: Widths) -> Table:
    """Per purgatory and slot: the level at its end (`close`), its time-weighted mean, arrivals and departures.

    A running sum over slots gives the level at each slot's end. The mean follows from the same sums: in a slot that
    ends at E, an arrival at t adds E - t, a departure removes E - t, and what was there at its start adds the whole
    slot. So the area under the curve is exactly the sum of all waits::

        slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9: area = 2*10 + (10-4) - (10-9) = 25
    """
    width = widths.slot_us
    return Table(
        f"""with {_MOVES},
        sums as (
            select purgatory, at_us - at_us % {width} as slot_us, count_if(change > 0) as arrived,
                count_if(change < 0) as gone, sum(change * ({width} - at_us % {width})) as moved_us
            from moves group by all),
        ends as (select purgatory, min(slot_us) as first_us, max(slot_us) as last_us from sums group by all),
        slots as (
            select purgatory, first_us + n * {width} as slot_us
            from ends join range(0, {widths.slots}) as t(n) on first_us + n * {width} <= last_us),
        levels as (
            select s.purgatory, s.slot_us, coalesce(arrived, 0) as arrived, coalesce(gone, 0) as gone,
                coalesce(moved_us, 0) as moved_us,
                sum(coalesce(arrived - gone, 0)) over (partition by s.purgatory order by s.slot_us) as close_
            from slots as s left join sums as m on s.purgatory = m.purgatory and s.slot_us = m.slot_us),
        areas as (select *, (close_ - arrived + gone) * {width} + moved_us as area_us from levels)
        select purgatory, slot_us, close_, area_us / {width}, arrived, gone, area_us from areas""",
        schema("purgatory:text slot_us close mean:real arrived left area_us"),
        "slot",
    )


def peaks(widths: Widths) -> Table:
    """The exact peak of each purgatory, the instant at which it was first reached, and the mean level.

    Sorting all events to learn a few levels would be the most expensive part of a report. A slot that begins at level
    20 and has 5 arrivals cannot exceed 25. If the level was 26 at some slot's end, that slot need not be looked at. So
    only the events of the few slots in which the peak may lie are put in order.
    """
    fine, width = widths.fine_us, widths.slot_us
    return Table(
        f"""with {_MOVES},
        sums as (
            select purgatory, at_us - at_us % {fine} as slot_us, count_if(change > 0) as arrived,
                count_if(change < 0) as gone
            from moves group by all),
        levels as (
            select *, sum(arrived - gone) over (partition by purgatory order by slot_us) as ends from sums),
        known as (
            select purgatory, max(greatest(ends, ends - arrived + gone)) as level from levels group by all),
        likely as (
            select l.purgatory, slot_us, ends - arrived + gone as begins
            from levels as l join known as k on l.purgatory = k.purgatory
            where arrived > 0 and ends + gone >= level),
        inside as (
            select m.purgatory, l.slot_us, begins, at_us, sum(change) as change
            from moves as m join likely as l
                on m.purgatory = l.purgatory and m.at_us - m.at_us % {fine} = l.slot_us
            group by all),
        reached as (
            select purgatory, at_us,
                begins + sum(change) over (partition by purgatory, slot_us order by at_us) as level
            from inside),
        first as (
            select purgatory, at_us, level, row_number() over (partition by purgatory order by level desc, at_us) as n
            from reached),
        means as (
            select purgatory, sum(wait_us) / (max(finished_us) - max(finished_us) % {width}
                - (min(created_us) - min(created_us) % {width}) + {width}) as mean
            from records where wait_us > 0 group by all)
        select f.purgatory, level, at_us, mean
        from first as f join means as m on f.purgatory = m.purgatory where n = 1""",
        schema("purgatory:text peak at_us mean:real"),
        "at",
    )


def widths_of(window_us: int, slot_us: int, span: Mapping[str, int]) -> Widths:
    """The widths for a journal's `SPAN`.

    A peak is looked for in parts of a slot so short that few operations arrive in one, beside how much the level
    varies. With n operations per second that wait w seconds, about n * w are parked, give or take the root of that. In
    root(w / n) seconds just as many arrive.
    """
    span_us, operations = span["last_us"] - span["first_us"], span["operations"]
    wanted = max(math.sqrt(span["waited_us"] * span_us) / max(1, operations), span_us / _MOST_PARTS, _FINEST_US)
    fine_us = max(1, slot_us // max(1, round(slot_us / wanted)))
    return Widths(window_us=window_us, slot_us=slot_us, fine_us=fine_us, slots=span_us // slot_us + 2)
