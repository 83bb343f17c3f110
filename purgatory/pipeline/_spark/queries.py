"""A query that is started again if a Python process of Spark's was late."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from purgatory.pipeline._spark.errors import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql.streaming.query import StreamingQuery

_log: Final = logging.getLogger("purgatory.pipeline")
_LATE_WORKER: Final = re.compile("Python worker.* connect back")
#: How often in a row: for about five minutes.
_MOST_RESTARTS: Final = 30


def until_ended(start: Callable[[], StreamingQuery]) -> Generator[StreamingQuery, None, None]:
    """Start a query, yield it once a second and at its end, and stop it when the caller closes this.

    Spark gives a Python process beside the driver ten seconds to connect, which no setting changes. On a busy machine
    it may need longer. The query is then started again, where it was. If that happens again and again, and no batch
    ends meanwhile, the error is raised: it is also Spark's only answer if that Python cannot run at all.
    """
    query: StreamingQuery | None = None
    has_ended, restarts = False, 0
    try:
        while not has_ended:
            is_late = False
            try:
                query = query or start()
                has_ended = bool(query.awaitTermination(1))
            except PySparkException as error:
                if not _LATE_WORKER.search(str(error)):
                    raise
                if query is not None and query.recentProgress:
                    restarts = 0
                if restarts == _MOST_RESTARTS:
                    raise
                restarts, is_late = restarts + 1, True
                _log.warning("query_started_again restarts=%d error=%r", restarts, describe(error))
            if query is not None:
                yield query
            if is_late:
                query = None
    finally:
        if query is not None:
            query.stop()  # a server would go on with it
