"""An Iceberg table, by ``pyiceberg``: without a jar and without a JVM. Needs the extra ``[iceberg]``.

The table is named ``catalog.schema.table``. ``pyiceberg`` finds the catalog by its own configuration
(``.pyiceberg.yaml``, or variables such as ``PYICEBERG_CATALOG__MAIN__URI``).

The number of a stream's last batch is a property of the table, set in the transaction that appends the rows. By default
``pyiceberg`` repeats a commit that another one has overtaken, so two drivers would write one batch twice. The table is
therefore told to retry nothing, and the second driver fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.transforms import IdentityTransform

from purgatory.pipeline._spark.errors import PlaceMissing
from purgatory.pipeline._spark.sinks import TableSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

_NO_RETRY: Final = {"commit.retry.num-retries": "0"}


@attrs.define
class IcebergSink(TableSink):
    """An Iceberg table of a catalog."""

    _version: Table | None = attrs.field(default=None, init=False)

    def last_batch(self, stream: str) -> int | None:
        """The number of the last batch that a stream has written. None if there is none."""
        self._version = self._load()
        number = None if self._version is None else self._version.properties.get(_property(stream))
        return None if number is None else int(number)

    def commit(self, rows: pa.Table, stream: str, number: int) -> None:
        """Append rows and note the batch's number, in the version of the table that ``last_batch`` has read."""
        table = self._version or self._create(rows.schema)
        with table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(rows.schema)
            transaction.set_properties({**_NO_RETRY, _property(stream): str(number)})
            transaction.append(rows)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the latest version."""
        table = self._load()
        files = [] if table is None else [task.file.file_path for task in table.scan().plan_files()]
        if not files:
            raise PlaceMissing(self.table)
        return spark.read.option("mergeSchema", "true").parquet(*files)

    def _load(self) -> Table | None:
        catalog, _, name = self.table.partition(".")
        try:
            return load_catalog(catalog).load_table(name)
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema) -> Table:
        catalog, _, name = self.table.partition(".")
        table = load_catalog(catalog).create_table(name, schema, properties=_NO_RETRY)
        with table.update_spec() as update:
            update.add_field("date", IdentityTransform(), "date")
        return table


def _property(stream: str) -> str:
    return f"purgatory.batch.{stream}"
