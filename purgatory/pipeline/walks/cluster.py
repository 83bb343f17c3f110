"""The engine for journals that outgrow a machine: Spark hands out the rows, its workers run the kernels.

A task is a range of a journal's sequence numbers, read as Arrow columns straight from the segments, which the workers
must see; sealed or open, a row is read once wherever it is by then. A journal in a store that only Spark can reach
(`s3a://...`) is read by Spark, sealed segments alone, and handed to the same kernels.

What a task can't read it says, instead of failing: Spark would try again three times, and then say it in a hundred
lines. Only keys, of which there may be any number, stay with Spark; they are spread by key, and what is wanted of them
is made of each portion where it is.
"""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalError, JournalMissing
from purgatory.journal.records.parquet import read_range
from purgatory.pipeline.rows import completeness
from purgatory.pipeline.rows.completeness import Run, promised
from purgatory.pipeline.rows.load import load
from purgatory.pipeline.spark import places
from purgatory.pipeline.walks import kernels
from purgatory.pipeline.walks.local import dropped_in, folders, left_out, there
from purgatory.pipeline.walks.walk import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from purgatory.pipeline.walks.walk import Parts

_TASKS: Final = 16
"""At least so many where there is work for them, whatever executors happen to be registered when it is planned."""
_TASK_ROWS: Final = 1_000_000
_LEAST_ROWS: Final = 50_000
_PORTIONS: Final = 16
"""Of the keys, at most: a portion is a task, which takes its time however few keys it has."""
_READ, _DAMAGED, _TROUBLE = "read", "damaged", "trouble"


