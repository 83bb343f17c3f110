"""The operations that a stream has parked, read from its checkpoint alone: for `monitor --stream`, and for a restart.

Spark's own reader reads the state of both stages. Of each bucket only the agenda is read. Its directory has the sizes
of the leaves. So it takes seconds, however much is parked, and it works while the query runs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import attrs

from purgatory.pipeline._spark import places
from purgatory.pipeline._spark.session import STREAMING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@attrs.frozen
class Standing:
    """The content of a stream's state after its last batch."""

    batch: int  # -1: no batch has finished
    parked: int  # operations
    waiting: int  # keys and watches, of which up to half may be dead
    inbox: int  # rows after the watermark, one per key of an operation

    def __str__(self) -> str:
        rest = f"{self.waiting:,} keys and watches, {self.inbox:,} rows ahead of the watermark"
        return f"after batch {self.batch}: {self.parked:,} operations parked, {rest}"


def standing(spark: SparkSession, checkpoint: str) -> Standing:
    """Read what a stream's checkpoint holds.

    Raises:
        PlaceMissing: there is no checkpoint.
        PlaceUnusable: this session cannot read there.
    """
    places.classic(spark, "monitor")
    places.readable(spark, checkpoint)
    if not places.exists(spark, f"{checkpoint}/state/0"):
        return Standing(-1, 0, 0, 0)
    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    stages = spark.read.format("state-metadata").load(checkpoint).collect()
    counts = {"parked": 0, "waiting": 0, "inbox": 0}
    for number in {stage["operatorId"]: stage for stage in stages}:
        for agenda in _agendas(spark, checkpoint, number):
            *directories, _ = agenda
            # The third column of a directory has the sizes. Stage 1 has two directories: its keys and its inbox.
            sizes = [sum(directory[2]) for directory in directories]
            for name, size in zip(("parked",) if len(sizes) == 1 else ("waiting", "inbox"), sizes, strict=True):
                counts[name] += size
    return Standing(max(stage["maxBatchId"] for stage in stages), **counts)


def _agendas(spark: SparkSession, checkpoint: str, stage: int) -> Iterator[tuple[Any, ...]]:
    reader = spark.read.format("statestore").option("operatorId", stage).option("stateVarName", "agenda")
    for row in reader.load(checkpoint).select("value.bytes").collect():
        yield pickle.loads(row["bytes"])  # a checkpoint is as trusted as the program  # noqa: S301
