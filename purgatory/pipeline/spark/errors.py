"""The errors of places and sessions. Imports no pyspark, so that a local run can raise them."""

from __future__ import annotations

from purgatory.journal.records.errors import reduced


class PlaceUnusable(ValueError):
    """A folder, or a place of a store, that cannot be read or written."""

    __reduce__ = reduced

    def __init__(self, place: str, why: str) -> None:
        self.place = place
        super().__init__(f"{place} cannot be used: {why}")


class PlaceMissing(ValueError):
    """A folder that does not exist."""

    __reduce__ = reduced

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place} does not exist")


class OutputTaken(ValueError):
    """An output that another query has written."""

    __reduce__ = reduced

    def __init__(self, out: str, form: str) -> None:
        self.out = out
        super().__init__(f"{out} holds {form} files of another checkpoint or format: use a new output")


class NoConnect(ValueError):
    """The command needs a session with a JVM in this process."""

    __reduce__ = reduced

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} does not run through Spark Connect, because it needs the JVM for places and settings: "
            "use a classic session (--master, spark-submit)"
        )
