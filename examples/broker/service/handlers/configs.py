"""The APIs about settings: of topics, which can be changed, and of this node, which can only be shown."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import configs as m
from examples.broker.replication.settings import settings_of
from examples.broker.replication.topic_manager import warn_of_settings
from examples.broker.service.handlers.outcomes import Outcomes
from examples.broker.storage.topic_settings import FACTS, check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.topic_manager import TopicManager
    from examples.broker.service.config import Config
    from examples.broker.service.handlers.outcomes import Results
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
            shown.append(_shown(name, value, _Source.TOPIC if name in topic.settings else _Source.DEFAULT))
            shown[-1].read_only = False
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
        return self._alter(request, lambda _, configs: {config.name: config.value for config in configs}, reply)

    def incremental_alter_configs(
        self, request: m.IncrementalAlterConfigsRequest, _version: int, reply: Reply
    ) -> Steps[None]:
        """Change single settings of topics."""
        return self._alter(request, _changed, reply)

    def _alter(
        self,
        request: m.AlterConfigsRequest | m.IncrementalAlterConfigsRequest,
        settings: Callable[[Mapping[str, str], list[Any]], Mapping[str, str | None]],
        reply: Reply,
    ) -> Steps[None]:
        """Answer when each topic is changed or rejected. ``settings`` returns those of a topic after the change."""
        resources: list[m.AlteredResource[Any]] = [*request.resources]

        def changed(topic: Topic, configs: list[Any]) -> Topic:
            return self.topics.with_settings(topic, settings(topic.settings, configs))

        def respond(results: Results[int]) -> None:
            answers = [
                m.ResourceOutcome(*results[number], resource.resource_type, resource.resource_name)
                for number, resource in enumerate(resources)
            ]
            reply(m.AlterConfigsResponse(responses=answers))

        work = Outcomes(range(len(resources)), respond)
        for number, resource in enumerate(resources):
            yield
            change = partial(changed, configs=resource.configs)
            with work.errors_of(number):
                if resource.resource_type != _Resource.TOPIC:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed at run time")
                topic = self.topics.existing(resource.resource_name)
                warn_of_settings(change(topic))
                if request.validate_only:
                    work.settled(number)
                else:
                    self.change(topic, change, partial(work.settled, number))


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
