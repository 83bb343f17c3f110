"""Message sets, formats 0 and 1: for clients with Produce below version 3 or Fetch below version 4.

The log has batches only (see ``records``). An incoming message set becomes one batch. For old clients, outgoing batches
become message sets: format 0 for Fetch 0 and 1, format 1 for Fetch 2 and 3. This reads every record, so only these
clients pay for it.

Both directions work in steps. Pure functions. They may be called from any thread.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from examples.broker.protocol.compression import decompress
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import COMPRESSION, RECORDS_PER_STEP, STAMPED, batches, build_in_steps, records_of

if TYPE_CHECKING:
    from examples.broker.protocol.steps import Steps

    _Message = tuple[int, bytes | None, bytes | None]

_ENTRY = struct.Struct(">qi")


def to_batches(data: bytes, most: int) -> Steps[bytes]:
    """Turn a produced message set into a batch.

    Raises:
        BrokerError: if it is damaged, or its compressed messages unpack to more than ``most`` bytes together.
    """
    messages = yield from _messages(data, most)
    if not messages:
        return b""
    records = [(key, value) for _, key, value in messages]
    return (yield from build_in_steps(records, timestamps=[timestamp for timestamp, _, _ in messages]))


def from_batches(data: bytes, offset: int, most: int, *, magic: int = 1) -> Steps[bytes]:
    """Turn batches into messages of format 0 or 1, from ``offset`` on. Raises BrokerError if one is damaged.

    The last message is the one that reaches ``most`` bytes, because a few compressed bytes can become very many.
    """
    out = bytearray()
    for batch in batches(data):
        for number, record in enumerate(records_of(data, batch)):
            if number % RECORDS_PER_STEP == 0:
                yield
            if record.offset < offset:
                continue
            if len(out) >= most:
                return bytes(out)
            body = bytearray(struct.pack(">bbq", 1, batch.attributes & STAMPED, record.timestamp) if magic else b"\0\0")
            for part in (record.key, record.value):
                body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
            out += _ENTRY.pack(record.offset, len(body) + 4) + struct.pack(">I", zlib.crc32(body)) + body
    return bytes(out)


def _messages(data: bytes, most: int | None) -> Steps[list[_Message]]:
    """Parse a message set: timestamp (-1 in format 0), key and value of each message.

    ``most`` is the limit of ``to_batches``, or None inside a compressed message.
    """
    found: list[_Message] = []
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
            timestamp = struct.unpack_from(">q", message, 6)[0] if magic else -1
            key, place = _part(message, 14 if magic else 6)
            value, _ = _part(message, place)
            method = attributes & COMPRESSION
            if method == 0:
                found.append((timestamp, key, value))
                if len(found) % RECORDS_PER_STEP == 0:
                    yield
                continue
            if most is None:
                raise BrokerError(ErrorCode.INVALID_RECORD, "a compressed message inside another")
            plain = decompress(method, value or b"")
            most -= len(plain)
            if most < 0:
                raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "the messages unpack to too many bytes")
            found += yield from _messages(plain, None)
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
