"""Thousands of rows in one value, for the way to Spark's stateful processors and between them.

Spark takes a stateful processor's rows apart one by one in Python and puts frames together of them again:
some ten microseconds a row, which is more than all that is decided about it. What it can't see it can't take
apart. So the rows of a bucket travel as one binary value, and Spark sorts, shuffles and hands over a few
values in place of many rows::

    bucket  key       level           bucket  rows
         3  orders-1      7                3  <Arrow: orders-1 7, orders-9 2>
         0  orders-4      2     --->       0  <Arrow: orders-4 2>
         3  orders-9      2

Into the first stage they go as Arrow, column by column, so that splitting them by bucket is a sort of numbers.
From the first to the second they go as pickled tuples, which is what the one has and the other wants. Both
are written and read within one query; nothing of it is ever kept.
"""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from purgatory.pipeline.cores import Hit, Open

GATHERED: Final = 65_536
"""Rows looked at together: enough for the cost of a value not to count, few enough to be held."""

PACKED: Final = "bucket int, rows binary"


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with a `bucket` column into a value for each bucket; for `mapInArrow`."""
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        gathered.append(batch)
        count += batch.num_rows
        if count >= GATHERED:
            yield _values(pa.Table.from_batches(gathered))
            gathered, count = [], 0
    if count:
        yield _values(pa.Table.from_batches(gathered))


def _values(rows: pa.Table) -> pa.RecordBatch:
    bucket = rows.column("bucket").to_numpy()
    order = np.argsort(bucket, kind="stable")
    found, starts = np.unique(bucket[order], return_index=True)
    rows = rows.drop_columns("bucket").take(pa.array(order)).combine_chunks()
    ends = np.append(starts[1:], len(order))
    values = [_value(rows.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
    return pa.RecordBatch.from_arrays([pa.array(found, pa.int32()), pa.array(values, pa.binary())], ["bucket", "rows"])


def _value(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(value: bytes) -> pa.Table:
    """The rows of one value of `pack`."""
    return pa.ipc.open_stream(value).read_all()


def home(name: str, buckets: int) -> int:
    """The bucket of an operation. Not `hash`, which is another one in every process."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % buckets


def hand(
    opened: list[Open], hits: list[Hit], aside: list[tuple[Any, ...]], buckets: int
) -> Iterator[tuple[int, bytes]]:
    """What a bucket of the first stage has for each bucket of the second."""
    for start in range(0, max(len(opened), len(hits), len(aside)), GATHERED):
        parts: dict[int, tuple[list[Open], list[Hit], list[tuple[Any, ...]]]] = {}
        for place, rows in enumerate((opened, hits, aside)):
            for row in rows[start : start + GATHERED]:  # type: ignore[index]
                bucket = home(row[0] or "", buckets)
                part = parts.get(bucket)
                if part is None:
                    part = parts[bucket] = ([], [], [])
                part[place].append(row)
        for bucket, part in parts.items():
            yield bucket, pickle.dumps(part, 5)


def handed(value: bytes) -> tuple[list[Open], list[Hit], list[tuple[Any, ...]]]:
    """What `hand` handed over. Written by the same program in the same query."""
    return pickle.loads(value)  # type: ignore[no-any-return]  # noqa: S301
