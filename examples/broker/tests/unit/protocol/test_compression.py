"""Decompression of other implementations' data, and of data made to take all memory."""

import struct
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broker.protocol import compression
from examples.broker.protocol.compression import decompress
from examples.broker.protocol.errors import BrokerError, ErrorCode

PLAIN = b"delayed operations " * 1_000


def gzip(data):
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def xerial(data):
    """Snappy as the Java client writes it: blocks with a length before each."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 4_096])) for at in range(0, len(data), 4_096)]
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


PACKERS = {
    "none": (0, bytes),
    "gzip": (1, gzip),
    "snappy": (2, cramjam.snappy.compress_raw),
    "snappy in blocks": (2, xerial),
    "lz4": (3, cramjam.lz4.compress),
    "zstd": (4, cramjam.zstd.compress),
}


@pytest.mark.parametrize("kind", PACKERS)
def test_every_codec_is_understood(kind):
    codec, pack = PACKERS[kind]
    assert PLAIN == decompress(codec, bytes(pack(PLAIN)))


@pytest.mark.parametrize("kind", [kind for kind in PACKERS if kind != "none"])
def test_a_bomb_does_not_explode(monkeypatch, kind):
    monkeypatch.setattr(compression, "MOST_UNPACKED", 16_384)
    codec, pack = PACKERS[kind]
    assert PLAIN[:16_384] == decompress(codec, bytes(pack(PLAIN[:16_384])))
    with pytest.raises(BrokerError) as caught:
        decompress(codec, bytes(pack(PLAIN)))
    assert caught.value.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7), st.binary(max_size=60), st.sampled_from([b"", b"\x82SNAPPY\0" + bytes(8)]))
def test_nonsense_is_refused(codec, noise, header):
    """Bytes that no codec has written raise BrokerError and nothing else."""
    try:
        decompress(codec, header + noise)
    except BrokerError as error:
        assert error.code is not ErrorCode.NONE
