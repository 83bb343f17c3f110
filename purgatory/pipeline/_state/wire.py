"""Thousands of rows in one value, for the way to Spark's stateful processors and between them.

Spark unpacks the rows of a stateful processor one by one in Python and builds frames of them again. That takes about
10 µs per row, which is more than the decision about it. So the rows of a bucket travel as one binary value. Spark
sorts, shuffles and passes on a few values in place of many rows::

    bucket  key       level           bucket  rows
         3  orders-1      7                3  <Arrow: orders-1 7, orders-9 2>
         0  orders-4      2     --->       0  <Arrow: orders-4 2>
         3  orders-9      2

A key belongs to a purgatory, and so does an operation. Their full names are the purgatory's name and their own, joined.
The *mark* of a row is a number made of all that it says. It tells a row delivered twice from another with the same
name. One of its bits (``NORMAL``) says whether an expiry is a normal end.

Rows go into the first stage as Arrow columns: one row per key of an operation, split by bucket in a few steps on whole
columns. In the JVM, the same would be generated, compiled and warmed up in each run. From the first stage to the second
they go as pickled tuples, which is the form that both use. Both forms live within one query and are never stored.
"""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.records import EVENT, OPERATION
from purgatory.journal.records.normal import EXPIRED
from purgatory.pipeline._rows.validity import LONGEST_MS
from purgatory.pipeline._tables.table import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from purgatory.pipeline._state.state_machines import Hit, Open
    from purgatory.pipeline._tables.table import PerPart

    Handed = tuple[list[Open], list[Hit], list[tuple[Any, ...]]]

#: Rows, one per key of an operation, that are looked at together: enough for the cost of a value not to count, few
#: enough to be held.
GATHERED: Final = 65_536

#: What stands between the purgatory and the rest in the names of keys and operations.
APART: Final = "\0"

_ESCAPE: Final = "\1"
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, its bits in disorder: a multiplication spreads what it is given

_ANSWERED: Final = pa.array([OPERATION, EVENT])
PACKED: Final = schema("bucket:rank rows:bytes")
#: The bit of a mark that says that an expiry is a normal end of the operation.
NORMAL: Final = 32
_WHOLE: Final = ["seq", "kind", "purgatory", "type", "operation", "keys", "delay_ms", "levels"]


def row_packer(buckets: int) -> PerPart:
    """Return a function for ``mapInArrow`` that packs rows of a trace into one value per bucket.

    The rows have a trace's columns, but for ``us`` in place of ``ts``, and ``reason`` and ``detail`` where they are
    malformed.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            keys = max(len(batch), pc.sum(pc.list_value_length(batch.column("keys"))).as_py() or 0)
            size = max(1, GATHERED * len(batch) // max(1, keys))
            for start in range(0, len(batch), size):
                gathered.append(batch.slice(start, size))
                count += min(GATHERED, keys)
                if count >= GATHERED:
                    yield _values(rows_by_key(pa.Table.from_batches(gathered), buckets))
                    gathered, count = [], 0
        if gathered:
            yield _values(rows_by_key(pa.Table.from_batches(gathered), buckets))

    return pack


def rows_by_key(rows: pa.Table, buckets: int) -> pa.Table:
    """One row per key, with the key's bucket. Rows that are neither an operation nor an event have none."""
    well = rows.filter(pc.and_(pc.is_null(rows.column("reason")), pc.is_in(rows.column("kind"), _ANSWERED)))
    well = well.combine_chunks()
    keys, levels = (well.column(name).combine_chunks() for name in ("keys", "levels"))
    counts = pc.list_value_length(keys).to_numpy()
    owner = np.repeat(np.arange(len(well)), counts)
    taken = pa.array(owner)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    purgatory = _escape(well.column("purgatory"))
    watched = pc.binary_join_element_wise(purgatory.take(taken), pc.list_flatten(keys), APART)
    watched = watched.combine_chunks().dictionary_encode()
    key = watched.indices.to_numpy()
    codes = np.array([_crc(name) for name in watched.dictionary.to_pylist()], np.uint64)
    level = pc.list_flatten(levels)
    us, delay_ms = (pc.fill_null(well.column(name), 0).to_numpy() for name in ("us", "delay_ms"))
    until_us = us + np.clip(delay_ms, 0, LONGEST_MS) * 1000
    said = (codes[key], number.astype(np.uint64), level.to_numpy().astype(np.uint64))
    is_normal = pc.fill_null(pc.match_substring(well.column("normal_ends"), EXPIRED), False)
    marks = _row_marks(said, (us.astype(np.uint64), delay_ms.astype(np.uint64)), owner)
    marks |= is_normal.to_numpy().astype(np.uint64) << np.uint64(NORMAL)
    # In full, in case that the row is late: once, with its first key.
    whole = well.select(_WHOLE).to_struct_array().combine_chunks().take(pa.array(owner, mask=number > 0))
    columns = {
        "bucket": pa.array((codes % np.uint64(buckets)).astype(np.int32)[key], pa.int32()),
        "tag": pc.if_else(pc.equal(well.column("kind"), EVENT), "event", "watch").take(taken),
        "us": pa.array(us[owner]),
        "operation": pc.binary_join_element_wise(purgatory, well.column("operation"), APART).take(taken),
        "number": pa.array(number.astype(np.int32)),
        "count": pa.array(counts[owner].astype(np.int32)),
        "watched": watched.dictionary.take(watched.indices),
        "level": level,
        "until_us": pa.array(until_us[owner]),
        "mark": pa.array(marks[owner].astype(np.int64)),
        "seq": pc.fill_null(well.column("seq"), 0).take(taken),
        # What an answer repeats: with the first key of an operation alone.
        "type": pc.fill_null(well.column("type"), "").take(pa.array(owner, mask=number > 0)),
        "delay_ms": pa.array(delay_ms[owner]),
        "reason": pa.nulls(len(owner), pa.string()),
        "detail": pa.nulls(len(owner), pa.string()),
        "row": whole,
    }
    bad = rows.filter(pc.is_valid(rows.column("reason")))
    return _with_malformed(pa.table(columns), bad, buckets) if len(bad) else pa.table(columns)


