"""Messages about settings of topics and nodes."""

from __future__ import annotations

import attrs

from examples.broker.protocol.wire import Boolean, Int8, Int16, Int32, NullableString, String, array, only, since


@attrs.define
class DescribeConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = None


@attrs.define
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = array()
    include_synonyms: Boolean = since(1, False)


@attrs.define
class ConfigSynonym:
    name: String = ""
    value: NullableString = None
    source: Int8 = -1


@attrs.define
class DescribedConfig:
    name: String = ""
    value: NullableString = None
    read_only: Boolean = False
    is_default: Boolean = only(0, 0, False)
    source: Int8 = since(1, -1)
    is_sensitive: Boolean = False
    synonyms: list[ConfigSynonym] = array(1)


@attrs.define
class DescribedResource:
    error_code: Int16 = 0
    error_message: NullableString = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribedConfig] = array()


@attrs.define
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DescribedResource] = array()


@attrs.define
class AlterableConfig:
    name: String = ""
    value: NullableString = None


@attrs.define
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = array()


@attrs.define
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = array()
    validate_only: Boolean = False


@attrs.define
class AlteredResource:
    error_code: Int16 = 0
    error_message: NullableString = None
    resource_type: Int8 = 0
    resource_name: String = ""


@attrs.define
class AlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlteredResource] = array()


@attrs.define
class ConfigChange:
    name: String = ""
    operation: Int8 = 0
    value: NullableString = None


@attrs.define
class ConfigChangesOfResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[ConfigChange] = array()


@attrs.define
class IncrementalAlterConfigsRequest:
    resources: list[ConfigChangesOfResource] = array()
    validate_only: Boolean = False
