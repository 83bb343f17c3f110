"""The engine for journals that outgrow one machine: Spark's own SQL, over its own reader, on its own executors."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory.journal.records import JOURNAL
from purgatory.pipeline.rows.between import ALL, Between
from purgatory.pipeline.rows.completeness import IncompleteJournal, Run, checked, promised
from purgatory.pipeline.spark import places
from purgatory.pipeline.tables import queries
from purgatory.pipeline.tables.engine import Found
from purgatory.pipeline.tables.journals import dropped_in, folders, left_out, there

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from purgatory.pipeline.rows.completeness import Gap
    from purgatory.pipeline.tables.queries import Table


class Cluster:
    """Runs SQL over journals on Spark.

    Args:
        spark: the session.
        journals: folders of journals or of a fleet's journals, or places that only Spark reads.
        between: the range of time that is read.
    """

    name = "spark"

    def __init__(self, spark: SparkSession, journals: Sequence[str], between: Between = ALL) -> None:
        self._spark = spark
        self._between = between
        self.journals: Sequence[str] = folders(journals, lambda place: places.qualified(spark, place))
        self.left_out: Sequence[str] = left_out(journals)
        self.dropped = dropped_in(self.journals)
        remote = ["://" in name for name in self.journals]
        if any(remote) and not all(remote):
            message = "give folders, or places that Spark reads (s3a://...), not both at once"
            raise ValueError(message)
        self.expected: Sequence[Run] = self._listed() if any(remote) else there(self.journals)
        self._kept: list[DataFrame] = []

    def open(self, *, allow_gaps: bool, expiry_normal: Collection[str] = ()) -> Found:
        """Check that every row is there, and provide the relations that tables read."""
        gaps: list[Gap] = []
        damaged: list[str] = []
        frames = []
        for name in self.journals:
            found = checked(self._spark, name, JOURNAL, self._between, damaged if allow_gaps else None)
            frames.append(found.rows)
            gaps += found.gaps
        if gaps and not allow_gaps:
            raise IncompleteJournal(gaps, damaged)
        self._relations(reduce(DataFrame.unionByName, frames), expiry_normal)
        return Found(gaps, damaged)

    def keep(self, name: str, sql: str) -> None:
        """Compute a relation once, for several tables that read it."""
        self._kept.append(self._spark.sql(sql).persist())
        self._kept[-1].createOrReplaceTempView(name)

    def query(self, table: Table) -> pa.Table:
        """The rows of a table."""
        return queries.typed(self._spark.sql(table.sql).toArrow(), table)

    def close(self) -> None:
        """Remove what is kept between the tables."""
        while self._kept:
            self._kept.pop().unpersist()

    def _relations(self, rows: DataFrame, expiry_normal: Collection[str]) -> None:
        spark = self._spark
        normal = [(name,) for name in sorted(set(expiry_normal))]
        spark.createDataFrame(normal, "normal string").createOrReplaceTempView("expiry_normal")
        micros = [F.unix_micros(name).alias(f"{name}_us") for name in ("created", "finished")]
        words = {name: F.coalesce(name, F.lit("")) for name in ("type", "instance")}
        source = rows.withColumns(words).select("*", *micros).drop("created", "finished")
        source.where(self._between.where("finished_us")).createOrReplaceTempView("source")
        spark.sql(queries.JUDGED).createOrReplaceTempView("judged")
        self.keep("facts", queries.FACTS)
        spark.sql(queries.RECORDS).createOrReplaceTempView("records")
        spark.sql(queries.WATCHES.format(each_key="explode_outer(keys)")).createOrReplaceTempView("watches")

    def _listed(self) -> list[Run]:
        """The rows that the names of a store's sealed segments promise."""
        promises = [promised(self._spark, name, JOURNAL) for name in self.journals]
        return [Run(number, each.first, each.last) for number, each in enumerate(promises)]
