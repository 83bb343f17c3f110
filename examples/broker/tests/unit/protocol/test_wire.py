"""The codec: round trips of every message in every version, and what it does with bytes that are none."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broker.protocol.apis import APIS
from examples.broker.protocol.errors import MalformedRequest
from examples.broker.protocol.messages.common import by_topic
from examples.broker.protocol.messages.groups import HeartbeatResponse
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.messages.records import ProducePartition, ProduceRequest
from examples.broker.protocol.messages.topics import MetadataRequest
from examples.broker.protocol.wire import decode, encode

VERSIONS = [(api, version) for api in APIS.values() for version in range(api.max_version + 1)]
IDS = [f"{api.key.name}-v{version}" for api, version in VERSIONS]


def packed(message, version):
    return b"".join(encode(message, version))


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=IDS)
def test_round_trip(api, version, any_message):
    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def check(data):
        for message in (api.request, api.response):
            value = data.draw(any_message(message, version))
            assert value == decode(message, version, packed(value, version))

    check()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_cleanly(row, data):
    """Garbage either is a message or raises MalformedRequest. Nothing else comes out of the decoder."""
    api, version = row
    try:
        value = decode(api.request, version, data)
    except MalformedRequest:
        return
    assert isinstance(value, api.request)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.data())
def test_damaged_messages_are_refused_cleanly(any_message, row, data):
    """A valid request with a few bytes overwritten or cut off is rejected cleanly or still a request."""
    api, version = row
    raw = bytearray(packed(data.draw(any_message(api.request, version)), version))
    if raw:
        for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
            raw[position] = data.draw(st.integers(0, 255))
        del raw[data.draw(st.integers(0, len(raw))) :]
    with contextlib.suppress(MalformedRequest):
        decode(api.request, version, bytes(raw))


@pytest.mark.parametrize(
    ("message", "version", "data", "problem"),
    [
        pytest.param(ProduceRequest, 7, struct.pack(">hihiq", -1, 0, 1, 2**31 - 1, 0), "past the end", id="length"),
        pytest.param(ProduceRequest, 0, struct.pack(">hii", 1, 100, -1), "null", id="null"),
        pytest.param(HeartbeatResponse, 0, b"\0\0\0\0", "2 bytes too many", id="rest"),
        pytest.param(RequestHeader, 0, struct.pack(">hhih", 0, 0, 7, 1) + b"\xff", "utf-8", id="not UTF-8"),
    ],
)
def test_malformed_messages_are_refused(message, version, data, problem):
    """An array longer than the request is rejected before it is allocated, and so is null where a value is needed."""
    with pytest.raises(MalformedRequest, match=problem):
        decode(message, version, data)


def test_null_and_empty_arrays_differ():
    """A null array asks for everything, an empty one for nothing."""
    assert b"\xff\xff\xff\xff\x01" == packed(MetadataRequest(None), 4)
    assert b"\x00\x00\x00\x00\x01" == packed(MetadataRequest([]), 4)


def test_a_large_payload_is_not_copied_by_the_encoder():
    """The encoder hands a payload on as it is. It is copied once, when the frame is joined."""
    payload = b"x" * 100_000
    pieces = encode(ProduceRequest(topics=by_topic([("t", ProducePartition(0, payload))])), 7)
    assert any(piece is payload for piece in pieces)
