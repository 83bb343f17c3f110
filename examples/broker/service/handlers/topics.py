"""The APIs about topics, for a node alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import controller as cm
from examples.broker.protocol.messages import topics as m
from examples.broker.protocol.messages.common import NameCode, by_topic, parts_of
from examples.broker.replication.metadata import CLUSTER_ID
from examples.broker.service.handlers import assignments
from examples.broker.storage.topics import check_name, check_not_internal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.replication.topic_manager import TopicManager
    from examples.broker.service.config import Config
    from examples.broker.service.reply import Reply
    from examples.broker.storage.topics import Topic


class TopicHandlers:
    def __init__(self, config: Config, replicas: ReplicaManager, topics: TopicManager) -> None:
        self.config = config
        self.replicas = replicas
        self.topics = topics

    def metadata(self, request: m.MetadataRequest, version: int, reply: Reply) -> Steps[None]:
        """Describe the cluster. A request for a topic may create it."""
        names = assignments.names_in(request, version)
        codes: Mapping[str, ErrorCode] = {}
        if names is not None and request.allow_auto_topic_creation and self.config.auto_create_topics:
            codes = yield from self._create_missing(names)
        topics = []
        for name in sorted(self.topics.topics) if names is None else names:
            topic = self.topics.topics.get(name)
            if topic is not None:
                topics.append(self._describe(topic))
            elif names is not None:
                topics.append(m.MetadataTopic(codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), name))
            yield
        here = self.config.cluster
        brokers = [m.MetadataBroker(here.node_id, here.advertised_host, here.port)]
        response = m.MetadataResponse(brokers=brokers, cluster_id=CLUSTER_ID, controller_id=here.node_id, topics=topics)
        reply(m.with_operations(response, request))

    def _create_missing(self, names: Iterable[str]) -> Steps[dict[str, ErrorCode]]:
        """Create the first missing topics, and return a code for each of the others."""
        planned: dict[str, Topic] = {}
        codes = {}
        for name in names:
            if name in self.topics.topics:
                continue
            try:
                check_name(name)
                if planned and len(planned) * self.config.partitions >= assignments.MOST_AT_ONCE:
                    raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)  # the client asks again
                planned[name] = self.topics.plan(name, partitions=self.config.partitions)
            except BrokerError as error:
                codes[name] = error.code
        if planned:
            try:
                yield from self.topics.create_in_steps(*planned.values())
            except BrokerError as error:
                codes |= dict.fromkeys(planned, error.code)
        return codes

    def _describe(self, topic: Topic) -> m.MetadataTopic:
        parts = []
        for index in range(topic.partitions):
            partition = self.replicas.partitions.get((topic.name, index))
            isr = sorted(partition.isr) if partition is not None else list(topic.replicas)
            epoch = partition.leader_epoch if partition is not None else -1
            parts.append(m.MetadataPartition(0, index, self.config.cluster.node_id, epoch, list(topic.replicas), isr))
        return m.MetadataTopic(0, topic.name, topic.is_internal, parts)

    def create_topics(self, request: m.CreateTopicsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Create topics. -1 stands for the node's own number of partitions or replicas."""
        answers = []
        planned: list[tuple[Topic, m.CreatedTopic]] = []
        total = 0
        for name, wanted in assignments.by_name(request.topics).items():
            answer = m.CreatedTopic(name)
            try:
                topic = self._planned(assignments.single_entry(name, wanted))
                total = assignments.check_total(total + topic.partitions)
                planned.append((topic, answer))
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            answers.append(answer)
            if len(planned) == assignments.MOST_AT_ONCE:
                yield from self._create(planned, request)
            if not planned:
                yield  # not before: another request could create a topic that is only planned here
        yield from self._create(planned, request)
        reply(m.CreateTopicsResponse(topics=answers))

    def _create(self, planned: list[tuple[Topic, m.CreatedTopic]], request: m.CreateTopicsRequest) -> Steps[None]:
        try:
            if planned and not request.validate_only:
                yield from self.topics.create_in_steps(*(topic for topic, _ in planned))
        except BrokerError as error:
            for _, answer in planned:
                answer.error_code, answer.error_message = error.code, str(error)
        planned.clear()

    def _planned(self, wanted: m.CreatableTopic) -> Topic:
        assignment = assignments.assigned_at_creation(wanted, self.config.cluster.nodes)
        partitions = self.config.partitions if wanted.num_partitions == -1 else wanted.num_partitions
        return self.topics.plan(
            wanted.name,
            partitions=partitions if assignment is None else len(assignment),
            replicas=None if wanted.replication_factor == -1 else wanted.replication_factor,
            settings={config.name: config.value for config in wanted.configs},
        )

    def create_partitions(self, request: m.CreatePartitionsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Add partitions to topics."""
        answers = []
        total = 0
        for name, wanted in assignments.by_name(request.topics).items():
            answer = m.CreatedPartitions(name)
            try:
                check_not_internal(name)
                before = self.topics.existing(name).partitions
                entry = assignments.single_entry(name, wanted)
                topic = self.topics.plan_growth(name, entry.count)
                total = assignments.check_total(total + topic.partitions - before)
                assignments.assigned_at_growth(entry, before, self.config.cluster.nodes)
                if not request.validate_only:
                    yield from self.topics.create_in_steps(topic)
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            answers.append(answer)
            yield
        reply(m.CreatePartitionsResponse(results=answers))

    def delete_topics(self, request: m.DeleteTopicsRequest, _version: int, reply: Reply) -> Steps[None]:
        answers = []
        to_delete: list[Topic] = []
        for name in dict.fromkeys(request.topic_names):
            code = ErrorCode.NONE
            try:
                check_not_internal(name)
                to_delete.append(self.topics.existing(name))
            except BrokerError as error:
                code = error.code
            answers.append(NameCode(name, code))
            if not to_delete:
                yield  # not before, as above
        if to_delete:
            yield from self.topics.delete_in_steps(*(topic.name for topic in to_delete))
        reply(m.DeleteTopicsResponse(responses=answers))

    def elect_leaders(self, request: cm.ElectLeadersRequest, _version: int, reply: Reply) -> None:
        """Answer that no election is needed: a node alone leads every partition."""
        if request.election_type not in (assignments.PREFERRED, assignments.UNCLEAN):
            reply(cm.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        parts = []
        for name, index in parts_of(request.topics or []):
            known = self.topics.topics.get(name)
            is_known = known is not None and 0 <= index < known.partitions
            code = ErrorCode.ELECTION_NOT_NEEDED if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            parts.append((name, cm.ElectedPartition(index, code, code.name)))
        reply(cm.ElectLeadersResponse(topics=by_topic(parts)))
