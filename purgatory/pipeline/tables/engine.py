"""What runs a table's SQL: DuckDB in this process, or Spark where a journal does not fit one machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.tables.journals import folders, there

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa

    from purgatory.pipeline.rows.completeness import Gap, Run
    from purgatory.pipeline.tables.queries import Table

MOST_LOCAL: Final = 100_000_000
"""Records up to which a journal is read in this process, where no engine is named."""


@attrs.frozen
class Found:
    """What an engine could not read, where gaps are allowed."""

    gaps: Sequence[Gap] = ()
    damaged: Sequence[str] = ()


class Engine(Protocol):
    """Runs SQL over the records of journals."""

    name: str
    """What it is called on the command line."""
    journals: Sequence[str]
    """Where each journal is."""
    left_out: Sequence[str]
    """What lies beside the journals of a fleet and holds none."""
    dropped: int
    """How many operations the journals' writers dropped. These have no record."""
    expected: Sequence[Run]
    """The rows that should be there."""

    def open(self, *, allow_gaps: bool, expiry_normal: Collection[str] = ()) -> Found:
        """Check that every row is there, and provide the relations that tables read.

        Raises:
            IncompleteJournal: rows are missing, and gaps are not allowed.
            JournalDamaged: a segment cannot be read, and gaps are not allowed.
        """

    def keep(self, name: str, sql: str) -> None:
        """Compute a relation once, for several tables that read it."""

    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""

    def close(self) -> None:
        """Remove what is kept between the tables."""


def chosen_for(journals: Sequence[str], choice: str = "auto") -> str:
    """`local` or `spark`: as chosen, or what suits the journals.

    Raises:
        ValueError: the local engine was chosen, and cannot reach a journal.
    """
    remote = [name for name in journals if "://" in name]
    if choice == "local" and remote:
        message = f"journals must be folders for --engine local, got {remote[0]}: use --engine spark"
        raise ValueError(message)
    if choice != "auto":
        return choice
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit: a person who starts a cluster wants it used
    small = not remote and not submitted and sum(map(len, there(folders(journals)))) <= MOST_LOCAL
    return "local" if small else "spark"


def engine_for(journals: Sequence[str], choice: str = "auto", between: Between = ALL) -> Engine:
    """The engine: `local`, `spark`, or what suits the journals (`auto`).

    Raises:
        ValueError: the local engine was chosen, and cannot reach a journal.
    """
    if chosen_for(journals, choice) == "local":
        from purgatory.pipeline.tables.local import Local

        return Local(journals, between)
    from purgatory.pipeline.spark.session import session
    from purgatory.pipeline.tables.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session("report"), journals, between)
