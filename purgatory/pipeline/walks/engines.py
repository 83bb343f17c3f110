"""Which engine goes over the journals: by choice, or by size.

Spark takes seconds to start, and each of its tasks does no more than the loop does. It wins where there are more rows
than a machine goes over while one waits, and more cores than a machine has; and where only it can reach the rows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from purgatory.pipeline.walks.local import Local, folders, there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.pipeline.walks.walk import Engine

MOST_LOCAL: Final = 100_000_000
"""Records up to which a journal is gone over in this process, where nothing else is said: a minute or two. Spark takes
more of the processor for each (docs/pipeline.md), so below that it gets ahead only with many cores."""


def engine_for(journals: Sequence[str], choice: str = "auto") -> Engine:
    """The engine: `local`, `spark`, or what suits the journals (`auto`).

    Raises:
        ValueError: the loop in this process was chosen, and can't reach a journal.
    """
    remote = [name for name in journals if "://" in name]
    if choice == "local" and remote:
        message = f"only Spark reads {remote[0]}: --engine spark, or a folder"
        raise ValueError(message)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit: who starts a cluster wants it used
    if choice == "auto":
        small = not remote and not submitted and sum(map(len, there(folders(journals)))) <= MOST_LOCAL
        choice = "local" if small else "spark"
    if choice == "local":
        return Local(journals)
    from purgatory.pipeline.spark.session import session
    from purgatory.pipeline.walks.cluster import Cluster  # pyspark is imported only where it is used

    return Cluster(session("report"), journals)
