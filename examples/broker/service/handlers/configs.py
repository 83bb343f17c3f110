"""The APIs about settings: of topics, which can be changed, and of this node, which can only be shown."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import configs as m
from examples.broker.replication.settings import settings_of
from examples.broker.replication.topic_manager import warn_of_settings
from examples.broker.storage.topic_settings import FACTS, check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from examples.broker.protocol.messages.common import NamedValue
    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.topic_manager import TopicManager
    from examples.broker.service.config import Config
    from examples.broker.service.reply import Reply
    from examples.broker.storage.topics import Topic

    Change = Callable[[Topic], Topic]
    Settled = Callable[[BrokerError | None], None]


class _Resource(IntEnum):
    """The resources with settings. The numbers here and below are the protocol's."""

    TOPIC = 2
    BROKER = 4


class _Source(IntEnum):
    """Where a setting's value comes from."""

    TOPIC = 1
    NODE = 4
    DEFAULT = 5


class _Operation(IntEnum):
    SET = 0
    DELETE = 1


@attrs.define(eq=False)
class ConfigHandlers:
    config: Config
    topics: TopicManager
    change: Callable[[Topic, Change, Settled], None]
    """Changes a topic's settings in the tree, based on the settings there."""

    # -- show

    def describe_configs(self, request: m.DescribeConfigsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Show the requested settings of each resource, each resource once."""
        results = []
        for resource in {(each.resource_type, each.resource_name): each for each in request.resources}.values():
            yield
            result = m.DescribedResource(0, None, resource.resource_type, resource.resource_name)
            try:
                shown = self._describe(resource.resource_type, resource.resource_name)
            except BrokerError as error:
                result.error_code, result.error_message = error.code, str(error)
            else:
                wanted = resource.configuration_keys
                result.configs = [each for each in shown if wanted is None or each.name in wanted]
                if not request.include_synonyms:
                    for each in result.configs:
                        each.synonyms = []
            results.append(result)
        reply(m.DescribeConfigsResponse(results=results))

    def _describe(self, resource_type: int, name: str) -> list[m.DescribedConfig]:
        if resource_type == _Resource.TOPIC:
            return self._describe_topic(self.topics.existing(name))
        if resource_type == _Resource.BROKER and name == str(self.config.cluster.node_id):
            return [_shown(key, value, _Source.NODE) for key, value in sorted(self._node_settings().items())]
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"this node has no settings of resource {name!r} of type {resource_type}"
        )

    def _describe_topic(self, topic: Topic) -> list[m.DescribedConfig]:
        shown = [_shown(name, value, _Source.DEFAULT) for name, value in FACTS.items()]
        for name, value in settings_of(topic, self.config.replication).items():
            described = _shown(name, value, _Source.TOPIC if name in topic.settings else _Source.DEFAULT)
            described.read_only = False
            described.synonyms = [m.ConfigSynonym(name, value, described.source)]
            shown.append(described)
        return sorted(shown, key=lambda each: each.name)

    def _node_settings(self) -> dict[str, str]:
        config, replication, groups = self.config, self.config.replication, self.config.groups
        return {
            "advertised.listeners": f"PLAINTEXT://{config.cluster.advertised_host}:{config.cluster.port}",
            "auto.create.topics.enable": str(config.auto_create_topics).lower(),
            "broker.id": str(config.cluster.node_id),
            "connections.max.idle.ms": str(config.max_idle_ms),
            "default.replication.factor": str(len(config.cluster.nodes)),
            "group.initial.rebalance.delay.ms": str(groups.initial_rebalance_delay_ms),
            "group.max.session.timeout.ms": str(groups.max_session_timeout_ms),
            "group.max.size": str(groups.max_group_size),
            "group.min.session.timeout.ms": str(groups.min_session_timeout_ms),
            "log.dirs": str(config.data),
            "log.segment.bytes": str(replication.segment_bytes),
            "max.connections": str(config.max_connections),
            "message.max.bytes": str(replication.max_batch_bytes),
            "min.insync.replicas": str(replication.min_isr),
            "num.partitions": str(config.partitions),
            "offset.metadata.max.bytes": str(groups.max_metadata_bytes),
            "replica.lag.time.max.ms": str(replication.lag_ms),
            "socket.request.max.bytes": str(config.max_request_bytes),
        }

    # -- change

    def alter_configs(self, request: m.AlterConfigsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Replace all settings of topics."""

        def replaced(topic: Topic, configs: list[NamedValue]) -> Topic:
            return self.topics.with_settings(topic, {config.name: config.value for config in configs})

        return self._alter(
            [(resource, partial(replaced, configs=resource.configs)) for resource in request.resources],
            validate_only=request.validate_only,
            respond=lambda answers: reply(m.AlterConfigsResponse(responses=answers)),
        )

    def incremental_alter_configs(
        self, request: m.IncrementalAlterConfigsRequest, _version: int, reply: Reply
    ) -> Steps[None]:
        """Change single settings of topics."""

        def changed(topic: Topic, changes: list[m.ConfigChange]) -> Topic:
            return self.topics.with_settings(topic, _changed(topic.settings, changes))

        return self._alter(
            [(resource, partial(changed, changes=resource.configs)) for resource in request.resources],
            validate_only=request.validate_only,
            respond=lambda answers: reply(m.AlterConfigsResponse(responses=answers)),
        )

    def _alter(
        self,
        changes: Sequence[tuple[m.Resource, Change]],
        *,
        validate_only: bool,
        respond: Callable[[list[m.ResourceOutcome]], None],
    ) -> Steps[None]:
        """Change settings, and respond when each topic is changed or rejected."""
        answers = [m.ResourceOutcome(0, None, each.resource_type, each.resource_name) for each, _ in changes]
        waiting = set(range(len(changes)))

        def settled(number: int, error: BrokerError | None) -> None:
            if error is not None:
                answers[number].error_code, answers[number].error_message = error.code, str(error)
            waiting.discard(number)
            if not waiting:
                respond(answers)

        if not changes:
            respond([])
        for number, (resource, change) in enumerate(changes):
            yield
            try:
                if resource.resource_type != _Resource.TOPIC:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed at run time")
                topic = self.topics.existing(resource.resource_name)
                warn_of_settings(change(topic))
            except BrokerError as error:
                settled(number, error)
            else:
                if validate_only:
                    settled(number, None)
                else:
                    self.change(topic, change, partial(settled, number))


def _changed(before: Mapping[str, str], changes: list[m.ConfigChange]) -> dict[str, str | None]:
    settings: dict[str, str | None] = dict(before)
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a request must name each setting once")
    for change in changes:
        if change.operation == _Operation.SET:
            settings[change.name] = change.value
        elif change.operation == _Operation.DELETE:
            check_known(change.name)
            settings.pop(change.name, None)
        else:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG, f"operation {change.operation} needs a list, and {change.name} is not a list"
            )
    return settings


def _shown(name: str, value: str, source: _Source) -> m.DescribedConfig:
    is_default = source is _Source.DEFAULT
    synonyms = [m.ConfigSynonym(name, value, source)]
    return m.DescribedConfig(name, value, read_only=True, is_default=is_default, source=source, synonyms=synonyms)
