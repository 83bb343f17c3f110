"""Whether a DataFrame of a journal or a trace has every row: for what is read by Spark's own reader (`load`).

The reader knows files, not sequence numbers: a segment that is gone from the folder is a file less. So before anything
is made of the rows, their numbers are gone through (one column of eight bytes), and compared with those that should be
there, as `coverage` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.journal.records import TRACE, one_purgatory
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import SEALED, end, list_segments, tip
from purgatory.journal.records.parquet import opened
from purgatory.pipeline.rows import coverage
from purgatory.pipeline.rows.coverage import Gap, IncompleteJournal, Run
from purgatory.pipeline.rows.load import load
from purgatory.pipeline.spark import places

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from purgatory.journal.records import Schema

_RUNS = "journal long, first long, last long"


def load_whole(
    spark: SparkSession, folder: str, schema: Schema, *, allow_gaps: bool = False
) -> tuple[DataFrame, list[str]]:
    """Every row, and, where gaps are allowed, what is missing.

    Raises:
        IncompleteJournal: rows are missing or there twice, and gaps aren't allowed.
        JournalDamaged: a segment can't be read, and gaps aren't allowed.
    """
    damaged: list[str] = []
    expected = [promised(spark, folder, schema)]
    frame = load(spark, folder, schema, damaged=damaged if allow_gaps else None)
    rows = frame.select("seq").where("seq is not null").mapInArrow(_runs, _RUNS).collect()
    runs = [Run(*row) for row in rows if row["last"] <= expected[0].last]  # what came since isn't asked for
    gaps = coverage.gaps(expected, runs, [folder])
    if gaps and not allow_gaps:
        raise IncompleteJournal(gaps)
    return frame, [*damaged, *map(str, gaps)]


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    runs: list[Run] = []
    for _ in coverage.noted(batches, 0, runs):
        pass
    yield from coverage.as_table(runs).to_batches()


def promised(spark: SparkSession, folder: str, schema: Schema) -> Run:
    """The rows that should be there: by the names of the segments, and what is in the open one.

    Raises:
        JournalFormat: a store holds no segment.
        PlaceMissing: there is no such place, as the driver sees it.
        PlaceUnusable: this session can't look there.
    """
    if "://" not in folder:
        ends = tip(Path(folder))
        return Run(0, ends["first"], max(ends["last"], ends["first"] - 1))
    places.readable(spark, folder)
    files = [file.rpartition("/")[2] for file in load(spark, folder, schema).inputFiles()]
    spans = [(int(match[2]), int(match[3])) for file in files if (match := SEALED.fullmatch(file))]
    if not spans:
        message = f"{folder} holds no sealed segment of a {schema.name}"
        raise JournalFormat(message)
    return Run(0, min(first for first, _ in spans), max(last for _, last in spans))


def check_streamable(folder: Path, *, allow_gaps: bool = False) -> None:
    """Look at a trace that is to be read file by file, by the names and versions of what there is of it.

    Raises:
        IncompleteJournal: a segment is missing between two others, and gaps aren't allowed.
        JournalFormat: a segment was written before events named their purgatory.
    """
    gaps = _missing_between(folder)
    if gaps and not allow_gaps:
        raise IncompleteJournal(gaps)
    for segment in list_segments(folder):
        if segment.path.suffix == ".parquet":
            with opened(segment.path, check=False) as (_, version):
                if one_purgatory(TRACE, version):
                    message = (
                        f"{segment.path.name} is of version {version}, in which events name no purgatory: use replay"
                    )
                    raise JournalFormat(message)


def _missing_between(folder: Path) -> list[Gap]:
    written = end(folder).next - 1
    segments = list_segments(folder)
    runs = [Run(0, each.first, each.last) for each in segments if each.last is not None and each.last >= each.first]
    if not runs:
        return []
    # An open segment is begun once all before it was in others.
    begun = min((each.first - 1 for each in segments if each.is_open), default=written)
    whole = Run(0, runs[0].first, max(begun, *(run.last for run in runs)))
    return [gap for gap in coverage.gaps([whole], runs, [str(folder)]) if not gap.doubled]
