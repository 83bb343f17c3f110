"""A query that is started again if a Python process of Spark's was late."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql.streaming.query import StreamingQuery

_LATE_WORKER: Final = re.compile("Python worker.* connect back")
_MOST_RESTARTS: Final = 5


def until_ended(start: Callable[[], StreamingQuery]) -> Generator[StreamingQuery, None, None]:
    """Start a query, yield it once a second and at its end, and stop it when the caller closes this.

    Spark gives a Python process beside the driver ten seconds to connect, which no setting changes. On a busy machine
    it may need longer. The query is then started again, where it was.
    """
    query: StreamingQuery | None = None
    has_ended, restarts = False, _MOST_RESTARTS
    try:
        while not has_ended:
            is_late = False
            try:
                query = query or start()
                has_ended = bool(query.awaitTermination(1))
            except PySparkException as error:
                if not _LATE_WORKER.search(str(error)) or not restarts:
                    raise
                restarts, is_late = restarts - 1, True
            if query is not None:
                yield query
            if is_late:
                query = None
    finally:
        if query is not None:
            query.stop()  # a server would go on with it
