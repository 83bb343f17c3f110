"""The sealed form: Parquet, if pyarrow is installed. The only module of the journal that knows Arrow.

A sealed record takes about 13 bytes instead of 50, many tools read it, and Spark reads it in the JVM. Each page has a
checksum, which every reading verifies. The file's metadata has the version, and one more checksum::

    "PAR1" pages ... footer ( ... "purgatory.crc32" = "5a0c91d7" ... ) length "PAR1"

It covers all bytes of the file but those eight digits. Parquet has no checksum for what says how the pages are to be
read (their headers, and the footer). A flipped bit there gives another column, another count, or a crash inside Arrow.
So nothing of a file is interpreted before its checksum is right. Files of earlier versions, and files that another tool
rewrote, have none, and are read without. A separate checksum file was rejected: sealing, copying and deleting would
have to keep two files together, while other tools skip an unknown entry of the metadata.

The core install has no pyarrow. So the rest of the journal imports this module only once it meets a file of this form.
"""

from __future__ import annotations

import os
import zlib
from array import array
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.journal.records import ADDED, SCHEMAS, VERSION, Field, Record, Schema, TraceRow
from purgatory.journal.records.errors import JournalDamaged, JournalError, JournalFormat
from purgatory.journal.records.folder import AT_END, DROPPED
from purgatory.journal.records.frames import check_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from purgatory.journal.records.frames import Batch

NO_END: Final = 2**62
BATCH: Final = 1 << 17
"""Rows."""
_CRC: Final = "purgatory.crc32"
_MARK: Final = _CRC.encode() + b"\x18\x08"
"""The entry as it lies in a footer, up to its digits: its name, and what says that a text of eight bytes follows."""
_DIGITS: Final = 8
_CHUNK: Final = 1 << 20
_GROUP: Final = 1 << 18
_GROUP_BYTES: Final = 1 << 26
"""Rows and bytes of a group of rows in a sealed file. Arrow cannot read a group with more than 2 GB of keys."""
_ASCENDING: Final = ("seq", "created", "finished", "ts")
"""Columns whose neighbours differ by little. Stored as differences they take a quarter of the space."""


@cache
def arrow_schema(schema: Schema) -> pa.Schema:
    """The schema of sealed files, and of the rows of the data source."""
    types = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "int": pa.int64(),
        "ints": pa.list_(pa.int64()),
        "instant": pa.timestamp("us", "UTC"),
    }
    fields = [pa.field("seq", pa.int64()), *(pa.field(f.name, types[f.kind]) for f in schema.fields)]
    return pa.schema(fields, metadata={"purgatory.version": str(VERSION)})


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """A decoded frame as an Arrow record batch, without a Python object per row."""
    target = arrow_schema(batch.schema)
    count = len(batch)
    index = _buffer(batch.index, pa.uint32())
    columns: list[Any] = [pa.array(range(batch.first, batch.first + count), pa.int64())]
    places = {field.name: place for place, field in enumerate(batch.schema.texts)}
    for field in batch.schema.fields:
        wanted = target.field(field.name).type
        if field.name in places:
            values = pa.array([group[places[field.name]] for group in batch.groups], wanted)
            columns.append(values.take(index))
        elif field.name not in batch.numbers:
            columns.append(pa.array([field.default] * count, wanted))
        else:
            columns.append(_numbers(batch, field, wanted))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _numbers(batch: Batch, field: Field, wanted: pa.DataType) -> pa.Array:
    """A column of instants, of lists of numbers, or of numbers."""
    values = _buffer(batch.numbers[field.name], pa.int64())
    if field.kind == "instant":
        epoch_ns, ns_per_us = (pa.scalar(number, pa.int64()) for number in (batch.epoch_ns, 1000))
        return pc.divide(pc.add(values, epoch_ns), ns_per_us).cast(wanted)
    if field.kind == "ints":
        offsets = array("i", accumulate(batch.numbers[field.name + ".n"], initial=0))
        return pa.ListArray.from_arrays(_buffer(offsets, pa.int32()), values)
    return values


def _buffer(values: array[int], kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.tobytes())])


def write(path: Path, schema: Schema, frames: Iterable[Batch]) -> None:
    """Write frames to a Parquet file. One group of rows is in memory at a time."""
    dropped: list[int] = []

    def parts() -> Iterator[pa.RecordBatch]:
        for batch in frames:
            dropped.append(batch.dropped)
            yield to_arrow(batch)

    with path.open("wb") as file:
        write_groups(grouped(parts(), _GROUP), arrow_schema(schema), file, dropped)


def grouped(parts: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of at least so many rows, or of ``_GROUP_BYTES``: an operation may have 1,000 keys."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for part in parts:
        held.append(part)
        count, size = count + len(part), size + part.nbytes
        if count >= rows or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, count, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def write_groups(tables: Iterable[pa.Table], schema: pa.Schema, file: BinaryIO, dropped: Iterable[int] = ()) -> None:
    """Tables of a schema's columns as a sealed segment: compressed, with checksums of its pages and of all of it."""
    sink = pa.BufferOutputStream()
    packed = [name for name in _ASCENDING if name in schema.names]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        coerce_timestamps="us",
        write_page_checksum=True,
        use_dictionary=[path for path in _paths(schema) if path not in packed],
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=_GROUP)
        told = {DROPPED: str(sum(dropped))} if any(dropped) else {}
        writer.add_key_value_metadata({**told, _CRC: "0" * _DIGITS})
    data = memoryview(sink.getvalue())
    place = _digits_in(data)
    assert place is not None
    before, behind = data[:place], data[place + _DIGITS :]
    file.writelines((before, b"%08x" % zlib.crc32(behind, zlib.crc32(before)), behind))


