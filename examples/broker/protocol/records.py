"""Record batches, format 2: the unit that is produced, stored, replicated and fetched.

    0        8       12      16     17     21          23                 27
    base     length  leader  magic  crc    attributes  last offset delta  base timestamp, max timestamp,
    offset           epoch   = 2                                          producer id, epoch, sequence,
    count, records

Produce and fetch do not parse the records. The broker checks the checksum, writes the base offset and the leader epoch
(which the checksum does not cover), and stores the other bytes unchanged, compressed or not. It parses the records only
for lookups by timestamp, for committed offsets, and for old clients (see ``message_set``).

Pure functions. They may be called from any thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import attrs
import google_crc32c

from examples.broker.protocol.compression import decompress
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.steps import run_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from examples.broker.protocol.steps import Steps

    Pair = tuple[bytes | None, bytes | None]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED = struct.Struct(">hiqqqhii")
HEADER_SIZE = _HEADER.size
_CRC_STARTS = 21
_TIMES = struct.Struct(">qq")
_TIMES_START = 27
COMPRESSION = 0x07
ZSTD = 4
RECORDS_PER_STEP = 256
_SMALLEST_RECORD = 6
_CONTROL = 0x20
STAMPED = 0x08
"""All records have the time when the batch was appended, which is the newest timestamp in its header."""
CODEC_AND_FLAGS = 0x37
"""The bits of a batch's attributes for compression, transactions and control batches.

A valid produced batch has no flag and a known codec. Then these bits are at most ``ZSTD``.
"""


@attrs.define(eq=False)
class Batch:
    """A batch's header, and the position of the batch in the bytes that it was read from.

    Not frozen: one is made per produce, and attrs' frozen classes take three times as long to make.
    """

    position: int
    size: int
    base_offset: int
    last_offset_delta: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    leader_epoch: int = -1

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1


@attrs.frozen
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def parse(data: bytes, position: int = 0) -> Batch:
    """Check the batch at ``position`` and its checksum. Raises BrokerError if it is not complete and valid."""
    if len(data) - position < HEADER_SIZE:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "the bytes end inside a batch's header")
    (base, length, leader_epoch, magic, crc, attributes, delta, first, latest, producer, epoch, sequence, count) = (
        _HEADER.unpack_from(data, position)
    )
    size = length + 12
    if magic != 2:  # noqa: PLR2004 - the format's number
        raise BrokerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"a batch of format {magic}")
    if size < HEADER_SIZE or size > len(data) - position:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes does not fit")
    if google_crc32c.value(data[position + _CRC_STARTS : position + size]) != crc:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum is wrong")
    if count < 1 or delta != count - 1:
        raise BrokerError(ErrorCode.INVALID_RECORD, f"{count} records with a last offset delta of {delta}")
    if not attributes & STAMPED:
        latest = max(latest, first)  # Sarama before 1.45.1 leaves it at -1, so that no lookup would find its records
    return Batch(position, size, base, delta, attributes, latest, producer, epoch, sequence, count, leader_epoch)


def stamped(data: bytes, now_ms: int) -> tuple[bytes, Batch]:
    """Return a valid batch with the given time in place of its records' timestamps."""
    out = bytearray(data)
    (attributes,) = struct.unpack_from(">h", data, _CRC_STARTS)
    struct.pack_into(">h", out, _CRC_STARTS, attributes | STAMPED)
    struct.pack_into(">q", out, _TIMES_START + 8, now_ms)
    struct.pack_into(">I", out, _CRC_STARTS - 4, google_crc32c.value(bytes(out[_CRC_STARTS:])))
    return bytes(out), parse(bytes(out))


def newest_timestamp_at(data: Buffer, position: int) -> int:
    """Return the newest timestamp of the valid batch at ``position``."""
    first, newest = _TIMES.unpack_from(data, position + _TIMES_START)
    return int(max(first, newest))


def batches(data: bytes) -> list[Batch]:
    """Check and list all batches of a payload. Raises BrokerError if one is not complete and valid."""
    found = []
    position = 0
    while position < len(data):
        batch = parse(data, position)
        found.append(batch)
        position += batch.size
    return found


def compressions(data: bytes) -> set[int]:
    """Return the codecs in the headers of batches. The batches need not be valid."""
    found = set()
    position = 0
    while position + HEADER_SIZE <= len(data):
        _, length, _, _, _, attributes, *_ = _HEADER.unpack_from(data, position)
        found.add(attributes & COMPRESSION)
        position += max(length + 12, HEADER_SIZE)
    return found


def build(records: Sequence[Pair], *, timestamps: Sequence[int], **header: Any) -> bytes:
    """Build an uncompressed batch at once, see ``build_in_steps``."""
    return run_at_once(build_in_steps(records, timestamps=timestamps, **header))


def build_in_steps(
    records: Sequence[Pair],
    *,
    timestamps: Sequence[int],
    base_offset: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> Steps[bytes]:
    """Build an uncompressed batch of ``(key, value)`` pairs. ``producer`` is its id, epoch and base sequence."""
    first = timestamps[0]
    body = bytearray()
    for delta, ((key, value), timestamp) in enumerate(zip(records, timestamps, strict=True)):
        if delta % RECORDS_PER_STEP == 0:
            yield
        entry = bytearray(b"\0")  # a record's attributes: none are defined
        _put_varint(entry, timestamp - first)
        _put_varint(entry, delta)
        for part in (key, value):
            _put_varint(entry, -1 if part is None else len(part))
            entry += part or b""
        entry.append(0)  # no headers
        _put_varint(body, len(entry))
        body += entry
    count = len(records)
    checked = _CHECKED.pack(0, count - 1, first, max(timestamps), *producer, count) + body
    crc = google_crc32c.value(checked)
    return struct.pack(">qiibI", base_offset, len(checked) + 9, 0, 2, crc) + checked


def records_of(data: bytes, batch: Batch) -> Iterator[Record]:
    """Parse the records of a batch, none for a control batch. Raises BrokerError if it is damaged inside."""
    if batch.attributes & _CONTROL:
        return
    body = data[batch.position + HEADER_SIZE : batch.position + batch.size]
    body = decompress(batch.attributes & COMPRESSION, body)
    (first,) = struct.unpack_from(">q", data, batch.position + 27)
    try:
        position = 0
        for _ in range(batch.count):
            length, position = _take_varint(body, position)
            end = position + length
            if not _SMALLEST_RECORD <= length <= len(body) - position:
                raise BrokerError(ErrorCode.INVALID_RECORD, f"a record of {length} bytes does not fit")
            timestamp, position = _take_varint(body, position + 1)
            delta, position = _take_varint(body, position)
            key, position = _take_bytes(body, position)
            value, position = _take_bytes(body, position)
            if position >= end or not 0 <= delta < batch.count:
                raise BrokerError(ErrorCode.INVALID_RECORD, "a record's fields do not fit")
            at = batch.max_timestamp if batch.attributes & STAMPED else first + timestamp
            yield Record(batch.base_offset + delta, at, key, value)
            position = end
    except IndexError:
        raise BrokerError(ErrorCode.INVALID_RECORD, "the bytes end inside a record") from None


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _take_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte has its high bit clear
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:  # noqa: PLR2004 - more would not be a 64 bit number
            raise BrokerError(ErrorCode.INVALID_RECORD, "a number that does not end")


def _take_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _take_varint(data, position)
    if length < 0:
        return None, position
    if length > len(data) - position:
        raise IndexError
    return data[position : position + length], position + length
