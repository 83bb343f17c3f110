"""``purgatory pipeline whatif``: try settings on recorded operations.

The levels that an operation needed do not depend on its settings. So a trace gives the outcome under every other
timeout exactly. A journal gives it up to the timeout in use, and not beyond (see ``advice``). Timeouts are tried for
each type of each purgatory, the timer's settings for all together, the others for each purgatory. There are four
tables:

- *timeouts*: expiry share, mean wait, mean parked (waits summed over the span, which is what memory is paid
  for), from the operations summed up by how many of the timeouts they outlast.
- *wheels*: the levels used and the entries put again, in closed form (``wheels``).
- *purges*: how many keys would be forgotten although they are wanted again, and how many would be remembered while no
  operation waits under them (``idle``).
- *shards*: the share of the busiest one, beside the share of the busiest key, below which no number of shards can get.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pyarrow as pa

from purgatory.journal.records import TRACE
from purgatory.journal.records.normal import UNSAID, Normal
from purgatory.pipeline._pages.plan import NORMAL, UNEXPLAINED, plan
from purgatory.pipeline._rows.validity import DataError
from purgatory.pipeline._summaries import advice, table_files
from purgatory.pipeline._summaries.choices import Grid, choose
from purgatory.pipeline._summaries.groups import groups, numbers, rows_by
from purgatory.pipeline._summaries.idle import PURGES, SPELLS, purge_counter
from purgatory.pipeline._summaries.wheels import COUNTED, WAITS, sum_counts, wheel_counter
from purgatory.pipeline._tables import answers, queries, relations
from purgatory.pipeline._tables.table import Table, schema

if TYPE_CHECKING:
    from purgatory.pipeline._tables.local import Local

_WAITS = """select purgatory, type, created_us as arrival_us, delay_ms,
        case when outcome in ('immediate', 'satisfied') then wait_us end as wait_us
    from records"""
_USES = "select purgatory, key, created_us as from_us, finished_us as to_us from watches where key is not null"


class NoOperation(DataError):
    """There is no operation to try settings on."""


def whatif(engine: Local, out: str | Path, grid: Grid, *, allow_gaps: bool = False, normal: Normal = UNSAID) -> Path:
    """Write a table for each question, the choice as JSON, and a page. Return the page's path.

    Args:
        engine: an engine over a trace (exact answers) or over journals (estimates). It is closed at the end.
        out: the folder to write to.
        grid: the settings to try.
        allow_gaps: go on where rows are missing.
        normal: the ends that are normal, instead of what the records say. No timeout is advised for types with such an
            end.

    Raises:
        NoOperation: there is none that can be true.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    exact = engine.schema is TRACE
    try:
        unread = engine.open(allow_gaps=allow_gaps)
        results, normal = _results(engine, grid, normal, exact=exact)
        unexplained = answers.count_unexplained(engine) if exact else {}
    finally:
        engine.close()
    if not results["wheels"]["operations"][0].as_py():
        places, hint = ", ".join(engine.journals), "give a folder, or a range, that has some"
        raise NoOperation(f"{places} holds no operation to try settings on: {hint}")
    if unexplained:
        kinds = zip(*(results["timeouts"][name].to_pylist() for name in ("purgatory", "type")), strict=True)
        results["timeouts"] = results["timeouts"].filter([kind not in unexplained for kind in kinds])
    tables = {name: table_files.write_table(folder / "tables" / name, table) for name, table in results.items()}
    ends = {kind: normal.has_any(kind) for kind in rows_by(tables["timeouts"], "purgatory", "type")}
    advised = [row for row in tables["timeouts"] if not ends[row["purgatory"], row["type"]]]
    chosen = choose({**tables, "timeouts": advised}, grid)
    choices = [attrs.asdict(each) for each in chosen]
    (folder / "choice.json").write_text(json.dumps(choices, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "index.html"
    without = {" · ".join(kind): NORMAL for kind, is_normal in sorted(ends.items()) if is_normal}
    without |= {" · ".join(kind): UNEXPLAINED.format(ends_text) for kind, ends_text in unexplained.items()}
    path.write_text(plan(tables, chosen, exact=exact, missing=unread, without=without), encoding="utf-8")
    return path


def _results(engine: Local, grid: Grid, normal: Normal, *, exact: bool) -> tuple[dict[str, pa.Table], Normal]:
    """A table for each question, and the ends that are normal, with what the records say.

    The tables read two relations:

    - ``waits``: one row per operation: ``purgatory``, ``type``, ``arrival_us``, ``delay_ms``, and ``wait_us``, null if
      it needed more time than is known
    - ``uses``: one row per operation and key: ``purgatory``, ``key``, and from when to when the operation waited under
      it.
    """
    if exact:
        answers.prepare(engine)
        normal = relations.read_normal_ends(engine, normal, "good")
        engine.keep("waits", answers.WAITS)
        engine.view("uses", answers.USES)
        timeouts = engine.query(answers.timeouts(grid.timeouts_ms))
    else:
        normal = relations.prepare(engine, normal)
        engine.view("waits", _WAITS)
        engine.keep("uses", _USES)
        timeouts = estimate_timeouts(engine.query(queries.WAITS), grid)
    wheels = engine.apply(wheel_counter(grid.ticks_ms, grid.wheel_sizes), WAITS, COUNTED)
    purges = engine.apply(purge_counter(sorted(set(grid.purge_intervals))), SPELLS, PURGES, "purgatory")
    results = {
        "timeouts": timeouts,
        "wheels": sum_counts(wheels),
        "purges": purges.sort_by([("purgatory", "ascending"), ("purge_interval", "ascending")]),
        "shards": engine.query(_shards(grid)),
    }
    return results, normal.renamed(table_files.shorten)


def estimate_timeouts(waits: pa.Table, grid: Grid) -> pa.Table:
    """The share that would expire under each timeout of each type: an estimate, and none beyond what was observed."""
    rows = []
    for (purgatory, kind), every in groups(advice.survival(waits), ("purgatory", "type"), "wait_ms"):
        operations, curve = int(numbers(every, "left").sum()), advice.reliable_part(every)
        wait_ms, survival = numbers(curve, "wait_ms"), curve.column("survival").to_numpy()
        for timeout in sorted(set(grid.timeouts_ms)):
            upto = int(np.searchsorted(wait_ms, timeout, side="right"))
            known = len(wait_ms) > 0 and int(wait_ms[-1]) >= timeout
            share = (float(survival[upto - 1]) if upto else 1.0) if known else None
            row = {"purgatory": purgatory, "type": kind, "timeout_ms": timeout, "operations": operations}
            rows.append({**row, "expiry_share": share})
    return pa.Table.from_pylist(rows, schema("purgatory:text type:text timeout_ms:int operations expiry_share:real"))


def _shards(grid: Grid) -> Table:
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
