"""The engine for journals that outgrow one machine: Spark's own SQL, over its own reader, on its own executors."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records import JOURNAL
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.rows.completeness import IncompleteJournal, Run, checked, promised
from purgatory.pipeline.rows.load import with_purgatory
from purgatory.pipeline.spark import places
from purgatory.pipeline.tables import relations
from purgatory.pipeline.tables.engine import Engine, Found

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from purgatory.journal.records import Schema
    from purgatory.pipeline.rows.completeness import Gap
    from purgatory.pipeline.tables.engine import Mapper
    from purgatory.pipeline.tables.relations import Table


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
        self._kept: list[DataFrame] = []
        super().__init__(journals, between, schema, partial(places.qualified, spark))

    def _promised(self) -> Sequence[Run]:
        remote = ["://" in name for name in self.journals]
        if any(remote) and not all(remote):
            message = "give folders, or places that Spark reads (s3a://...), not both at once"
            raise ValueError(message)
        if not any(remote):
            return super()._promised()
        promises = [promised(self._spark, name, self.schema) for name in self.journals]
        return [Run(number, each.first, each.last) for number, each in enumerate(promises)]

    def open(self, *, allow_gaps: bool) -> Found:
        """Check that every row is there, and provide the relation ``source``."""
        gaps: list[Gap] = []
        damaged: list[str] = []
        frames = []
        for name in self.journals:
            rows, missing = checked(self._spark, name, self.schema, self._between, damaged if allow_gaps else None)
            frames.append(rows)
            gaps += missing
        if gaps and not allow_gaps:
            raise IncompleteJournal(gaps, damaged)
        rows = with_purgatory(reduce(DataFrame.unionByName, frames), self.schema)
        rows.where(self._between.of_rows(self.schema)).createOrReplaceTempView("source")
        return Found(gaps, damaged)

    def given(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""
        self._spark.createDataFrame(rows).createOrReplaceTempView(name)

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
        self._kept.append(self._spark.sql(sql).persist())
        self._kept[-1].createOrReplaceTempView(name)

    def save(self, name: str, place: str) -> None:
        """Write a relation as Parquet. From then on, its name means what was written."""
        self._spark.table(name).write.mode("overwrite").parquet(place)
        self._spark.read.parquet(place).createOrReplaceTempView(name)

    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""
        return relations.typed(self._spark.sql(table.sql).toArrow(), table)

    def mapped(
        self,
        table: Table,
        function: Mapper,
        columns: pa.Schema,
        by: Sequence[str] = (),
        order: Sequence[str] = (),
    ) -> pa.Table:
        """Apply a function to a table's rows, in one task per part."""
        rows = self._spark.sql(table.sql).toDF(*table.columns.names).to(from_arrow_schema(table.columns))
        if by:
            rows = rows.repartition(*by).sortWithinPartitions(*by, *order)
        return rows.mapInArrow(function, from_arrow_schema(columns)).toArrow().cast(columns)

    def close(self) -> None:
        """Remove what is kept between the tables."""
        while self._kept:
            self._kept.pop().unpersist()