def _paths(schema: pa.Schema) -> Iterator[str]:
    """The columns as Parquet names them."""
    for field in schema:
        yield f"{field.name}.list.element" if str(field.type).startswith("list") else field.name


def _digits_in(data: memoryview) -> int | None:
    """Where the digits of a file's checksum are, in all of it or in its end, or None if it has none."""
    start = max(0, len(data) - AT_END)
    place = bytes(data[start:]).rfind(_MARK)
    return None if place < 0 else start + place + len(_MARK)


def _check_sum(path: Path) -> bool:
    """Compare a file with its checksum. Return whether it has one.

    Raises:
        JournalDamaged: they differ.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - AT_END))
        place = _digits_in(memoryview(file.read()))
        if place is None:
            return False
        file.seek(0)
        crc = _crc_of(file, start + place, 0)
        digits = file.read(_DIGITS)
        crc = _crc_of(file, size - start - place - _DIGITS, crc)
    if digits != b"%08x" % crc:
        raise JournalDamaged(path.name, "its checksum is another")
    return True


def _crc_of(file: BinaryIO, count: int, crc: int) -> int:
    """Continue a checksum over the next bytes of a file, in parts, because another tool's file may be large."""
    while count > 0 and (chunk := file.read(min(count, _CHUNK))):
        crc = zlib.crc32(chunk, crc)
        count -= len(chunk)
    return crc


@contextmanager
def opened(path: Path, *, check: bool = True) -> Iterator[pq.ParquetFile]:
    """A sealed file. To ``check`` it, all of it is read first.

    Raises:
        JournalDamaged: it can't be read, its checksum or a page's is wrong, or columns of its version are missing.
        JournalFormat: it is of a version that this reader doesn't know.
    """
    try:
        is_checked = not check or _check_sum(path)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            # Every writer of ours says its version; a file without one was rewritten by another tool: it counts as new.
            said = (file.schema_arrow.metadata or {}).get(b"purgatory.version")
            if said is not None:
                check_version(int(said))
                if not is_checked:
                    _check_columns(path, file.schema_arrow)
            yield file
    except (JournalDamaged, FileNotFoundError):
        raise
    except JournalError as error:
        raise JournalFormat(f"{path.name}: {error}") from error
    except (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException) as error:  # Arrow's, of a footer too
        raise JournalDamaged(path.name, str(error).partition("\n")[0].rstrip(".")) from error


def _check_columns(path: Path, columns: pa.Schema) -> None:
    """Reject a file of this version, without a checksum, whose columns are not those of this version.

    A missing column would be given its default, and so would one whose name has a flipped bit.

    Raises:
        JournalDamaged: a column is missing, or of another type.
    """
    schema = SCHEMAS.get(path.name.partition("-")[0])
    if schema is None:
        return
    for field in arrow_schema(schema):
        if field.name not in columns.names:
            if field.name in ADDED:
                continue
            raise JournalDamaged(path.name, f"it has no column {field.name!r}, as every file of version {VERSION} has")
        if not columns.field(field.name).type.equals(field.type):
            raise JournalDamaged(path.name, f"its column {field.name!r} is of type {columns.field(field.name).type}")


def read(path: Path, schema: Schema, after: int = -1) -> Iterator[Record | TraceRow]:
    """The rows of a sealed file above the sequence number ``after``, one group of rows in memory at a time."""
    names = [field.name for field in schema.fields]
    lists = {f.name: f.default for f in schema.fields if f.kind in ("texts", "ints")}
    plain = pa.schema((f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in arrow_schema(schema))
    for batch in read_arrow(path, schema, after):
        columns = batch.cast(plain).to_pydict()
        for name, default in lists.items():
            columns[name] = [default if value is None else tuple(value) for value in columns[name]]
        for seq, *values in zip(*columns.values(), strict=True):
            if seq > after:
                yield schema.row(seq=seq, **dict(zip(names, values, strict=True)))


def read_arrow(path: Path, schema: Schema, after: int = -1, upto: int = NO_END) -> Iterator[pa.RecordBatch]:
    """The record batches of a sealed file with exactly this reader's columns.

    Groups of rows that lie wholly outside of ``after`` and ``upto`` are not read. Others are yielded whole.
    """
    target = arrow_schema(schema)
    defaults = {field.name: field.default for field in schema.fields}
    with opened(path) as file:
        known = [name for name in target.names if name in file.schema_arrow.names]
        groups = [n for n in range(file.num_row_groups) if _overlaps(file.metadata.row_group(n), after, upto)]
        for batch in in_groups(file, groups, known):
            if batch.schema.equals(target):
                yield batch
                continue
            arrays = [
                batch.column(f.name).cast(f.type)
                if f.name in known
                else pa.array([defaults[f.name]] * len(batch), f.type)
                for f in target
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=target.names)


def in_groups(
    file: pq.ParquetFile, groups: Iterable[int], columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The record batches of some groups of rows. None spans two groups, because it could then be of any size."""
    for group in groups:
        yield from file.iter_batches(batch_size=BATCH, row_groups=[group], columns=columns)


def _overlaps(group: Any, after: int, upto: int) -> bool:
    """Whether a group of rows may hold sequence numbers above ``after`` up to ``upto``, by its statistics."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == "seq":
            statistics = column.statistics
            return (
                statistics is None or not statistics.has_min_max or (statistics.max > after and statistics.min <= upto)
            )
    return True
