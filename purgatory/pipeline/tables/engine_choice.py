"""Which engine reads some journals: the one that was named, or the one that suits their size and place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from purgatory.journal.records import JOURNAL
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.tables.journals import folders, there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.journal.records import Schema
    from purgatory.pipeline.tables.engine import Engine

MOST_LOCAL: Final = 100_000_000
"""Records up to which a journal is read in this process, where no engine is named."""


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
    remote = [name for name in journals if "://" in name]
    if choice == "local" and remote:
        raise ValueError(f"journals must be folders for --engine local, got {remote[0]}: use --engine spark")
    if choice == "auto":
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit: a person who starts a cluster wants it used
        fits = not remote and not submitted and sum(map(len, there(folders(journals, schema)))) <= MOST_LOCAL
        choice = "local" if fits else "spark"
    if choice == "local":
        from purgatory.pipeline.tables.local import Local

        return Local(journals, between, schema)
    from purgatory.pipeline.spark.session import session
    from purgatory.pipeline.tables.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session(command), journals, between, schema)
