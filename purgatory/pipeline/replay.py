"""``purgatory pipeline replay``: the outcome of every operation of a whole trace at once (``_tables.answers``).

It has no state, no clock and no loop. It is the yardstick for the stream, and the start of an exact what-if.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from purgatory.pipeline._spark.places import inside
from purgatory.pipeline._tables import answers
from purgatory.pipeline._tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from purgatory.pipeline._tables.local import Local


@attrs.frozen
class Replayed:
    """The files and counts of a replay.

    Attributes:
        counts: operations by outcome.
        malformed: rows that cannot be true.
        rows: all rows of the trace.
        missing: the rows that could not be read, where gaps are allowed.
        unexplained: the types with operations that were cancelled, forced or extended, and how many of each.
    """

    counts: Mapping[str, int]
    malformed: int
    rows: int
    missing: Sequence[str]
    unexplained: Sequence[str]


def replay(engine: Local, out: str, *, keep_us: int | None, allow_gaps: bool = False) -> Replayed:
    """Write the folders ``answers`` and ``malformed``.

    Args:
        engine: an engine over a trace. It is closed at the end.
        out: the place to write to.
        keep_us: how long a key keeps its level after the latest row that named it (None: forever).
        allow_gaps: go on where rows are missing.
    """
    try:
        unread = engine.open(allow_gaps=allow_gaps)
        answers.prepare(engine, keep_us)
        for name in ("answers", "malformed"):
            engine.save(name, inside(out, name))
        outcomes = engine.query(Table("select outcome, count(*) from answers group by all", "outcome:text n"))
        sizes = Table("select (select count(*) from malformed), (select count(*) from judged)", "malformed rows")
        (size,) = engine.query(sizes).to_pylist()
        counts = {row["outcome"]: row["n"] for row in outcomes.sort_by("outcome").to_pylist()}
        unexplained = [f"{' · '.join(kind)}: {ends}" for kind, ends in answers.count_unexplained(engine).items()]
        return Replayed(counts, size["malformed"], size["rows"], unread, unexplained)
    finally:
        engine.close()
