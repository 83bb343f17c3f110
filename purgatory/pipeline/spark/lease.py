"""A file that says who is at work on a place, so that another leaves it alone.

Who begins writes its name into it, and looks before each step whether it is still there. Who has said nothing for long
is taken for dead, and its lease is another's.

Rejected: a file that can be made by one only. Not every file system that Spark writes to can do that (a local one
can't, through Hadoop), and a holder that was stopped for longer than it may be silent goes on all the same. So between
a look and the step after it another may have come, here as there: what a lease is for must be right without it, too.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from purgatory.journal.records.errors import reduced
from purgatory.pipeline.spark import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


class AnotherHolds(ValueError):
    """Another is at work there, or has taken this one for dead."""

    __reduce__ = reduced

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"another is at work, says {place}: wait until it is done; if it was killed, an hour")


class Lease:
    """One run's claim."""

    def __init__(self, spark: SparkSession, place: str, *, silent_s: float, now: Callable[[], float]) -> None:
        self._spark = spark
        self._place = place
        self._silent_s = silent_s  # who hasn't said anything for so long is dead
        self._now = now
        self._holder = uuid4().hex

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it.

        Raises:
            AnotherHolds: another does, and isn't silent.
        """
        text = places.read(self._spark, self._place)
        if text is not None and abs(self._now() - json.loads(text)["at_s"]) < self._silent_s:
            raise AnotherHolds(self._place)
        self._say()
        try:
            yield
        finally:
            if self._is_mine():
                places.remove(self._spark, self._place)

    def still(self) -> None:
        """Before a step: see that nobody else has it, and say that this one lives.

        Raises:
            AnotherHolds: another has it.
        """
        if not self._is_mine():
            raise AnotherHolds(self._place)
        self._say()

    def _say(self) -> None:
        places.overwrite(self._spark, self._place, json.dumps({"holder": self._holder, "at_s": self._now()}))

    def _is_mine(self) -> bool:
        text = places.read(self._spark, self._place)
        return text is not None and json.loads(text)["holder"] == self._holder
