"""Messages about settings of topics and nodes."""

from __future__ import annotations

from typing import Generic, TypeVar

from examples.broker.protocol.messages.common import Message, NamedValue
from examples.broker.protocol.wire import Boolean, Int8, Int16, Int32, NullableString, String, array, only, since

C = TypeVar("C")


class Resource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""


class ResourceOutcome(Message):
    error_code: Int16 = 0
    error_message: NullableString = None
    resource_type: Int8 = 0
    resource_name: String = ""


class DescribeConfigsResource(Resource):
    configuration_keys: list[String] | None = None


class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = array()
    include_synonyms: Boolean = since(1, False)


class ConfigSynonym(NamedValue):
    source: Int8 = -1


class DescribedConfig(NamedValue):
    read_only: Boolean = False
    is_default: Boolean = only(0, 0, False)
    source: Int8 = since(1, -1)
    is_sensitive: Boolean = False
    synonyms: list[ConfigSynonym] = array(1)


class DescribedResource(ResourceOutcome):
    configs: list[DescribedConfig] = array()


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DescribedResource] = array()


class AlteredResource(Resource, Generic[C]):
    configs: list[C] = array()


class AlterConfigsRequest(Message):
    resources: list[AlteredResource[NamedValue]] = array()
    validate_only: Boolean = False


class ConfigChange(Message):
    name: String = ""
    operation: Int8 = 0
    value: NullableString = None


class IncrementalAlterConfigsRequest(Message):
    resources: list[AlteredResource[ConfigChange]] = array()
    validate_only: Boolean = False


class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[ResourceOutcome] = array()
