"""Exact percentiles of waits, and of how late expired operations left.

Sorting all rows to learn a few of them would be expensive, and Spark's own percentiles keep every value in memory. So
the rows are counted by bins of one percent (``sums``). The running sum of the counts says which bins hold a wanted
place of a group's order. Only the rows in those bins are put in order::

    bin 1: 40 rows   bin 2: 50 rows   bin 3: 10 rows      place 89 of 100, counted from 0, is the last row of bin 2

A group is a window, a purgatory and a type, and either its answered or its expired operations. Answered operations are
also a group over all windows, whose window is -1.
"""

from __future__ import annotations

from typing import Final

from purgatory.pipeline._rows.validity import ANSWERED
from purgatory.pipeline._tables.relations import MEASURED_US, Widths, window_of
from purgatory.pipeline._tables.table import Table

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
_ALL_WINDOWS: Final = -1

#: The places of a group's order, counted from 0. A percentile of waits is interpolated between two places.
_OF_WAITS: Final = [f"{end}((total - 1) * {share}e0)" for share in PERCENTILES.values() for end in ("floor", "ceil")]
_OF_LATENESS: Final = [f"ceil(total * {share}e0) - 1" for share in (0.5, 0.99)]

_GROUP: Final = "window_us, purgatory, type, expired"
_WANTED: Final = " or ".join(
    f"({'' if places is _OF_LATENESS else 'not '}expired and upto > {place} and upto - n <= {place})"
    for places in (_OF_WAITS, _OF_LATENESS)
    for place in places
)
_PLACED: Final = " or ".join(
    f"({'' if places is _OF_LATENESS else 'not '}expired and place in ({', '.join(places)}))"
    for places in (_OF_WAITS, _OF_LATENESS)
)
_BINS: Final = "select purgatory, type, outcome = 'expired' as expired, bin, sum(n) as n, max(longest_us) as longest_us"


#: The relation ``wanted``: the bins in which a percentile of a group lies.
WANTED: Final = f"""with bins as (
        {_BINS}, window_us from sums where bin >= 0 group by all
        union all {_BINS}, {_ALL_WINDOWS} as window_us from sums where bin >= 0 and {ANSWERED} group by all),
    summed as (
        select *, sum(n) over (partition by {_GROUP} order by bin) as upto,
            sum(n) over (partition by {_GROUP}) as total, max(longest_us) over (partition by {_GROUP}) as top
        from bins)
    select * from summed where {_WANTED}"""


def ordered(widths: Widths) -> str:
    """The relation ``ordered``: the waits at the wanted places in the order of their group."""
    valued = f"""(select {window_of(widths)} as window_us, purgatory, type, outcome = 'expired' as expired, bin,
        {MEASURED_US} as v from records where bin >= 0) as r"""
    same = "r.purgatory = w.purgatory and r.type = w.type and r.expired = w.expired and r.bin = w.bin"
    inside = f"select /*+ broadcast(w) */ w.*, r.v from {valued} join wanted as w on {same} and w.window_us ="
    return f"""select {_GROUP}, total, top, place, v from (
            select *, upto - n + row_number() over (partition by {_GROUP}, bin order by v) - 1 as place
            from ({inside} r.window_us union all {inside} {_ALL_WINDOWS}) as inside) as placed
        where {_PLACED}"""


def _percentiles(where: str, by: str, places: list[str], figures: list[str]) -> str:
    values = ", ".join(f"max(case when place = {place} then v end) as v{n}" for n, place in enumerate(places))
    return f"""select {by}, total, {", ".join(figures)}, top / 1000
        from (select {by}, total, top, {values} from ordered where {where} group by all) as waits"""


def _between(n: int, share: float) -> str:
    """The percentile that lies between two places."""
    # It lies on a grid of a thousandth of a microsecond. Rounding makes the engines agree to the last bit.
    low, high, place = f"v{2 * n}", f"v{2 * n + 1}", f"(total - 1) * {share}e0"
    return f"round({low} + ({place} - floor({place})) * ({high} - {low}), 3) / 1000"


_FIGURES: Final = [_between(n, share) for n, share in enumerate(PERCENTILES.values())]
_WAITED: Final = f"purgatory:text type:text answered {' '.join(PERCENTILES)} max_ms"

#: Exact percentiles of the waits of answered operations, per window, purgatory and type.
LATENCY: Final = Table(
    _percentiles(f"not expired and window_us <> {_ALL_WINDOWS}", "window_us, purgatory, type", _OF_WAITS, _FIGURES),
    f"window_us {_WAITED}",
    "window",
)

#: The same over all windows together.
WAITING: Final = Table(
    _percentiles(f"not expired and window_us = {_ALL_WINDOWS}", "purgatory, type", _OF_WAITS, _FIGURES), _WAITED
)

#: How long after their deadline expired operations left, by window, purgatory and type.
LATENESS: Final = Table(
    _percentiles("expired", "window_us, purgatory, type", _OF_LATENESS, ["v0 / 1000", "v1 / 1000"]),
    "window_us purgatory:text type:text expired p50_ms p99_ms max_ms",
    "window",
)
