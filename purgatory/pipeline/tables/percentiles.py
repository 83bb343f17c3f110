"""Exact percentiles of waits, and of how late expired operations left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from purgatory.pipeline.tables.relations import ANSWERED, Table, Widths, schema, window_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


def _in_order(by: Sequence[str], value: str, where: str, places: Sequence[str]) -> str:
    """The values at some places of each group's order, counted from 0, as the relation ``ordered``.

    Sorting all rows to learn a few of them would be expensive, and Spark's own percentiles keep every value in memory.
    So the rows are counted by bins of one percent. The running sum of the counts says which bins hold the places, and
    only the rows in those bins are put in order.

    Args:
        by: the columns of a group.
        value: what is put in order, from 0 upwards.
        where: which records.
        places: expressions of ``total``, the rows of the group.
    """
    names = ", ".join(by)
    same = " and ".join(f"r.{name} = w.{name}" for name in by)
    wanted = " or ".join(f"(upto > {place} and upto - n <= {place})" for place in places)
    found = ", ".join(f"max(case when place = {place} then v end) as v{n}" for n, place in enumerate(places))
    return f"""chosen as (select {names}, v, floor(ln(v + 1) * 100) as bin from (select *, {value} as v from dated
            where {where}) as valued),
        bins as (select {names}, bin, count(*) as n, max(v) as longest from chosen group by all),
        sums as (
            select *, sum(n) over (partition by {names} order by bin) as upto,
                sum(n) over (partition by {names}) as total, max(longest) over (partition by {names}) as top
            from bins),
        wanted as (select * from sums where {wanted}),
        inside as (
            select r.*, total, top, upto - n + row_number() over (
                partition by {", ".join(f"r.{name}" for name in by)}, r.bin order by v) - 1 as place
            from chosen as r join wanted as w on {same} and r.bin = w.bin),
        ordered as (select {names}, total, top, {found} from inside group by all)"""


def _percentiles(by: Sequence[str]) -> str:
    """Percentiles of the waits of answered operations, interpolated between two waits."""
    places = [f"{end}((total - 1) * {share}e0)" for share in PERCENTILES.values() for end in ("floor", "ceil")]
    between = [
        # They lie on a grid of a thousandth of a microsecond. Rounding makes the engines agree to the last bit.
        f"round(v{2 * n} + ((total - 1) * {share}e0 - {places[2 * n]}) * (v{2 * n + 1} - v{2 * n}), 3) / 1000"
        for n, share in enumerate(PERCENTILES.values())
    ]
    return f"""{_in_order(by, "wait_us", ANSWERED, places)}
        select {", ".join(by)}, total, {", ".join(between)}, top / 1000 from ordered"""


_WAITED: Final = f"purgatory:text type:text answered {' '.join(PERCENTILES)} max_ms"


def _dated(widths: Widths) -> str:
    return f"dated as (select *, {window_of(widths)} as window_us from records)"


def latency(widths: Widths) -> Table:
    """Exact percentiles of the waits of answered operations, per window, purgatory and type."""
    return Table(
        f"with {_dated(widths)}, {_percentiles(('window_us', 'purgatory', 'type'))}",
        schema(f"window_us {_WAITED}"),
        "window",
    )


def waiting() -> Table:
    """The same over all windows together."""
    return Table(
        f"with dated as (select * from records), {_percentiles(('purgatory', 'type'))}",
        schema(_WAITED),
    )


def lateness(widths: Widths) -> Table:
    """How long after their deadline expired operations left, by window, purgatory and type."""
    by, late = ("window_us", "purgatory", "type"), "greatest(wait_us - limit_us, 0)"
    places = [f"ceil(total * {share}e0) - 1" for share in (0.5, 0.99)]
    return Table(
        f"""with {_dated(widths)}, {_in_order(by, late, "outcome = 'expired'", places)}
        select {", ".join(by)}, total, v0 / 1000, v1 / 1000, top / 1000 from ordered""",
        schema("window_us purgatory:text type:text expired p50_ms p99_ms max_ms"),
        "window",
    )
