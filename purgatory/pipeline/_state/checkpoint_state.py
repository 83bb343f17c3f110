"""The content of a stream's state, read from its checkpoint alone: for ``monitor --stream``, and for a restart.

The state fixes some settings (``Fixed``): they decide where its rows are, and when a key is forgotten. Each bucket's
state has them beside its content. So nothing else needs to be written into a checkpoint, and a query that was started
by whatever program fails at the first bucket that has others.

Spark's own reader reads the state of both stages. Of each bucket only the agenda is read. Its directory has the sizes
of the leaves. So it takes seconds, however much is parked, and it works while the query runs.
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Final

import attrs

from purgatory.journal.records.errors import reduced
from purgatory.pipeline._spark.errors import PlaceMissing
from purgatory.pipeline._spark.places import exists, files
from purgatory.pipeline._spark.session import STREAMING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row, SparkSession

#: The version of the semantics and of the state's form. A checkpoint of another version is rejected.
SEMANTICS: Final = 7


class CheckpointDiffers(ValueError):
    """A checkpoint that these settings or this version cannot continue."""

    __reduce__ = reduced

    def __init__(self, checkpoint: str, differences: str) -> None:
        super().__init__(
            f"{checkpoint} was started with {differences}: use these settings, or a new checkpoint and a new output"
        )


@attrs.frozen
class Fixed:
    """The settings that must not change while a checkpoint exists."""

    buckets: int
    keep_us: int | None = None
    semantics: int = SEMANTICS

    def dump(self) -> str:
        """The settings as the state has them."""
        return json.dumps(attrs.asdict(self))

    def check(self, stored: str, checkpoint: str = "the checkpoint") -> None:
        """Compare these settings with those of a state.

        Raises:
            CheckpointDiffers: they are others.
        """
        other = json.loads(stored)
        mine = attrs.asdict(self)
        differences = [f"{name} {other.get(name)}, not {mine[name]}" for name in mine if other.get(name) != mine[name]]
        if differences:
            raise CheckpointDiffers(checkpoint, ", ".join(differences))


@attrs.frozen
class StreamStatus:
    """The content of a stream's state after its last batch."""

    batch: int  # -1: no batch has finished
    parked: int  # operations
    waiting: int  # keys and watches, of which up to half may be dead
    inbox: int  # rows after the watermark, one per key of an operation

    def __str__(self) -> str:
        rest = f"{self.waiting:,} keys and watches, {self.inbox:,} rows ahead of the watermark"
        return f"after batch {self.batch}: {self.parked:,} operations parked, {rest}"


def read_status(spark: SparkSession, checkpoint: str) -> StreamStatus:
    """Read what is parked in a stream's checkpoint.

    Raises:
        PlaceMissing: there is no checkpoint.
        PlaceUnusable: this session cannot read there.
    """
    if not exists(spark, f"{checkpoint}/metadata"):
        raise PlaceMissing(checkpoint)
    counts = {"parked": 0, "waiting": 0, "inbox": 0}
    batch = -1
    for stage in _stages(spark, checkpoint):
        batch = max(batch, stage["maxBatchId"])
        for row in _agendas(spark, checkpoint, stage["operatorId"]):
            *directories, _ = pickle.loads(row["bytes"])  # a checkpoint is as trusted as the program  # noqa: S301
            # The third column of a directory has the sizes. Stage 1 has two directories: its keys and its inbox.
            sizes = [sum(directory[2]) for directory in directories]
            for name, size in zip(("parked",) if len(sizes) == 1 else ("waiting", "inbox"), sizes, strict=True):
                counts[name] += size
    return StreamStatus(batch, **counts)


def check_settings(spark: SparkSession, checkpoint: str, fixed: Fixed, partitions: int) -> None:
    """Compare settings with those of the state in a checkpoint, if there is one.

    Raises:
        CheckpointDiffers: they are others, or the state is of another version.
        PlaceUnusable: this session cannot read there.
    """
    for stage in _stages(spark, checkpoint):
        if stage["numPartitions"] != partitions:
            raise CheckpointDiffers(checkpoint, f"partitions {stage['numPartitions']}, not {partitions}")
        for row in _agendas(spark, checkpoint, stage["operatorId"]):
            fixed.check(row["settings"], checkpoint)


def _stages(spark: SparkSession, checkpoint: str) -> list[Row]:
    commits = f"{checkpoint}/commits"
    if not exists(spark, commits) or not files(spark, commits):  # stopped in its first batch: there is no state yet
        return []
    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    rows = spark.read.format("state-metadata").load(checkpoint).collect()
    return list({row["operatorId"]: row for row in rows}.values())


def _agendas(spark: SparkSession, checkpoint: str, stage: int) -> Iterator[Row]:
    reader = spark.read.format("statestore").option("operatorId", stage).option("stateVarName", "agenda")
    rows = reader.load(checkpoint).select("value.*")
    if "settings" not in rows.columns:
        raise CheckpointDiffers(checkpoint, "an earlier version")
    yield from rows.collect()
