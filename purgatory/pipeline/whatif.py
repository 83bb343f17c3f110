"""`purgatory pipeline whatif`: try settings on recorded operations.

The levels that an operation needed do not depend on its settings. So a trace gives the outcome under every other
timeout exactly. A journal gives it up to the timeout in use, and not beyond (see `advice`). Timeouts are tried for each
type of each purgatory, the timer's settings for all together, the others for each purgatory. There are four tables:

- *timeouts*: expiry share, mean wait, mean parked (waits summed over the span, which is what memory is paid
  for), from the operations summed up by how many of the timeouts they outlast.
- *wheels*: the levels used and the entries put again, in closed form (`wheels`).
- *purges*: how many keys would be forgotten although they are wanted again, and how many would be remembered while no
  operation waits under them (`idle`).
- *shards*: the share of the busiest one, beside the share of the busiest key, below which no number of shards can get.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from purgatory.journal.records import TRACE
from purgatory.journal.records.normal import UNSAID, Normal
from purgatory.pipeline.pages.plan import NORMAL, UNEXPLAINED, plan
from purgatory.pipeline.summaries import table_files, trials
from purgatory.pipeline.summaries.choices import Grid, choose
from purgatory.pipeline.summaries.groups import grouped
from purgatory.pipeline.tables import answers, queries, relations

if TYPE_CHECKING:
    import pyarrow as pa

    from purgatory.pipeline.tables.engine import Engine

_WAITS = """select purgatory, type, created_us as arrival_us, delay_ms,
        case when outcome in ('immediate', 'satisfied') then wait_us end as wait_us
    from records"""
_USES = "select purgatory, key, created_us as from_us, finished_us as to_us from watches where key is not null"


class NoOperation(ValueError):
    """There is no operation to try settings on."""


def whatif(
    engine: Engine,
    out: str | Path,
    grid: Grid,
    *,
    allow_gaps: bool = False,
    normal: Normal = UNSAID,
) -> Path:
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
        normal = _prepared(engine, normal, exact=exact)
        results = _of_trace(engine, grid) if exact else _of_journal(engine, grid)
        unexplained = answers.unexplained(engine) if exact else {}
    finally:
        engine.close()
    if not results["wheels"]["operations"][0].as_py():
        places, hint = ", ".join(engine.journals), "give a folder, or a range, that has some"
        raise NoOperation(f"{places} holds no operation to try settings on: {hint}")
    if unexplained:
        kinds = zip(*(results["timeouts"][name].to_pylist() for name in ("purgatory", "type")), strict=True)
        results["timeouts"] = results["timeouts"].filter([kind not in unexplained for kind in kinds])
    found = {name: table_files.written(folder / "tables" / name, table) for name, table in results.items()}
    ends = {kind: normal.has_any(kind) for kind in grouped(found["timeouts"], "purgatory", "type")}
    advised = [row for row in found["timeouts"] if not ends[row["purgatory"], row["type"]]]
    chosen = choose({**found, "timeouts": advised}, grid)
    choices = [attrs.asdict(each) for each in chosen]
    (folder / "choice.json").write_text(json.dumps(choices, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "index.html"
    without = {" · ".join(kind): NORMAL for kind, is_normal in sorted(ends.items()) if is_normal}
    without |= {" · ".join(kind): UNEXPLAINED.format(told) for kind, told in unexplained.items()}
    path.write_text(plan(found, chosen, exact=exact, missing=unread.missing, without=without), encoding="utf-8")
    return path


def _prepared(engine: Engine, normal: Normal, *, exact: bool) -> Normal:
    """Provide the relations. Returns the ends that are normal, with what the records say."""
    if not exact:
        return relations.prepare(engine, normal).renamed(table_files.shortened)
    answers.prepare(engine)
    return relations.said(engine, normal).renamed(table_files.shortened)


def _of_trace(engine: Engine, grid: Grid) -> dict[str, pa.Table]:
    engine.keep("waits", answers.WAITS)
    engine.view("uses", answers.USES)
    return {"timeouts": engine.query(answers.timeouts(grid.timeouts_ms)), **trials.results(engine, grid)}


def _of_journal(engine: Engine, grid: Grid) -> dict[str, pa.Table]:
    engine.view("waits", _WAITS)
    engine.keep("uses", _USES)
    estimate = trials.timeouts(engine.query(queries.TABLES["waits"]), grid)
    return {"timeouts": estimate, **trials.results(engine, grid)}
