"""What runs a table's SQL: DuckDB in this process, or Spark where a journal does not fit one machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from purgatory.journal.records import JOURNAL
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.tables.journals import folders, there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from purgatory.journal.records import Schema
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
    """Runs SQL over the records of journals, or over the rows of a trace."""

    name: str
    """What it is called on the command line."""
    schema: Schema
    """What the folders hold."""
    each_key: str
    """The SQL that makes one row of each key, and one with null of a record without keys."""
    each_pair: str
    """The SQL that makes one row of each key and its level."""
    journals: Sequence[str]
    """Where each journal is."""
    left_out: Sequence[str]
    """What lies beside the journals of a fleet and holds none."""
    dropped: int
    """How many operations the journals' writers dropped. These have no record."""
    expected: Sequence[Run]
    """The rows that should be there."""

    def open(self, *, allow_gaps: bool) -> Found:
        """Check that every row is there, and provide the relation ``source``.

        Raises:
            IncompleteJournal: rows are missing, and gaps are not allowed.
            JournalDamaged: a segment cannot be read, and gaps are not allowed.
        """

    def given(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""

    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""

    def keep(self, name: str, sql: str, words: Sequence[str] = ()) -> None:
        """Compute a relation once, for several tables that read it. `words` are columns with few different texts."""

    def save(self, name: str, place: str) -> None:
        """Write a relation as Parquet. From then on, its name means what was written."""

    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""

    def mapped(
        self,
        table: Table,
        function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        columns: pa.Schema,
        by: Sequence[str] = (),
        order: Sequence[str] = (),
    ) -> pa.Table:
        """What a function makes of a table's rows, part by part.

        Args:
            table: the rows.
            function: takes the batches of a part and gives batches.
            columns: what the function gives.
            by: rows that are equal in these columns are in one part, next to each other.
            order: the order of the rows that are equal in `by`.
        """

    def close(self) -> None:
        """Remove what is kept between the tables."""


def chosen_for(journals: Sequence[str], choice: str = "auto", schema: Schema = JOURNAL) -> str:
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
    small = not remote and not submitted and sum(map(len, there(folders(journals, schema)))) <= MOST_LOCAL
    return "local" if small else "spark"


def engine_for(
    journals: Sequence[str],
    choice: str = "auto",
    between: Between = ALL,
    *,
    schema: Schema = JOURNAL,
    command: str = "report",
) -> Engine:
    """The engine: `local`, `spark`, or what suits the journals (`auto`).

    Args:
        journals: folders of journals, or one folder of a trace.
        choice: the name of an engine, or `auto`.
        between: the range of time that is read.
        schema: what the folders hold.
        command: what a session of Spark is called.

    Raises:
        ValueError: the local engine was chosen, and cannot reach a journal.
    """
    if chosen_for(journals, choice, schema) == "local":
        from purgatory.pipeline.tables.local import Local

        return Local(journals, between, schema)
    from purgatory.pipeline.spark.session import session
    from purgatory.pipeline.tables.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session(command), journals, between, schema)
