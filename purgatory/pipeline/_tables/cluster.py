"""The engine for journals that outgrow one machine: Spark reads and reduces the records, DuckDB does the rest.

A relation is where the relations are that its SQL reads. The records are Spark's. What is reduced from them
(``Cluster.reduce``) comes to the driver, all such relations in one query, and the tables that read it run on DuckDB. A
reduced relation of more than ``MOST_COLLECTED`` rows stays on Spark, and so does all that reads it. If that also reads
a small relation, Spark is given a copy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import SEALED
from purgatory.pipeline._rows.between import ALL, Between
from purgatory.pipeline._rows.completeness import Run
from purgatory.pipeline._rows.load import load, runs_of
from purgatory.pipeline._spark.errors import reporting
from purgatory.pipeline._spark.places import files, frame_of, is_folder, is_table
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline._tables.table import with_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from purgatory.journal.records import Schema
    from purgatory.pipeline._tables.table import PerPart, Table

#: Rows of a reduced relation, at most, that are collected. They take about 100 bytes each.
MOST_COLLECTED: Final = 1_000_000
_READ: Final = re.compile(r"\b(?:from|join)\s+(\w+)")


class Cluster(Local):
    """Runs SQL over journals, or over a trace, on Spark, and what follows from few rows in the driver.

    Args:
        spark: the session.
        journals: folders of journals or of a fleet's journals, or places that only Spark reads.
        between: the range of time that is read.
        schema: what they hold.
    """

    name = "spark"
    each_pair = "inline(arrays_zip(keys, levels)) as (key, level)"

    def __init__(
        self, spark: SparkSession, journals: Sequence[str], between: Between = ALL, schema: Schema = JOURNAL
    ) -> None:
        self._spark = spark
        self._remote: set[str] = set()  # relations on Spark
        self._local: set[str] = set()  # relations in the driver
        self._collected: list[pa.Table] = []
        self._large: list[str] = []
        super().__init__(journals, between, schema)

    def _qualified(self, place: str) -> str:
        listed = [] if is_table(place) else files(self._spark, place)
        return listed[0].rpartition("/")[0] if listed else place

    def _expected_runs(self) -> Sequence[Run]:
        remote = [not is_folder(name) for name in self.journals]
        if any(remote) and not all(remote):
            raise ValueError("give folders, or places that Spark reads (s3a://...), not both at once")
        return list(map(self._expected_run, self.journals)) if any(remote) else super()._expected_runs()

    def _expected_run(self, place: str) -> Run:
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
        names = [file.rpartition("/")[2] for file in files(self._spark, place)]
        spans = [(int(match[2]), int(match[3])) for name in names if (match := SEALED.fullmatch(name))]
        if not spans:
            raise JournalFormat(f"{place} holds no sealed segment of a {self.schema.name}")
        return Run(place, min(first for first, _ in spans), max(last for _, last in spans))

    def open(self, *, allow_gaps: bool) -> list[str]:
        """Check that every row is there, and provide the relation ``source``."""
        self._connect()
        damaged: list[str] = []
        noted = damaged if allow_gaps else None
        frames = {
            name: load(self._spark, name, self.schema, damaged=noted, between=self._between) for name in self.journals
        }
        runs = runs_of(frames, {run.journal: run.last for run in self.expected})
        whole = self._between == ALL or not is_folder(self.journals[0])  # a store is read whole
        unread = self._unread(runs, damaged, whole=whole, allow_gaps=allow_gaps)
        rows = reduce(DataFrame.unionByName, frames.values())
        self._name("source", rows.where(self._between.of_rows(self.schema)))
        return unread

    @property
    def summary(self) -> str:  # type: ignore[override]
        """How many reduced rows are in the driver, and which relations are too large for it."""
        rows, size = sum(map(len, self._collected)), sum(table.nbytes for table in self._collected)
        large = f", on Spark: {', '.join(self._large)}" if self._large else ""
        return f"{rows:,} rows ({size / 1e6:.1f} MB) in the driver{large}"

    def register(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""
        super().register(name, rows)
        self._remote.discard(name)
        self._local.add(name)

    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""
        if self._reads_remote(sql):
            self._name(name, self._spark.sql(sql))
        else:
            super().view(name, sql)
            self._local.add(name)

    def keep(self, name: str, sql: str, words: Sequence[str] = ()) -> None:
        """Compute a relation once, for several tables that read it.

        The records themselves are no such relation: Spark reads them from Parquet with less work than from its cache.
        """
        if not self._reads_remote(sql):
            super().keep(name, sql, words)
            self._local.add(name)
            return
        rows = self._spark.sql(sql)
        if not words:
            rows = rows.persist()
            self._closing.callback(rows.unpersist)
        self._name(name, rows)

    def reduce(self, relations: Mapping[str, str]) -> None:
        """Compute relations that have far fewer rows than there are records. None of them reads another one."""
        remote = {name: sql for name, sql in relations.items() if self._reads_remote(sql)}
        for name in relations.keys() - remote.keys():
            self.keep(name, relations[name])
        if not remote:
            return
        frames = {name: self._spark.sql(sql).limit(MOST_COLLECTED + 1) for name, sql in remote.items()}
        shared = {name: _shared_names(rows.dtypes) for name, rows in frames.items()}
        parts = [rows.toDF(*shared[name]).withColumn("relation", F.lit(name)) for name, rows in frames.items()]
        every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts).toArrow()
        for name, sql in remote.items():
            own = every.filter(pc.equal(every["relation"], name))
            part = own.select(shared[name]).rename_columns(frames[name].columns)
            if len(part) > MOST_COLLECTED:
                self._large.append(name)
                self.keep(name, sql)
            else:
                self._collected.append(part)
                self.register(name, part)

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
        """Return the rows of a table."""
        if self._reads_remote(table.sql):
            return with_schema(self._spark.sql(table.sql).toArrow(), table)
        return super().query(table)

    def apply(self, work: PerPart, table: Table, columns: pa.Schema, by: str = "", order: str = "") -> pa.Table:
        """Apply a function to a table's rows, in one task per part."""
        if not self._reads_remote(table.sql):
            return super().apply(work, table, columns, by, order)
        rows = self._spark.sql(table.sql).toDF(*table.columns.names).to(from_arrow_schema(table.columns))
        if by:
            rows = rows.repartition(*by.split()).sortWithinPartitions(*by.split(), *order.split())
        return rows.mapInArrow(work, from_arrow_schema(columns)).toArrow().cast(columns)

    def _name(self, name: str, rows: DataFrame) -> None:
        rows.createOrReplaceTempView(name)
        self._local.discard(name)
        self._remote.add(name)

    def _reads_remote(self, sql: str) -> bool:
        """Whether a query reads a relation on Spark. If so, Spark also gets what it reads of the driver's."""
        names = set(_READ.findall(sql))
        if not names & self._remote:
            return False
        for name in names & self._local:
            rows = self._database.sql(f"select * from {name}").to_arrow_table()
            # A sum of integers has a wider type on DuckDB.
            wide = [pa.int64() if pa.types.is_decimal(field.type) else field.type for field in rows.schema]
            rows = rows.cast(pa.schema(list(zip(rows.column_names, wide, strict=True))))
            frame_of(self._spark, rows).createOrReplaceTempView(name)
        return True


def _shared_names(columns: Iterable[tuple[str, str]]) -> list[str]:
    """Name the columns of a relation by their type and place: ``bigint 0``, ``bigint 1``, ``string 0``.

    Relations that are collected together share columns of these names. With a column for each of theirs, most of what
    is collected would be nulls, eight bytes each.
    """
    places: defaultdict[str, count[int]] = defaultdict(count)
    return [f"{kind} {next(places[kind])}" for _, kind in columns]
