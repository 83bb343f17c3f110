"""Decompression of gzip, snappy, lz4 and zstd.

Produce and fetch do not decompress. Two callers do: lookups by timestamp, and the message formats of old clients.

A few compressed bytes can expand to gigabytes, so ``MOST_UNPACKED`` limits the output. The output buffer for lz4 and
zstd is an anonymous memory map. The system provides only the pages that are written to.

Pure functions. They may be called from any thread.
"""

from __future__ import annotations

import mmap
import zlib

import cramjam

from examples.broker.protocol.errors import BrokerError, ErrorCode

MOST_UNPACKED = 32 * 1024 * 1024
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16
"""The Java client writes snappy in blocks with a length before each. librdkafka writes one block without a length."""


def decompress(codec: int, data: bytes) -> bytes:
    """Decompress data by the codec in a batch's attributes. Raises BrokerError if it is damaged or too large."""
    try:
        return _BY_CODEC[codec](data)
    except IndexError:
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {codec} is unknown") from None
    except (zlib.error, cramjam.DecompressionError) as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}") from error


def _gzip(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(data, MOST_UNPACKED)
    if unpacker.unconsumed_tail:
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"the records take more than {MOST_UNPACKED} bytes")
    return plain


def _snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        blocks = [data]
    else:
        blocks, position = [], _XERIAL_HEADER
        while position < len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            blocks.append(data[position + 4 : end])
            position = end
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > MOST_UNPACKED:
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"the records take more than {MOST_UNPACKED} bytes")
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _lz4(data: bytes) -> bytes:
    with mmap.mmap(-1, MOST_UNPACKED) as output:
        return output[: cramjam.lz4.decompress_into(data, output)]


def _zstd(data: bytes) -> bytes:
    with mmap.mmap(-1, MOST_UNPACKED) as output:
        return output[: cramjam.zstd.decompress_into(data, output)]


_BY_CODEC = (bytes, _gzip, _snappy, _lz4, _zstd)
