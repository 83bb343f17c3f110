"""The tables of a what-if: recorded operations under other settings, from two relations.

- ``waits``: one row per operation: `purgatory`, `type`, `arrival_us`, `delay_ms`, and `wait_us`, null if it needed more
  time than is known
- ``uses``: one row per operation and key: `purgatory`, `key`, and from when to when the operation waited under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from purgatory.pipeline.summaries import advice
from purgatory.pipeline.summaries.groups import groups, numbers
from purgatory.pipeline.summaries.idle import PURGES, SPELLS, purging
from purgatory.pipeline.summaries.wheels import COUNTED, WAITS, counting, summed
from purgatory.pipeline.tables.table import Mapped, Table, schema

if TYPE_CHECKING:
    from purgatory.pipeline.summaries.choices import Grid
    from purgatory.pipeline.tables.engine import Engine


def results(engine: Engine, grid: Grid) -> dict[str, pa.Table]:
    """The tables of wheels, purge intervals and shards."""
    wheels = engine.mapped(Mapped(WAITS, counting(grid.ticks_ms, grid.wheel_sizes), COUNTED))
    purges = engine.mapped(Mapped(SPELLS, purging(sorted(set(grid.purge_intervals))), PURGES, by=["purgatory"]))
    return {
        "wheels": summed(wheels),
        "purges": purges.sort_by([("purgatory", "ascending"), ("purge_interval", "ascending")]),
        "shards": engine.query(shards(grid)),
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


def shards(grid: Grid) -> Table:
    """For each purgatory and number of shards: the busiest one's share of the watches, and the busiest key's.

    Keys are placed by a hash of their text. It is the same in both engines. The library places them by Python's hash,
    which differs between processes for texts.
    """
    values = ", ".join(f"({count})" for count in sorted(set(grid.shards)))
    return Table(
        f"""with counts as (select purgatory, key, count(*) as n from uses group by all),
        placed as (
            select purgatory, shards, cast(conv(substr(md5(key), 1, 8), 16, 10) as bigint) % shards as shard, n
            from counts cross join (values {values}) as tried(shards)),
        loads as (
            select purgatory, shards, shard, sum(n) as watches, max(n) as hottest from placed group by all)
        select purgatory, shards, max(watches) / sum(watches), max(hottest) / sum(watches)
        from loads group by all order by purgatory, shards""",
        "purgatory:text shards busiest_shard:real busiest_key:real",
    )
