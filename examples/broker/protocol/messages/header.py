"""The header of every request, and the supported versions."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message
from examples.broker.protocol.wire import Int16, Int32, NullableString, array, since


class RequestHeader(Message):
    """The header of a request. A response has only the correlation id."""

    api_key: Int16 = 0
    api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: NullableString = None


class ApiVersionsRequest(Message):
    pass


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class ApiVersionsResponse(Message):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = array()
    throttle_time_ms: Int32 = since(1, 0)
