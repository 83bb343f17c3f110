"""What a table is: its SQL and its columns.

Columns are matched with their schema by position, so no name needs quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import attrs
import pyarrow as pa

#: A function over the batches of a part of a table.
PerPart: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

INSTANT: Final = pa.timestamp("us", "UTC")
_TYPES = {"text": pa.string(), "int": pa.int64(), "real": pa.float64(), "rank": pa.int32(), "flag": pa.bool_()}
_TYPES |= {"texts": pa.list_(pa.string()), "instant": INSTANT, "bytes": pa.binary()}


def schema(text: str) -> pa.Schema:
    """A schema from ``name:type`` words. Without a type, a column is ``int``, or ``real`` if it ends in ``_ms``."""
    fields = [word.partition(":") for word in text.split()]
    return pa.schema([(name, _TYPES[kind or ("real" if name.endswith("_ms") else "int")]) for name, _, kind in fields])


def _columns(given: pa.Schema | str) -> pa.Schema:
    return schema(given) if isinstance(given, str) else given


def with_schema(rows: pa.Table, table: Table) -> pa.Table:
    """Give the rows of an engine the names and types of a table, and add its instant beside the microseconds."""
    columns = [column.cast(field.type) for column, field in zip(rows.columns, table.columns, strict=True)]
    named = pa.table(columns, schema=table.columns)
    return named.append_column(table.dated, named[f"{table.dated}_us"].cast(INSTANT)) if table.dated else named


@attrs.frozen
class Table:
    """One table: its SQL, its columns (or their ``schema`` as text), and which of them is to be an instant as well."""

    sql: str
    columns: pa.Schema = attrs.field(converter=_columns)
    dated: str = ""

    def of(self, relation: str) -> Table:
        """Return the same table, of a relation that has its rows."""
        return attrs.evolve(self, sql=f"select * from {relation}")
