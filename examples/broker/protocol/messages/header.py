"""The header of every request, and the supported versions."""

from __future__ import annotations

import attrs

from examples.broker.protocol.wire import Int16, Int32, NullableString, array, since


@attrs.define
class RequestHeader:
    """The header of a request. A response has only the correlation id."""

    api_key: Int16 = 0
    api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: NullableString = None


@attrs.define
class ApiVersionsRequest:
    pass


@attrs.define
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@attrs.define
class ApiVersionsResponse:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = array()
    throttle_time_ms: Int32 = since(1, 0)
