"""What a journal's records say about other settings, in one process: the tables of a what-if, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.summaries import advice
from purgatory.pipeline.summaries.groups import groups, numbers
from purgatory.pipeline.summaries.idle import NEVER, SPELLS, tried
from purgatory.pipeline.summaries.wheels import counting
from purgatory.pipeline.tables import queries
from purgatory.pipeline.tables.queries import Table, schema

if TYPE_CHECKING:
    from purgatory.pipeline.summaries.choices import Grid
    from purgatory.pipeline.tables.engine import Engine

_ARRIVALS = Table(
    "select created_us, delay_ms, case when outcome in ('immediate', 'satisfied') then wait_us end from records",
    schema("arrival delay_ms:int wait_us"),
)
_SPELLS = Table(
    f"select purgatory, idle_us, coalesce(again_us, {NEVER}), first_us, uses from ({SPELLS}) as spells",
    schema("purgatory:text idle_us again_us first_us uses"),
)


def results(engine: Engine, grid: Grid) -> dict[str, pa.Table]:
    """The tables of a what-if, by name.

    Args:
        engine: one that was opened, and runs in this process.
        grid: the settings to try.
    """
    engine.keep(
        "uses",
        "select purgatory, key, created_us as from_us, finished_us as to_us from watches where key is not null",
    )
    return {
        "timeouts": timeouts(engine.query(queries.waits()), grid),
        "wheels": _wheels(engine.query(_ARRIVALS), grid),
        "purges": _purges(engine.query(_SPELLS), grid),
        "shards": engine.query(Table(shards_sql(grid, "hash(key)"), _SHARDS)),
    }


def timeouts(waits: pa.Table, grid: Grid) -> pa.Table:
    """The share that would expire under each timeout of each type: an estimate, and none beyond what was observed."""
    rows = []
    for (purgatory, kind), every in groups(advice.survival(waits), ("purgatory", "type"), "wait_ms"):
        operations, curve = int(numbers(every, "left").sum()), advice.known(every)
        wait_ms, survival = numbers(curve, "wait_ms"), curve.column("survival").to_numpy()
        for timeout in sorted(set(grid.timeouts_ms)):
            upto = int(np.searchsorted(wait_ms, timeout, side="right"))
            known = len(wait_ms) > 0 and int(wait_ms[-1]) >= timeout
            share = (float(survival[upto - 1]) if upto else 1.0) if known else None
            row = {"purgatory": purgatory, "type": kind, "timeout_ms": timeout, "operations": operations}
            rows.append({**row, "expiry_share": share})
    return pa.Table.from_pylist(rows, schema("purgatory:text type:text timeout_ms:int operations expiry_share:real"))


def _wheels(arrivals: pa.Table, grid: Grid) -> pa.Table:
    found = pa.Table.from_batches(counting(grid.ticks_ms, grid.wheel_sizes)(arrivals.to_batches()))
    each = pc.divide(found["reinsertions"].cast(pa.float64()), found["operations"].cast(pa.float64()))
    found = found.append_column("reinsertions_each", each).append_column("late_ms_at_most", found["tick_ms"])
    return found.sort_by([("tick_ms", "ascending"), ("wheel_size", "ascending")])


def _purges(spells: pa.Table, grid: Grid) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for (purgatory,), mine in groups(spells, ["purgatory"]):
        columns = {name: numbers(mine, name) for name in ("idle_us", "again_us", "first_us", "uses")}
        rows += tried(purgatory, columns, sorted(set(grid.purge_intervals)))
    return pa.Table.from_pylist(rows)


_SHARDS = schema("purgatory:text shards busiest_shard:real busiest_key:real")


def shards_sql(grid: Grid, number: str) -> str:
    """For each purgatory and number of shards: the busiest one's share of the watches, and the busiest key's.

    Args:
        grid: the numbers of shards to try.
        number: an expression of a number that spreads the keys.
    """
    tried_ = ", ".join(f"({count})" for count in sorted(set(grid.shards)))
    return f"""with counts as (select purgatory, key, count(*) as n from uses group by all),
        placed as (
            select purgatory, shards, {number} % shards as shard, n
            from counts cross join (values {tried_}) as tried(shards)),
        loads as (
            select purgatory, shards, shard, sum(n) as watches, max(n) as hottest from placed group by all)
        select purgatory, shards, max(watches) / sum(watches) as busiest_shard,
            max(hottest) / sum(watches) as busiest_key
        from loads group by all order by purgatory, shards"""
