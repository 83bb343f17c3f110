"""The engine for journals that outgrow one machine: Spark's own SQL, over its own reader, on its own executors."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import SEALED
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._rows.completeness import Run, runs_of
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._spark import places
from purgatory.pipeline._spark.errors import reporting
from purgatory.pipeline._spark.names import is_folder, is_table
from purgatory.pipeline._tables.engine import Engine
from purgatory.pipeline._tables.table import typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from purgatory.journal.records import Schema
    from purgatory.pipeline._tables.table import Mapped, Table


class Cluster(Engine):
    """Runs SQL over journals, or over a trace, on Spark.

    Args:
        spark: the session.
        journals: folders of journals or of a fleet's journals, or places that only Spark reads.
        between: the range of time that is read.
        schema: what they hold.
    """

    name = "spark"
    each_key = "explode_outer(keys)"
    each_pair = "inline(arrays_zip(keys, levels)) as (key, level)"

    def __init__(
        self, spark: SparkSession, journals: Sequence[str], between: Between = ALL, schema: Schema = JOURNAL
    ) -> None:
        self._spark = spark
        super().__init__(journals, between, schema)

    def _qualified(self, place: str) -> str:
        files = [] if is_table(place) else places.files(self._spark, place)
        return files[0].rpartition("/")[0] if files else place

    def _promised(self) -> Sequence[Run]:
        remote = [not is_folder(name) for name in self.journals]
        if any(remote) and not all(remote):
            raise ValueError("give folders, or places that Spark reads (s3a://...), not both at once")
        if not any(remote):
            return super()._promised()
        return list(map(self._named, self.journals))

    def _named(self, place: str) -> Run:
        """The rows that should be in a store: by the names of the segments.

        Raises:
            JournalFormat: a store holds no segment.
            PlaceMissing: there is no such place, as the driver sees it.
            PlaceUnusable: this session can't look there.
        """
        if is_table(place):
            with reporting(place):
                ends = self._spark.table(place).selectExpr("min(seq)", "max(seq)").first()
            return Run(place, *ends) if ends and ends[0] is not None else Run(place, 0, -1)
        files = [file.rpartition("/")[2] for file in places.files(self._spark, place)]
        spans = [(int(match[2]), int(match[3])) for file in files if (match := SEALED.fullmatch(file))]
        if not spans:
            raise JournalFormat(f"{place} holds no sealed segment of a {self.schema.name}")
        return Run(place, min(first for first, _ in spans), max(last for _, last in spans))

    def open(self, *, allow_gaps: bool) -> list[str]:
        """Check that every row is there, and provide the relation ``source``."""
        damaged: list[str] = []
        noted = damaged if allow_gaps else None
        frames = [load(self._spark, name, self.schema, damaged=noted, between=self._between) for name in self.journals]
        ends = {run.journal: run.last for run in self.expected}
        read = zip(self.journals, frames, strict=True)
        runs = [run for name, frame in read for run in runs_of(frame, name, ends.get(name, -1))]
        whole = self._between == ALL or not is_folder(self.journals[0])  # a store is read whole
        unread = self._unread(runs, damaged, whole=whole, allow_gaps=allow_gaps)
        rows = reduce(DataFrame.unionByName, frames)
        rows.where(self._between.of_rows(self.schema)).createOrReplaceTempView("source")
        return unread

    def given(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""
        places.frame_of(self._spark, rows).createOrReplaceTempView(name)

    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""
        self._spark.sql(sql).createOrReplaceTempView(name)

    def keep(self, name: str, sql: str, words: Sequence[str] = ()) -> None:
        """Compute a relation once, for several tables that read it.

        The records themselves are no such relation: Spark reads them from Parquet with less work than from its cache.
        """
        if words:
            self.view(name, sql)
            return
        rows = self._spark.sql(sql).persist()
        self._closing.callback(rows.unpersist)
        rows.createOrReplaceTempView(name)

    def save(self, name: str, place: str) -> None:
        """Write a relation as Parquet. From then on, its name means what was written."""
        rows = self._spark.table(name)
        if is_table(place):
            rows.write.mode("overwrite").saveAsTable(place)
        else:
            rows.write.mode("overwrite").parquet(place)
        saved = self._spark.table(place) if is_table(place) else self._spark.read.parquet(place)
        saved.createOrReplaceTempView(name)

    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""
        return typed(self._spark.sql(table.sql).toArrow(), table)

    def mapped(self, work: Mapped) -> pa.Table:
        """Apply a function to a table's rows, in one task per part."""
        columns = work.table.columns
        rows = self._spark.sql(work.table.sql).toDF(*columns.names).to(from_arrow_schema(columns))
        if work.by:
            rows = rows.repartition(*work.by).sortWithinPartitions(*work.by, *work.order)
        return rows.mapInArrow(work.function, from_arrow_schema(work.columns)).toArrow().cast(work.columns)
