"""What runs a table's SQL: DuckDB in this process, or Spark where a journal does not fit one machine."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.folder import dropped
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._rows.completeness import IncompleteJournal, gaps_in, hulls
from purgatory.pipeline._spark.names import is_folder
from purgatory.pipeline._tables.journals import folders, left_out, there

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from purgatory.journal.records import Schema
    from purgatory.pipeline._rows.completeness import Gap, Run
    from purgatory.pipeline._tables.table import Mapped, Table


MOST_LOCAL: Final = 100_000_000
"""Records up to which a journal is read in this process, where no engine is named."""


def unread(gaps: Sequence[Gap], damaged: Iterable[str]) -> list[str]:
    """One line for each damaged segment with its missing rows, and for each other gap."""
    rest, lines = list(gaps), []
    for text in damaged:
        mine = [gap for gap in rest if text.startswith(f"{gap.where.removeprefix('in ')} ")]
        rest = [gap for gap in rest if gap not in mine]
        rows = "; ".join(f"{gap.last - gap.first + 1:,} rows, {gap.first:,} to {gap.last:,}" for gap in mine)
        lines.append(f"{text} ({rows})" if mine else text)
    return [*lines, *map(str, rest)]


class Engine(ABC):
    """Runs SQL over the records of journals, or over the rows of a trace.

    Args:
        journals: folders of journals or of a fleet's journals, or one folder of a trace.
        between: the range of time that is read.
        schema: what the folders hold.

    Attributes:
        name: what it is called on the command line.
        each_key: the SQL that makes one row of each key, and one with null of a record without keys.
        each_pair: the SQL that makes one row of each key and its level.
        left_out: what lies beside the journals of a fleet and holds none.
        dropped: how many operations the journals' writers dropped. These have no record. Not known of a store.
        expected: the rows that should be there.
    """

    name: str
    each_key: str
    each_pair: str

    def __init__(self, journals: Sequence[str], between: Between = ALL, schema: Schema = JOURNAL) -> None:
        self._between = between
        self._closing = ExitStack()
        self.schema = schema
        self.journals: Sequence[str] = folders(journals, schema, self._qualified)
        self.left_out: Sequence[str] = left_out(journals) if schema is JOURNAL else ()
        self.dropped: int = sum(dropped(Path(name)) for name in self.journals if is_folder(name))
        self.expected: Sequence[Run] = self._promised()

    def _promised(self) -> Sequence[Run]:
        return there(self.journals)

    def _qualified(self, place: str) -> str:
        """A place of a store, in the one way that its file system spells it."""
        return place

    @abstractmethod
    def open(self, *, allow_gaps: bool) -> list[str]:
        """Check that every row is there, and provide the relation ``source``.

        Returns:
            what could not be read, where gaps are allowed.

        Raises:
            IncompleteJournal: rows are missing, and gaps are not allowed.
            JournalDamaged: a segment cannot be read, and gaps are not allowed.
        """

    def _unread(self, runs: Sequence[Run], damaged: Sequence[str], *, whole: bool, allow_gaps: bool) -> list[str]:
        """Compare the rows that were read with those that should be there: of the `whole`, or of the range of time.

        Raises:
            IncompleteJournal: rows are missing, and gaps are not allowed.
        """
        gaps = gaps_in(self.expected if whole else hulls(runs), runs)
        if gaps and not allow_gaps:
            raise IncompleteJournal(gaps, damaged)
        return unread(gaps, damaged)

    @abstractmethod
    def given(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""

    @abstractmethod
    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""

    @abstractmethod
    def keep(self, name: str, sql: str, words: Sequence[str] = ()) -> None:
        """Compute a relation once, for several tables that read it.

        Args:
            name: of the relation.
            sql: the query.
            words: of the records, columns with few different texts.
        """

    @abstractmethod
    def save(self, name: str, place: str) -> None:
        """Write a relation as Parquet. From then on, its name means what was written."""

    @abstractmethod
    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""

    @abstractmethod
    def mapped(self, work: Mapped) -> pa.Table:
        """Apply a function to a table's rows, part by part."""

    def close(self) -> None:
        """Remove what is kept between the tables."""
        self._closing.close()


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
    remote = [name for name in journals if not is_folder(name)]
    if choice == "local" and remote:
        raise ValueError(f"journals must be folders for --engine local, got {remote[0]}: use --engine spark")
    if choice == "auto":
        # spark-submit or a server: a person who has a cluster wants it used
        submitted = bool({"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & os.environ.keys())
        fits = not remote and not submitted and sum(map(len, there(folders(journals, schema)))) <= MOST_LOCAL
        choice = "local" if fits else "spark"
    if choice == "local":
        from purgatory.pipeline._tables.local import Local

        return Local(journals, between, schema)
    from purgatory.pipeline._spark.session import session
    from purgatory.pipeline._tables.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session(command), journals, between, schema)
