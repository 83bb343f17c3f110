"""One method per API about topics: from the request to what the replica manager does, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import topics as m
from examples.broker.replication.cluster import LEADER
from examples.broker.service.assignments import (
    assigned_at_creation,
    assigned_at_growth,
    check_named_once,
    named_twice,
)
from examples.broker.storage.topics import check_name, check_not_internal

if TYPE_CHECKING:
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.replication.topic_manager import TopicManager
    from examples.broker.service.config import Config
    from examples.broker.service.connection import Handler, Reply
    from examples.broker.storage.topics import Topic

__all__ = ["TopicHandlers"]

_CLUSTER_ID = "purgatory-broker"
_NODES = (LEADER,)


class TopicHandlers:
    """Metadata, and making and deleting topics, on a node that is alone."""

    def __init__(self, config: Config, replicas: ReplicaManager, topics: TopicManager) -> None:
        self.config = config
        self.replicas = replicas
        self.topics = topics
        self.table: dict[int, Handler] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
        }

    def metadata(self, request: m.MetadataRequest, version: int, reply: Reply) -> None:
        """Describe the cluster; a topic that is asked for may be created by that."""
        names = request.topics
        if names is None or (version == 0 and not names):
            names = sorted(self.topics.topics)
        topics = []
        for name in names:
            topic = self.topics.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic is None and request.allow_auto_topic_creation and self.config.auto_create_topics:
                code = ErrorCode.LEADER_NOT_AVAILABLE
                try:
                    check_name(name)
                    topic = self.topics.plan(name, partitions=self.config.partitions)
                    self.topics.create(topic)
                except BrokerError as error:
                    code = error.code
            if topic is None:
                topics.append(m.MetadataTopic(code, name))
            else:
                topics.append(self._describe(topic))
        here = self.config.cluster
        brokers = [m.MetadataBroker(here.node_id, here.advertised_host, here.port)]
        reply(m.MetadataResponse(brokers=brokers, cluster_id=_CLUSTER_ID, controller_id=LEADER, topics=topics))

    def _describe(self, topic: Topic) -> m.MetadataTopic:
        parts = []
        for index in range(topic.partitions):
            partition = self.replicas.partitions.get((topic.name, index))
            isr = sorted(partition.isr) if partition is not None else list(topic.replicas)
            epoch = partition.leader_epoch if partition is not None else -1
            parts.append(m.MetadataPartition(0, index, LEADER, epoch, list(topic.replicas), isr))
        return m.MetadataTopic(0, topic.name, topic.is_internal, parts)

    def create_topics(self, request: m.CreateTopicsRequest, _version: int, reply: Reply) -> None:
        """Create topics; -1 stands for the node's own number of partitions and of replicas."""
        answers = []
        twice = named_twice(request.topics)
        for wanted in {each.name: each for each in request.topics}.values():
            answer = m.CreatedTopic(wanted.name)
            try:
                check_named_once(wanted.name, twice)
                self._create(wanted, validate_only=request.validate_only)
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            answers.append(answer)
        reply(m.CreateTopicsResponse(topics=answers))

    def _create(self, wanted: m.CreatableTopic, *, validate_only: bool) -> None:
        assignment = assigned_at_creation(wanted, _NODES)
        partitions = self.config.partitions if wanted.num_partitions == -1 else wanted.num_partitions
        topic = self.topics.plan(
            wanted.name,
            partitions=partitions if assignment is None else len(assignment),
            replicas=None if wanted.replication_factor == -1 else wanted.replication_factor,
            settings={config.name: config.value for config in wanted.configs},
        )
        if not validate_only:
            self.topics.create(topic)

    def create_partitions(self, request: m.CreatePartitionsRequest, _version: int, reply: Reply) -> None:
        """Have topics with more partitions."""
        answers = []
        twice = named_twice(request.topics)
        for wanted in {each.name: each for each in request.topics}.values():
            answer = m.CreatedPartitions(wanted.name)
            try:
                check_named_once(wanted.name, twice)
                self._grow(wanted, validate_only=request.validate_only)
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            answers.append(answer)
        reply(m.CreatePartitionsResponse(results=answers))

    def _grow(self, wanted: m.PartitionsOfTopic, *, validate_only: bool) -> None:
        check_not_internal(wanted.name)
        topic = self.topics.plan_growth(wanted.name, wanted.count)
        assigned_at_growth(wanted, self.topics.existing(wanted.name).partitions, _NODES)
        if not validate_only:
            self.topics.grow(topic)

    def delete_topics(self, request: m.DeleteTopicsRequest, _version: int, reply: Reply) -> None:
        """Delete topics with their records."""
        answers = []
        for name in dict.fromkeys(request.topic_names):
            code = ErrorCode.NONE
            try:
                check_not_internal(name)
                self.topics.delete(name)
            except BrokerError as error:
                code = error.code
            answers.append(m.DeletedTopic(name, code))
        reply(m.DeleteTopicsResponse(responses=answers))
