"""The declared messages against another implementation: every version that it knows, field by field, both ways."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.old import admin as old_admin
from kafka.protocol.old import commit, fetch, list_offsets, produce

from examples.broker.protocol.apis import APIS, BETWEEN_NODES, ApiKey
from examples.broker.protocol.messages.header import ApiVersionsResponse, RequestHeader
from examples.broker.protocol.wire import decode, encode

NEW = {}
for module in (admin, consumer, metadata, producer):
    NEW |= {name: value for name, value in vars(module).items() if hasattr(value, "valid_versions")}
OLD = {}
for module in (old_admin, commit, fetch, list_offsets, produce):
    OLD |= {name: value for name, value in vars(module).items() if isinstance(value, list)}

# Of this one the other implementation knows none before.
FIRST_KNOWN = {ApiKey.OFFSET_FOR_LEADER_EPOCH: 2}

CASES = [
    (message, version)
    for api in APIS.values()
    if api.key not in BETWEEN_NODES
    for version in range(FIRST_KNOWN.get(api.key, 0), api.max_version + 1)
    for message in (api.request, api.response)
]


def peer(message, version):
    """How the other implementation decodes and encodes this version of the message."""
    new = NEW[message.__name__]
    if version >= new.valid_versions[0]:

        def encode_new(value):
            value._header = None  # its decoder leaves this unset when there was no header
            return bytes(value.encode(version=version))

        return (lambda raw: new.decode(raw, version=version)), encode_new
    old = OLD[message.__name__][version]
    return old.decode, lambda value: value.encode()


@pytest.mark.parametrize(("message", "version"), CASES, ids=[f"{m.__name__}-v{v}" for m, v in CASES])
def test_same_bytes_as_another_implementation(message, version, any_message):
    """Another implementation reads what we wrote and writes the very same bytes, which we read back."""
    theirs_decode, theirs_encode = peer(message, version)

    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def check(data):
        value = data.draw(any_message(message, version, False))
        if message is ApiVersionsResponse:
            value.error_code = 0  # with an error, the peer expects a body of version 0 whatever was asked
        raw = b"".join(encode(value, version))
        theirs = theirs_decode(raw)
        assert raw == theirs_encode(theirs)
        assert value == decode(message, version, theirs_encode(theirs))

    check()


def test_request_header_is_read_as_others_write_it():
    request = NEW["HeartbeatRequest"](group_id="g", generation_id=3, member_id="m", version=1)
    request.with_header(correlation_id=77, client_id="someone")
    raw = bytes(request.encode(header=True))
    body = bytes(request.encode())
    assert RequestHeader(12, 1, 77, "someone") == decode(RequestHeader, 0, raw[: len(raw) - len(body)])