def _with_malformed(good: pa.Table, bad: pa.Table, buckets: int) -> pa.Table:
    rows = [
        {**row, "bucket": bucket_of(row["detail"], buckets), "tag": "malformed", "us": 0, "number": 0}
        for row in bad.select(["reason", "detail"]).to_pylist()
    ]
    return pa.concat_tables([good, pa.Table.from_pylist(rows, good.schema)])


def _escape(purgatory: pa.ChunkedArray) -> pa.ChunkedArray:
    """Escape the separator in the names of purgatories."""
    purgatory = pc.replace_substring(pc.fill_null(purgatory, ""), _ESCAPE, _ESCAPE + "e")
    return pc.replace_substring(purgatory, APART, _ESCAPE + "a")


def split_name(name: str) -> tuple[str, str]:
    """Split a full name into the purgatory and the operation."""
    purgatory, _, operation = name.partition(APART)
    return purgatory.replace(_ESCAPE + "a", APART).replace(_ESCAPE + "e", _ESCAPE), operation


def _row_marks(each: tuple[Any, ...], whole: tuple[Any, ...], owner: Any) -> Any:
    """The mark of each row: 32 bits of all that it says, for each of its keys and as a whole."""
    mixed = np.zeros(len(owner), np.uint64)
    for part in each:
        mixed = (mixed ^ part) * _MIX
        mixed ^= mixed >> np.uint64(29)
    rows = np.zeros(len(whole[0]), np.uint64)
    np.add.at(rows, owner, mixed)
    for part in whole:
        rows = (rows ^ part) * _MIX
        rows ^= rows >> np.uint64(29)
    return rows >> np.uint64(32)


def _values(rows: pa.Table) -> pa.RecordBatch:
    bucket = rows.column("bucket").to_numpy()
    order = np.argsort(bucket, kind="stable")
    numbers, starts = np.unique(bucket[order], return_index=True)
    rows = rows.drop_columns("bucket").take(pa.array(order)).combine_chunks()
    ends = np.append(starts, len(order))[1:]
    values = [_value(rows.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int32()), pa.array(values, pa.binary())], ["bucket", "rows"]
    )


def _value(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(value: bytes) -> pa.Table:
    """Unpack the rows of one value of ``row_packer``."""
    return pa.ipc.open_stream(value).read_all()


def bucket_of(name: str, buckets: int) -> int:
    """The bucket of a key or an operation. Not ``hash``, which is another one in every process."""
    return _crc(name) % buckets


def _crc(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))


def dump_parts(
    opened: list[Open], hits: list[Hit], aside: list[tuple[Any, ...]], buckets: int
) -> Iterator[tuple[int, bytes]]:
    """Pickle the rows of a bucket of the first stage, one value per bucket of the second."""
    for start in range(0, max(len(opened), len(hits), len(aside)), GATHERED):
        parts: defaultdict[int, Handed] = defaultdict(lambda: ([], [], []))
        for place, rows in enumerate((opened, hits, aside)):
            for row in rows[start : start + GATHERED]:  # type: ignore[index]
                parts[bucket_of(row[0] or "", buckets)][place].append(row)
        for bucket, part in parts.items():
            yield bucket, pickle.dumps(part, 5)


def load_parts(value: bytes) -> Handed:
    """Load the rows of one value of ``dump_parts``. The same program wrote it in the same query."""
    return pickle.loads(value)  # type: ignore[no-any-return]  # noqa: S301
