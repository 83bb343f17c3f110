"""How rows become bytes: frames of packed columns, each with its own checksum.

A segment is a sequence of frames and nothing else. It can be appended to, cut off at any byte, and still be read up to
its last whole frame::

    "PURJ" version flags | payload length | rows | first sequence | crc32      28 bytes, little-endian
    length of the header | header (JSON) | column bytes | column bytes | ...   the payload

The header names the columns, so a reader of another version finds those that it knows and skips the rest. It also says
how many rows were dropped before the frame. All text columns of a row form one *group* (purgatory, type, keys,
outcome, ...). A service has few groups and many rows, so a frame stores each distinct group once, and a 4-byte index
per row. The numbers are ``array`` buffers.

Rejected:

- JSON lines: the standard library's encoder takes 3 to 4 µs per record under the interpreter lock, which is more than
  half of a whole park and satisfy cycle. Here every step per row runs inside a C loop (``zip``, ``map``, ``array``).
  ``purgatory journal tail`` prints JSON lines.
- ``pickle`` and ``marshal``: a journal travels between machines, and reading it must not run code.
- Arrow: the core installs nothing heavy. A *sealed* segment is Parquet if pyarrow is installed.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from purgatory.journal.records import SCHEMAS, VERSION, Record, Schema, TraceRow
from purgatory.journal.records.errors import JournalFormat

MAGIC: Final = b"PURJ"
_HEAD: Final = struct.Struct("<4sHHIIQI")
_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size
_UNCHECKED: Final = _HEAD.size - _LENGTH.size  # the checksum covers the head up to itself, and the payload
_SWAP: Final = sys.byteorder == "big"
LIMIT: Final = 2**63 - 1


def packed(values: Sequence[int]) -> array[int]:
    """Pack integers into 8 bytes each. A value that does not fit (a timeout of ten billion years) is clamped."""
    try:
        return array("q", values)
    except (OverflowError, TypeError):  # TypeError: a float, which a delay may be
        return array("q", map(clamped, values))


def clamped(value: float) -> int:
    """A number that fits into 64 bits."""
    return int(max(-LIMIT, min(LIMIT, value)))


@attrs.frozen
class Batch:
    """Rows as columns, ready to be encoded, or as they were decoded.

    ``groups`` are the distinct combinations of text columns, in the schema's order. ``index`` has one entry per
    row. Instants are nanoseconds of any clock. Adding ``epoch_ns`` makes them nanoseconds since the epoch. A
    column of kind ``ints`` has the length of each row's list under its name + ".n".
    """

    schema: Schema
    first: int
    epoch_ns: int
    groups: list[list[Any]]
    index: array[int]
    numbers: dict[str, array[int]]
    dropped: int = 0
    """How many rows were dropped since the frame before. They have no numbers."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def last(self) -> int:
        """The sequence number of the last row."""
        return self.first + len(self.index) - 1

    def rows(self) -> Iterator[Record | TraceRow]:
        """The rows as values, in sequence."""
        columns: dict[str, Sequence[Any]] = {}
        for position, field in enumerate(self.schema.texts):
            texts = [_text(group[position], field.kind) for group in self.groups]
            columns[field.name] = [texts[i] for i in self.index]
        for field in self.schema.numbers:
            if field.name not in self.numbers:
                columns[field.name] = [field.default] * len(self)
            elif field.kind == "instant":
                epoch = self.epoch_ns
                columns[field.name] = [(value + epoch) // 1000 for value in self.numbers[field.name]]
            elif field.kind == "ints":
                columns[field.name] = list(self._lists(field.name))
            else:
                columns[field.name] = self.numbers[field.name]
        for seq, values in enumerate(zip(*columns.values(), strict=True), self.first):
            yield self.schema.row(seq=seq, **dict(zip(columns, values, strict=True)))

    def _lists(self, name: str) -> Iterator[tuple[int, ...]]:
        values, start = self.numbers[name], 0
        for length in self.numbers[name + ".n"]:
            yield tuple(values[start : start + length])
            start += length


def _text(value: Any, kind: str) -> Any:
    return tuple(value) if kind == "texts" and value is not None else value


def encode(batch: Batch, *, read: bool = False, dropped: int = 0) -> bytes:
    r"""One frame.

    Half a character (a lone surrogate) is in no reader's UTF-8, and as "?" two names would be one: it is written
    out, as \udc80. What looks like that already has its backslashes doubled, so that names which differ stay so.

    Args:
        batch: the rows.
        read: whether they come from a journal, so that all this has been done.
        dropped: how many rows were dropped since the frame before.
    """
    columns: dict[str, array[int]] = {"": batch.index, **batch.numbers}
    try:
        header = _header(batch, columns, batch.groups, dropped)
    except UnicodeEncodeError:
        header = b""
    if not header or (_LIKE_HALF in header and not read):
        header = _header(batch, columns, [[_whole(value) for value in group] for group in batch.groups], dropped)
    parts = [_LENGTH.pack(len(header)), header]
    for column in columns.values():
        if _SWAP:  # pragma: no cover - needs a big-endian machine
            column = column[:]  # noqa: PLW2901
            column.byteswap()
        parts.append(column.tobytes())
    payload = b"".join(parts)
    head = _HEAD.pack(MAGIC, VERSION, 0, len(payload), len(batch), batch.first, 0)
    crc = zlib.crc32(payload, zlib.crc32(head[:_UNCHECKED]))
    return head[:_UNCHECKED] + _LENGTH.pack(crc) + payload


def _header(batch: Batch, columns: dict[str, array[int]], groups: list[list[Any]], dropped: int) -> bytes:
    return json.dumps(
        {
            **({"dropped": dropped} if dropped else {}),
            "schema": batch.schema.name,
            "epoch_ns": batch.epoch_ns,
            "texts": [field.name for field in batch.schema.texts],
            "groups": groups,
            "columns": [(name, column.typecode, len(column)) for name, column in columns.items()],
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def _whole(value: Any) -> Any:
    """A text with the half characters written out. Keys, which are several, are labels: these have none."""
    if isinstance(value, str):
        return _HALF.sub(lambda match: match[1] * 2 + (match[2] and f"\\u{ord(match[2]):04x}"), value)
    return value and [each.encode("utf-8", "backslashreplace").decode() for each in value]


_LIKE_HALF: Final = rb"\\ud"  # as JSON has it
_HALF: Final = re.compile(r"(?<!\\)(\\*)([\ud800-\udfff]|(?=ud[89a-f][0-9a-f]{2}))")


@attrs.frozen
class Frame:
    """A whole frame found in a buffer: where it lies and which rows it holds."""

    start: int
    end: int
    first: int
    rows: int
    version: int

    @property
    def last(self) -> int:
        """The sequence number of the last row."""
        return self.first + self.rows - 1


def frame_at(data: bytes | memoryview, start: int) -> Frame | None:
    """The frame that begins at ``start``, or None if what is there is not one that was written whole."""
    view = memoryview(data)
    if len(view) - start < HEAD_BYTES:
        return None
    magic, version, _, length, rows, first, crc = _HEAD.unpack_from(view, start)
    end = start + HEAD_BYTES + length
    if magic != MAGIC or end > len(view):
        return None
    if crc != zlib.crc32(view[start + HEAD_BYTES : end], zlib.crc32(view[start : start + _UNCHECKED])):
        return None
    return Frame(start, end, first, rows, version)


def scan(data: bytes, start: int = 0) -> Iterator[Frame]:
    """Every whole frame from ``start`` on. Damage between two frames is skipped."""
    while start < len(data):
        frame = frame_at(data, start)
        if frame is None:
            start = data.find(MAGIC, start + 1)
            if start < 0:
                return
            continue
        yield frame
        start = frame.end


def check_version(version: int) -> None:
    """Reject a version with another meaning.

    Raises:
        JournalFormat: the version is one that this reader doesn't know.
    """
    if version != VERSION:
        hint = "upgrade the reader" if version > VERSION else "it was never released"
        raise JournalFormat(f"record format version {version}, this reader knows {VERSION}: {hint}")


def decode(data: bytes, frame: Frame) -> Batch:
    """The rows of a frame.

    Raises:
        JournalFormat: its version or its schema is one that this reader doesn't know.
    """
    check_version(frame.version)
    at = frame.start + HEAD_BYTES
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    header = json.loads(data[at : at + length])
    at += length
    schema = SCHEMAS.get(header["schema"])
    if schema is None:
        raise JournalFormat(f"unknown schema {header['schema']!r}, this reader knows {sorted(SCHEMAS)}")
    columns: dict[str, array[int]] = {}
    for name, code, count in header["columns"]:
        column = array(code)
        size = column.itemsize * count
        column.frombytes(data[at : at + size])
        if _SWAP:  # pragma: no cover
            column.byteswap()
        columns[name] = column
        at += size
    index = columns.pop("")
    groups = _known(schema, header)
    return Batch(schema, frame.first, header["epoch_ns"], groups, index, columns, header.get("dropped", 0))


def _known(schema: Schema, header: dict[str, Any]) -> list[list[Any]]:
    """The groups with exactly this reader's text columns, in this reader's order."""
    written: list[str] = header["texts"]
    groups: list[list[Any]] = header["groups"]
    if written == [field.name for field in schema.texts]:
        return groups
    places = [(written.index(f.name) if f.name in written else None, f.default) for f in schema.texts]
    return [[default if place is None else group[place] for place, default in places] for group in groups]