@attrs.frozen(eq=False)
class _Keys:
    """Sums by key, in the rows that the tasks made of them: of a key there may be several."""

    rows: DataFrame
    count: int
    """How many portions."""

    def portions(self, make: Callable[[pa.Table], pa.Table]) -> list[pa.Table]:
        def portion(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            held = list(batches)
            if held:
                table = make(kernels.added_up("keys", pa.Table.from_batches(held)))
                yield from kernels.laid_out("portion", table).to_batches()

        spread = self.rows.repartition(self.count, "purgatory", "key")
        found = spread.mapInArrow(portion, from_arrow_schema(kernels.LAYOUT)).select("blob").collect()
        return [pa.ipc.open_stream(bytes(blob)).read_all() for (blob,) in found]


class Cluster:
    """Goes over journals on Spark."""

    name = "spark"

    def __init__(self, spark: SparkSession, journals: Sequence[str]) -> None:
        self._spark = spark
        self.journals = folders(journals, lambda place: places.qualified(spark, place))
        self.left_out = left_out(journals)
        self.dropped = dropped_in(self.journals)
        remote = ["://" in name for name in self.journals]
        if any(remote) and not all(remote):
            message = "give folders, or places that Spark reads (s3a://...), not both at once"
            raise ValueError(message)
        self._remote = any(remote)
        self.expected = self._listed() if self._remote else there(self.journals)
        self._kept: list[DataFrame] = []

    def walk(self, parts: Parts, columns: Sequence[str], *, allow_gaps: bool) -> Found:
        """Every row once, whatever task it is in."""
        found = self._rows(parts, tuple(columns), allow_gaps=allow_gaps)
        keys = None
        if "keys" in parts:
            found = found.cache()
            self._kept.append(found)
            names = [name for name, _ in kernels.KEYS]
            count = _PORTIONS if self._remote else min(_PORTIONS, len(self._ranges()))
            keys = _Keys(found.where(F.col("part") == "keys").select(*names), max(1, count))
        blobs: dict[str, list[bytes]] = {part: [] for part in (*parts, _READ, _DAMAGED, _TROUBLE) if part != "keys"}
        for part, blob in found.where(F.col("blob").isNotNull()).select("part", "blob").collect():
            blobs[part].append(bytes(blob))
        if blobs[_TROUBLE]:
            raise JournalError(blobs[_TROUBLE][0].decode())
        runs = [run for blob in blobs[_READ] for run in completeness.of_table(pa.ipc.open_stream(blob).read_all())]
        damaged = sorted({blob.decode() for blob in blobs[_DAMAGED]})
        sums = {part: kernels.unpacked(part, blobs[part]) for part in parts if part != "keys"}
        return Found(sums, keys, runs, damaged)

    def close(self) -> None:
        """Let go of the keys."""
        while self._kept:
            self._kept.pop().unpersist()

    def _rows(self, parts: Parts, columns: tuple[str, ...], *, allow_gaps: bool) -> DataFrame:
        layout = from_arrow_schema(kernels.LAYOUT)
        if self._remote:
            frames = [
                load(self._spark, name, JOURNAL).select(*columns, F.lit(number).alias("journal"))
                for number, name in enumerate(self.journals)
            ]
            rows = frames[0]
            for frame in frames[1:]:
                rows = rows.unionByName(frame)
            return rows.mapInArrow(lambda batches: _walked(_apart(batches, columns), parts), layout)
        journals, ranges = self.journals, self._ranges()

        def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    each = ranges[number]
                    damaged: list[str] = []
                    rows = read_range(
                        Path(journals[each.journal]),
                        JOURNAL,
                        each.first - 1,
                        each.last,
                        columns=columns,
                        words=kernels.REPEATED,
                        damaged=damaged if allow_gaps else None,
                    )
                    yield from _walked(((each.journal, batch) for batch in rows), parts)
                    for text in damaged:
                        yield _told(_DAMAGED, text)

        return self._spark.range(0, len(ranges), 1, max(1, len(ranges))).mapInArrow(task, layout)

    def _ranges(self) -> list[Run]:
        """A range of numbers for each task."""
        whole = sum(map(len, self.expected))
        found = []
        for each in self.expected:
            rows = len(each)
            share = max(1, _TASKS * rows // whole)
            tasks = max(1, min(share, rows // _LEAST_ROWS), -(-rows // _TASK_ROWS))
            bounds = [each.first + rows * n // tasks for n in range(tasks + 1)]
            found += [Run(each.journal, first, end - 1) for first, end in pairwise(bounds)]
        return found

    def _listed(self) -> list[Run]:
        """The rows that the names of a store's sealed segments promise."""
        promises = [promised(self._spark, name, JOURNAL) for name in self.journals]
        return [Run(number, each.first, each.last) for number, each in enumerate(promises)]


def _apart(batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each batch with the number of its journal; Spark puts rows of several files into one."""
    for batch in batches:
        numbers = batch.column("journal").to_numpy(zero_copy_only=False)
        for number in sorted(set(numbers.tolist())):
            yield number, batch.filter(pa.array(numbers == number)).select(list(columns))


def _walked(batches: Iterator[tuple[int, pa.RecordBatch]], parts: Parts) -> Iterator[pa.RecordBatch]:
    """A task's sums, then which rows it has seen, or what it could not read."""
    runs: list[Run] = []

    def seen() -> Iterator[pa.RecordBatch]:
        for journal, batch in batches:
            yield from completeness.noted([batch], journal, runs)

    try:
        for table in kernels.walk(seen(), parts):
            yield from table.to_batches()
    except JournalMissing as error:
        yield _told(_TROUBLE, f"a worker on {socket.gethostname()} doesn't see it: {error}")
    except JournalError as error:
        yield _told(_TROUBLE, str(error))
    if runs:
        yield from kernels.laid_out(_READ, completeness.as_table(runs)).to_batches()


def _told(part: str, text: str) -> pa.RecordBatch:
    blank: dict[str, Any] = dict.fromkeys(kernels.LAYOUT.names)
    return pa.RecordBatch.from_pylist([{**blank, "part": part, "blob": text.encode()}], kernels.LAYOUT)
