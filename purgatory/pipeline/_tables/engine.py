"""Choose the engine that reads some journals: DuckDB in this process, or Spark where they do not fit one machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from purgatory.journal.records import JOURNAL
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._spark.places import is_folder
from purgatory.pipeline._tables.journals import folders, sealed_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.journal.records import Schema
    from purgatory.pipeline._tables.local import Local

#: Records up to which a journal is read in this process, where no engine is named.
MOST_LOCAL: Final = 100_000_000


def engine_for(
    journals: Sequence[str],
    choice: str = "auto",
    between: Between = ALL,
    *,
    schema: Schema = JOURNAL,
    command: str = "report",
) -> Local:
    """Return the engine: ``local``, ``spark``, or what suits the journals (``auto``).

    Args:
        journals: folders of journals, or one folder of a trace.
        choice: the name of an engine, or ``auto``.
        between: the range of time that is read.
        schema: what the folders hold.
        command: the name of a session of Spark.

    Raises:
        ValueError: the local engine was chosen, and cannot reach a journal.
    """
    remote = [name for name in journals if not is_folder(name)]
    if choice == "local" and remote:
        raise ValueError(f"journals must be folders for --engine local, got {remote[0]}: use --engine spark")
    records = None if remote else sum(map(len, sealed_runs(folders(journals, schema))))
    if choice == "auto":
        # spark-submit or a server: a person who has a cluster wants it used
        submitted = bool({"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & os.environ.keys())
        choice = "spark" if records is None or submitted or records > MOST_LOCAL else "local"
    if choice == "local":
        from purgatory.pipeline._tables.local import Local

        return Local(journals, between, schema)
    from purgatory.pipeline._spark.session import session
    from purgatory.pipeline._tables.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session(command, records=records), journals, between, schema)
