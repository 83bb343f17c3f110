"""The errors of places and sessions, and Spark's own in one line. Imports no pyspark, for local runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from purgatory._distribution import NAME
from purgatory.journal.records.errors import reduced

_LONGEST: Final = 500
_SEGMENT: Final = re.compile(r"(?:journal|trace)-\d{20}-\d{20}\.parquet")
_CAUSE: Final = re.compile(r"(Caused by: )?([\w.$]+(?:Exception|Error)): ")
_NO_PACKAGE: Final = re.compile(r"No module named '(purgatory|timer|attr|structlog|prometheus_client)")


class PlaceError(ValueError):
    """Base class of the errors about a ``place``: a folder, an address in a store, or a table."""

    __reduce__ = reduced
    _problem = ""

    def __init__(self, place: str, why: str = "") -> None:
        super().__init__(f"{place} {self._problem}{why}")
        self.place = place


class PlaceUnusable(PlaceError):
    """A place that cannot be read or written."""

    _problem = "cannot be used: "


class PlaceMissing(PlaceError):
    """A place that does not exist."""

    _problem = "does not exist"


class OutputTaken(PlaceError):
    """An output of another format."""

    _problem = "holds files of another format or of an earlier version: use a new output"


def is_sparks(error: BaseException) -> bool:
    """Whether Spark or its JVM raised an error."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def describe(error: Exception) -> str:
    """The cause in Spark's report of a failed job, as one line without stack traces."""
    if _NO_PACKAGE.search(str(error)):
        return f"the Spark server cannot import this package; install '{NAME}[spark]' in the Python of its workers"
    text = str(error).partition("=== Streaming Query ===")[0]  # the query's plan
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    lines = [line for line in lines if line not in {"Driver stacktrace:", "JVM stacktrace:"}]
    lines = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling ")]
    causes = [line for line in lines if _CAUSE.match(line)]
    cause = causes[-1].removeprefix("Caused by: ") if causes else (lines or [type(error).__name__])[0]
    segments = sorted(set(_SEGMENT.findall(str(error))))
    if segments and not any(name in cause for name in segments):
        cause = f"{', '.join(segments[:3])}: {cause}"
    return cause if len(cause) <= _LONGEST else f"{cause[: _LONGEST - 1]}…"


@contextmanager
def reporting(place: str) -> Iterator[None]:
    """Report an error of Spark's about a place in one line.

    Raises:
        PlaceMissing: there is nothing.
        PlaceUnusable: any other error.
    """
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        if getattr(error, "getCondition", lambda: None)() in {"PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND"}:
            raise PlaceMissing(place) from None
        raise PlaceUnusable(place, describe(error)) from None
