"""Message sets, formats 0 and 1: for clients whose Produce is below version 3 or whose Fetch is below 4.

The log holds batches only (see `records`). A message set that comes in becomes one batch; batches that go
out to an old client become message sets, of format 0 for Fetch 0 and 1, and of format 1 for Fetch 2 and 3. That
costs a walk over the records each time, which is why nobody else pays for it. Gzip is understood on the way in;
other compressions, and compressed batches on the way out to old clients, are refused with the code for it.

Pure functions; call them from anywhere.
"""

from __future__ import annotations

import struct
import time
import zlib

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import batches, build, records_of

__all__ = ["from_batches", "to_batches"]

_ENTRY = struct.Struct(">qi")
_COMPRESSION = 0x07
_GZIP = 1
_MOST_UNPACKED = 64 * 1024 * 1024


def to_batches(data: bytes) -> bytes:
    """Turn a produced message set into a batch.

    Raises:
        BrokerError: if it is broken, or compressed in a way that isn't understood.
    """
    messages = _messages(data, nested=False)
    if not messages:
        return b""
    now = int(time.time() * 1_000)
    return build(
        [(key, value) for _, key, value in messages],
        timestamps=[now if timestamp is None else timestamp for timestamp, _, _ in messages],
    )


def from_batches(data: bytes, offset: int, *, magic: int = 1) -> bytes:
    """Turn batches into messages of format 0 or 1, from `offset` on; format 0 has no timestamps.

    Raises:
        BrokerError: if a batch is compressed by something else than gzip.
    """
    out = bytearray()
    for batch in batches(data):
        for record in records_of(data, batch):
            if record.offset < offset:
                continue
            body = bytearray(struct.pack(">bbq", 1, 0, record.timestamp) if magic else b"\0\0")
            for part in (record.key, record.value):
                body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
            out += _ENTRY.pack(record.offset, len(body) + 4) + struct.pack(">I", zlib.crc32(body)) + body
    return bytes(out)


def _messages(data: bytes, *, nested: bool) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """Take a message set apart: timestamp (None in format 0), key and value of each message."""
    found: list[tuple[int | None, bytes | None, bytes | None]] = []
    position = 0
    try:
        while position < len(data):
            _, size = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            if size < 14 or size > len(data) - position:  # noqa: PLR2004 - the smallest message
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "a message does not fit")
            message = data[position : position + size]
            position += size
            crc, magic, attributes = struct.unpack_from(">Ibb", message)
            if zlib.crc32(message[4:]) != crc:
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "a message's checksum is wrong")
            if magic not in (0, 1):
                raise BrokerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"a message of format {magic}")
            timestamp = struct.unpack_from(">q", message, 6)[0] if magic else None
            key, place = _part(message, 14 if magic else 6)
            value, _ = _part(message, place)
            method = attributes & _COMPRESSION
            if method == 0:
                found.append((timestamp, key, value))
            elif method == _GZIP and not nested:
                found += _messages(_unpacked(value or b""), nested=True)
            else:
                raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {method}")
    except struct.error as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return found


def _part(message: bytes, position: int) -> tuple[bytes | None, int]:
    (length,) = struct.unpack_from(">i", message, position)
    position += 4
    if length < 0:
        return None, position
    if length > len(message) - position:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "a key or value does not fit")
    return message[position : position + length], position + length


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(data, _MOST_UNPACKED)
    except zlib.error as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if unpacker.unconsumed_tail:
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "the messages unpack to more than is allowed")
    return plain
