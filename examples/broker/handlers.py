"""One method per API about topics and records: from the request to what the replica manager does, and back.

Every handler gets the decoded request, its version and the reply to call, now or from an operation that was
parked. The handlers of groups are in `coordinator_handlers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker import messages as m
from examples.broker.config import LEADER, Config
from examples.broker.delayed_fetch import Wanted
from examples.broker.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.message_set import from_batches, to_batches
from examples.broker.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.partition import Key
    from examples.broker.replica_manager import ReplicaManager
    from examples.broker.server import Handler, Reply
    from examples.broker.topics import Topic

__all__ = ["RecordHandlers"]

_log = structlog.get_logger(__name__)

_LATEST, _EARLIEST = -1, -2
_FIRST_WITH_BATCHES_PRODUCE = 3
_FIRST_WITH_BATCHES_FETCH = 4
_IDS_OF_A_NODE = 10**12
_CLUSTER_ID = "purgatory-broker"


def _check_produce(request: m.ProduceRequest, topic: str) -> None:
    if request.acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "there are no transactions here")
    if topic.startswith("__"):
        raise BrokerError(ErrorCode.INVALID_TOPIC, "internal")


class RecordHandlers:
    """Produce, fetch, and what belongs to them."""

    def __init__(self, config: Config, replicas: ReplicaManager) -> None:
        self.config = config
        self.replicas = replicas
        self.ask_leader_for: Callable[[str], None] = lambda _: None
        """On a follower: has the leader create a topic that a client asked for here."""
        self.table: dict[int, Handler] = {
            0: self.produce,
            1: self.fetch,
            2: self.list_offsets,
            3: self.metadata,
            19: self.create_topics,
            20: self.delete_topics,
            21: self.delete_records,
            22: self.init_producer_id,
        }

    # -- records

    def produce(self, request: m.ProduceRequest, version: int, reply: Reply) -> None:
        """Append; `acks=0` gets no response, and a closed connection when something is wrong."""
        entries: dict[Key, bytes] = {}
        refused: dict[Key, tuple[ErrorCode, int]] = {}
        for topic in request.topics:
            for part in topic.partitions:
                key = (topic.name, part.index)
                if key in entries or key in refused:
                    raise MalformedRequest(f"{key} twice in one produce request")
                try:
                    _check_produce(request, topic.name)
                    data = part.records or b""
                    entries[key] = data if version >= _FIRST_WITH_BATCHES_PRODUCE else to_batches(data)
                except BrokerError as error:
                    refused[key] = (error.code, -1)

        def respond(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            if request.acks == 0:
                if refused or any(code for code, _ in results.values()):
                    reply.connection.close("a produce without acknowledgement failed")
                else:
                    reply.nothing()
                return
            topics = []
            for topic in request.topics:
                parts = []
                for part in topic.partitions:
                    key = (topic.name, part.index)
                    code, offset = results.get(key) or refused[key]
                    partition = self.replicas.partitions.get(key)  # deleted, perhaps, while another waited
                    start = partition.log.start_offset if partition is not None else -1
                    parts.append(m.ProducedPartition(part.index, code, offset, -1, start))
                topics.append(m.ProducedTopic(topic.name, parts))
            reply(m.ProduceResponse(topics))

        self.replicas.append(entries, acks=request.acks, timeout_ms=request.timeout_ms, respond=respond)

    def fetch(self, request: m.FetchRequest, version: int, reply: Reply) -> None:
        """Read at once, or when enough has gathered."""
        if request.session_id != 0 and request.session_epoch > 0:
            reply(m.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        by_follower = request.replica_id >= 0
        wanted: list[Wanted] = []
        errors: dict[Key, ErrorCode] = {}
        for topic in request.topics:
            for part in topic.partitions:
                key = (topic.name, part.index)
                try:
                    partition = self.replicas.leader(key)
                    if by_follower:
                        self.replicas.follower_fetches(
                            request.replica_id, partition, part.fetch_offset, part.log_start_offset
                        )
                    wanted.append(Wanted(partition, part.fetch_offset, part.partition_max_bytes))
                except BrokerError as error:
                    errors[key] = error.code

        def respond() -> None:
            reply(self._read(request, version, errors))

        if errors or not wanted:
            # Who asks for something that can't be had is told at once, whatever else it wants to wait for.
            respond()
            return
        operation = self.replicas.fetch(
            wanted,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            by_follower=by_follower,
            respond=respond,
        )
        if operation is not None:
            reply.on_lost = operation.cancel

    def _read(self, request: m.FetchRequest, version: int, errors: Mapping[Key, ErrorCode]) -> m.FetchResponse:
        room = min(request.max_bytes, self.config.max_fetch_bytes)
        by_follower = request.replica_id >= 0
        first = True
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                key = (topic.name, part.index)
                records = b""  # never null: librdkafka takes null for a broken response
                code = errors.get(key, ErrorCode.NONE)
                high_watermark = start = -1
                if code is ErrorCode.NONE:
                    try:
                        partition = self.replicas.leader(key)
                        high_watermark, start = partition.high_watermark, partition.log.start_offset
                        if room > 0 or first:
                            records = partition.log.read(
                                part.fetch_offset,
                                partition.readable_end(by_follower=by_follower),
                                max(min(part.partition_max_bytes, room), 0),
                            )
                        if not first and len(records) > room:
                            records = b""
                        if records and version < _FIRST_WITH_BATCHES_FETCH:
                            records = from_batches(records, part.fetch_offset)
                    except BrokerError as error:
                        code, records = error.code, b""
                if records:
                    first = False
                    room -= len(records)
                parts.append(
                    m.FetchedPartition(part.index, code, high_watermark, high_watermark, start, records=records)
                )
            topics.append(m.FetchedTopic(topic.name, parts))
        return m.FetchResponse(topics=topics)

    def list_offsets(self, request: m.ListOffsetsRequest, _version: int, reply: Reply) -> None:
        """Give the first, the last, or the offset of a timestamp (to the batch)."""
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                answer = m.ListedPartition(part.index)
                try:
                    partition = self.replicas.leader((topic.name, part.index))
                    end = partition.readable_end(by_follower=request.replica_id >= 0)
                    found: tuple[int, int] | None
                    if part.timestamp == _LATEST:
                        found = (end, -1)
                    elif part.timestamp == _EARLIEST:
                        found = (partition.log.start_offset, -1)
                    else:
                        found = partition.log.offset_for_timestamp(part.timestamp, end)
                    if found is not None:
                        answer.offset, answer.timestamp = found
                        answer.old_style_offsets = [found[0]]
                except BrokerError as error:
                    answer.error_code = error.code
                parts.append(answer)
            topics.append(m.ListedTopic(topic.name, parts))
        reply(m.ListOffsetsResponse(topics=topics))

    def delete_records(self, request: m.DeleteRecordsRequest, _version: int, reply: Reply) -> None:
        """Delete the start of partitions, and answer when every replica did."""
        offsets = {(t.name, p.index): p.offset for t in request.topics for p in t.partitions}

        def respond(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            topics = []
            for topic in request.topics:
                parts = []
                for part in topic.partitions:
                    code, low = results[topic.name, part.index]
                    parts.append(m.DeletedPartition(part.index, low, code))
                topics.append(m.DeletedRecordsTopic(topic.name, parts))
            reply(m.DeleteRecordsResponse(topics=topics))

        self.replicas.delete_records(offsets, timeout_ms=request.timeout_ms, respond=respond)

    def init_producer_id(self, request: m.InitProducerIdRequest, _version: int, reply: Reply) -> None:
        """Give an idempotent producer its id."""
        if request.transactional_id is not None:
            reply(m.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        else:
            # Clients ask any node. Each gives ids out of a range of its own, so no two ever give the same.
            producer_id = self.config.node_id * _IDS_OF_A_NODE + self.replicas.store.next_producer_id()
            reply(m.InitProducerIdResponse(0, 0, producer_id, 0))

    # -- topics

    def metadata(self, request: m.MetadataRequest, version: int, reply: Reply) -> None:
        """Describe the cluster; a topic that is asked for may be created by that."""
        names = request.topics
        if names is None or (version == 0 and not names):
            names = sorted(self.replicas.store.topics)
        topics = []
        for name in names:
            topic = self.replicas.store.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic is None and request.allow_auto_topic_creation and self.config.auto_create_topics:
                code = ErrorCode.LEADER_NOT_AVAILABLE
                try:
                    check_name(name)
                    if self.config.is_leader:
                        topic = self.replicas.create_topic(name, partitions=self.config.partitions)
                    else:
                        self.ask_leader_for(name)
                except BrokerError as error:
                    code = error.code
            if topic is None:
                topics.append(m.MetadataTopic(code, name))
            else:
                topics.append(self._describe(topic))
        brokers = [m.MetadataBroker(node, self.config.host, port) for node, port in enumerate(self.config.ports, 1)]
        reply(m.MetadataResponse(brokers=brokers, cluster_id=_CLUSTER_ID, controller_id=LEADER, topics=topics))

    def _describe(self, topic: Topic) -> m.MetadataTopic:
        parts = []
        for index in range(topic.partitions):
            partition = self.replicas.partitions.get((topic.name, index))
            isr = sorted(partition.isr) if partition is not None else list(topic.replicas)
            parts.append(m.MetadataPartition(0, index, LEADER, list(topic.replicas), isr))
        return m.MetadataTopic(0, topic.name, topic.is_internal, parts)

    def create_topics(self, request: m.CreateTopicsRequest, _version: int, reply: Reply) -> None:
        """Create topics; of their configuration only min.insync.replicas means something here."""
        answers = []
        for wanted in request.topics:
            answer = m.CreatedTopic(wanted.name)
            try:
                self._create(wanted, validate_only=request.validate_only)
            except BrokerError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            answers.append(answer)
        reply(m.CreateTopicsResponse(topics=answers))

    def _create(self, wanted: m.CreatableTopic, *, validate_only: bool) -> None:
        if not self.config.is_leader:
            raise BrokerError(ErrorCode.NOT_CONTROLLER)
        if wanted.assignments:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "replicas can't be assigned by hand here")
        min_isr = None
        for config in wanted.configs:
            if config.name == "min.insync.replicas":
                if not (config.value or "").isdigit():
                    raise BrokerError(ErrorCode.INVALID_CONFIG, f"min.insync.replicas={config.value!r}")
                min_isr = int(config.value or "")
        partitions = self.config.partitions if wanted.num_partitions == -1 else wanted.num_partitions
        replicas = None if wanted.replication_factor == -1 else wanted.replication_factor
        if validate_only:
            if wanted.name in self.replicas.store.topics:
                raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS)
            return
        self.replicas.create_topic(wanted.name, partitions=partitions, replicas=replicas, min_isr=min_isr)

    def delete_topics(self, request: m.DeleteTopicsRequest, _version: int, reply: Reply) -> None:
        """Delete topics with their records."""
        answers = []
        for name in request.topic_names:
            code = ErrorCode.NONE
            try:
                if not self.config.is_leader:
                    raise BrokerError(ErrorCode.NOT_CONTROLLER)
                if name.startswith("__"):
                    raise BrokerError(ErrorCode.INVALID_TOPIC, "internal")
                self.replicas.delete_topic(name)
            except BrokerError as error:
                code = error.code
            answers.append(m.DeletedTopic(name, code))
        reply(m.DeleteTopicsResponse(responses=answers))
