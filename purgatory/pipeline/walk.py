"""The walks over a journal that a report is made of: Spark hands out the rows, `kernels` sums them up.

A task is a range of sequence numbers, read as Arrow columns straight from the segments, which the workers
must see; sealed or open, a row is read once wherever it is by then. Each walk sees the same rows: what was
there when the first began. A journal in a store that only Spark can reach is read by Spark (sealed
segments alone) and handed to the same kernels.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.folder import list_segments, tip
from purgatory.journal.records.parquet import read_range
from purgatory.pipeline import kernels
from purgatory.pipeline.load import check_kind, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    import pyarrow as pa

    from purgatory.pipeline.exact import Wanted
    from purgatory.pipeline.kernels import Numbers

    Summary: TypeAlias = Callable[[kernels.Columns, int], pa.Table]
    Parts: TypeAlias = dict[str, Summary]

_TASK_ROWS: Final = 1_000_000
_LEAST_ROWS: Final = 50_000


@attrs.frozen
class Span:
    """What a journal is about, at a glance."""

    first_us: int
    last_us: int
    operations: int
    malformed: int
    waited_us: int


@attrs.frozen
class Summaries:
    """What the tables are made from. Keys may come in several rows, to be added up; the others are on the driver."""

    keys: DataFrame
    outcomes: pa.Table
    waits: pa.Table
    bins: pa.Table
    slots: pa.Table
    moves: pa.Table


class Walk:
    """Goes over a journal, as often as needed.

    Raises:
        JournalMissing: there is no segment in the folder.
        JournalFormat: the folder holds a trace.
    """

    def __init__(self, spark: SparkSession, journal: str) -> None:
        self._spark = spark
        self._journal = journal
        self._ranges: list[tuple[int, int]] = []
        self._found: DataFrame | None = None
        if "://" not in journal:
            ends = tip(Path(journal))
            check_kind(list_segments(Path(journal)), JOURNAL, journal)
            rows = ends["last"] - ends["first"] + 1
            cores = spark.sparkContext.defaultParallelism
            tasks = max(1, min(cores, rows // _LEAST_ROWS), -(-rows // _TASK_ROWS))
            bounds = [ends["first"] - 1 + rows * n // tasks for n in range(tasks + 1)]
            self._ranges = list(pairwise(bounds))

    def span(self) -> Span:
        """From when to when, how many operations, how many rows can't be true."""
        rows = self._gather({"span": kernels.span})["span"].to_pylist()
        return Span(
            min((row["first_us"] for row in rows if row["operations"]), default=0),
            max((row["last_us"] for row in rows if row["operations"]), default=0),
            *(sum(row[name] for row in rows) for name in ("operations", "malformed", "waited_us")),
        )

    def summaries(self, window_us: int, slot_us: int, fine_us: int) -> Summaries:
        """All that the tables need but for the order of waits and events, in one walk."""
        parts: Parts = {
            "outcomes": lambda rows, _: kernels.outcomes(rows, window_us),
            "waits": lambda rows, _: kernels.waits(rows),
            "bins": lambda rows, _: kernels.bins(rows, window_us),
            "slots": lambda rows, _: kernels.slots(rows, slot_us),
            "moves": lambda rows, _: kernels.moves(rows, fine_us),
            "keys": lambda rows, _: kernels.keys(rows, window_us),
        }
        self._found = self._go(parts, kernels.ALL_COLUMNS).cache()
        keys = self._found.where(F.col("part") == "keys").select(*(name for name, _ in kernels.KEYS))
        return Summaries(keys, **_gathered(self._found, [part for part in parts if part != "keys"]))

    def again(
        self, window_us: int, bins: Mapping[tuple[str, str], Numbers], wanted: Wanted
    ) -> tuple[pa.Table, pa.Table]:
        """How often each exact wait occurs in these windows and bins; arrivals and departures in the wanted slots."""
        parts: Parts = {"inside": lambda rows, _: kernels.inside(rows, window_us, bins), "moves": _cut(wanted)}
        found = self._gather(parts)
        return found["inside"], found["moves"]

    def cut(self, wanted: Wanted) -> pa.Table:
        """Arrivals and departures in the wanted slots, by shorter ones."""
        return self._gather({"moves": _cut(wanted)})["moves"]

    def waits(self) -> pa.Table:
        """Operations by purgatory, type, outcome and wait."""
        return self._gather({"waits": lambda rows, _: kernels.waits(rows)})["waits"]

    def close(self) -> None:
        """Let go of what is kept between the tables."""
        if self._found is not None:
            self._found.unpersist()

    def _gather(self, parts: Parts) -> dict[str, pa.Table]:
        return _gathered(self._go(parts), parts)

    def _go(self, parts: Parts, columns: tuple[str, ...] = kernels.COLUMNS) -> DataFrame:
        """Every row is looked at once, however many summaries are wanted."""
        layout = from_arrow_schema(kernels.LAYOUT)
        if not self._ranges:
            frame = load(self._spark, self._journal, JOURNAL).select(*columns)
            return frame.mapInArrow(lambda batches: _rows(kernels.walk(batches, parts)), layout)
        ranges, folder = self._ranges, Path(self._journal)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from _rows(kernels.walk(_read(folder, columns, *ranges[number]), parts))

        return self._spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(task, layout)


def _cut(wanted: Wanted) -> Summary:
    return lambda rows, _: kernels.moves_inside(rows, wanted.width_us, wanted.into_us, wanted.slots)


def _rows(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()


def _read(folder: Path, columns: tuple[str, ...], after: int, upto: int) -> Iterator[pa.RecordBatch]:
    return read_range(folder, JOURNAL, after, upto, columns=columns, words=kernels.REPEATED)


def _gathered(found: DataFrame, parts: Iterable[str]) -> dict[str, pa.Table]:
    """Summaries on the driver, each group once."""
    blobs: dict[str, list[bytes]] = {part: [] for part in parts}
    for part, blob in found.where(F.col("blob").isNotNull()).select("part", "blob").collect():
        blobs[part].append(bytes(blob))
    return {part: kernels.unpacked(part, held) for part, held in blobs.items()}
