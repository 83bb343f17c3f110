"""An engine's answers about a trace, as plain rows."""

from pathlib import Path
from typing import Any

from purgatory.journal.records import TRACE
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._tables import answers
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline._tables.table import Table, schema


def over(folder: str | Path, spark: Any = None, between: Between = ALL) -> Local | Cluster:
    """An engine over a trace's folder: the local one, or the one of a session."""
    if spark is None:
        return Local([str(folder)], between, TRACE)
    return Cluster(spark, [str(folder)], between, TRACE)


def replayed(
    engine: Local | Cluster, keep_us: int | None = None
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The answers (purgatory, operation, outcome, created, finished), and the rows set aside (seq, reason)."""
    engine.open(allow_gaps=False)
    try:
        answers.prepare(engine, keep_us)
        columns = "purgatory, operation, outcome, unix_micros(created), unix_micros(finished)"
        told = schema("purgatory:text operation:text outcome:text created finished")
        found = engine.query(Table(f"select {columns} from answers", told)).to_pylist()
        aside = engine.query(Table("select seq, reason from malformed", schema("seq reason:text"))).to_pylist()
    finally:
        engine.close()
    return sorted(tuple(row.values()) for row in found), sorted(tuple(row.values()) for row in aside)
