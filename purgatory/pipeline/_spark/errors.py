"""The errors of places and sessions. Imports no pyspark, so that a local run can raise them."""

from __future__ import annotations

from purgatory.journal.records.errors import reduced


class PlaceError(ValueError):
    """Base class of the errors about a ``place``: a folder, or an address in a store."""

    __reduce__ = reduced

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} {problem}")
        self.place = place


class PlaceUnusable(PlaceError):
    """A place that cannot be read or written."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(place, f"cannot be used: {why}")


class PlaceMissing(PlaceError):
    """A place that does not exist."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "does not exist")


class OutputTaken(PlaceError):
    """An output that another query has written."""

    def __init__(self, place: str, form: str) -> None:
        super().__init__(place, f"holds {form} files of another checkpoint or format: use a new output")


class NoConnect(ValueError):
    """The command needs a session with a JVM in this process."""

    __reduce__ = reduced

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} does not run through Spark Connect, because it needs the JVM for places and settings: "
            "use a classic session (--master, spark-submit)"
        )
