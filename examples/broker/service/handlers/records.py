"""The APIs about records.

A handler gets the decoded request, its version, and the reply. It calls the reply at once, or from a parked operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.protocol.message_set import from_batches, to_batches
from examples.broker.protocol.messages import records as m
from examples.broker.protocol.messages.common import by_topic, parts_of
from examples.broker.protocol.records import ZSTD, compressions
from examples.broker.replication.fetching.fetch_sessions import CONSUMER, Found, Wanted
from examples.broker.storage.topics import check_not_internal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.partition import Key, Partition
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.config import Config
    from examples.broker.service.reply import Reply

_log = structlog.get_logger(__name__)

_LATEST, _EARLIEST = -1, -2
_FIRST_WITH_BATCHES_PRODUCE = 3
_FIRST_WITH_ZSTD_PRODUCE = 7
_FIRST_WITH_TIMESTAMPS_FETCH = 2
_FIRST_WITH_BATCHES_FETCH = 4
_FIRST_WITH_ZSTD_FETCH = 10
_FIRST_WITH_NOT_AVAILABLE = 5
_IDS_OF_A_NODE = 10**13  # more than the milliseconds since 1970, at which a node's ids begin


def _check_produce(request: m.ProduceRequest, topic: str) -> None:
    if request.acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "this broker has no transactions")
    check_not_internal(topic)


def _check_replica_id(node: int, reply: Reply) -> None:
    """Only a follower reads records that are not committed."""
    if node >= 0 and reply.connection.node != node:
        raise MalformedRequest(f"a request in the name of node {node}")


def _in_batches(data: bytes, version: int, most: int) -> Steps[bytes]:
    """Return the produced records as batches. Raises BrokerError if that is not possible in this version."""
    if version < _FIRST_WITH_BATCHES_PRODUCE:
        return (yield from to_batches(data, most))
    if version < _FIRST_WITH_ZSTD_PRODUCE:
        _check_no_zstd(data)
    return data


def _check_no_zstd(data: bytes) -> None:
    if ZSTD in compressions(data):
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs a later version of the API")


def _fetched(index: int, found: Found, offset: int, version: int, most: int) -> Steps[m.FetchedPartition]:
    """Return what a fetch found, in the format of its version. librdkafka rejects records that are null.

    ``most`` is the limit for converted records, as in ``from_batches``.
    """
    code, records = found.code, found.records
    if records and version < _FIRST_WITH_ZSTD_FETCH:
        try:
            if version < _FIRST_WITH_BATCHES_FETCH:
                magic = 0 if version < _FIRST_WITH_TIMESTAMPS_FETCH else 1
                records = yield from from_batches(records, offset, most, magic=magic)
            else:
                _check_no_zstd(records)
        except BrokerError as error:
            _log.warning("fetch rejected", key=found.key, version=version, reason=str(error))
            code, records = error.code, b""
    watermark = found.high_watermark
    return m.FetchedPartition(index, code, watermark, watermark, found.log_start, records=records)


def _looked_up(
    partition: Partition, timestamp: int, *, by_follower: bool, version: int
) -> Steps[tuple[int, int] | None]:
    """Return the offset of a timestamp and the timestamp found there, or None if all records are older.

    Raises:
        BrokerError: if the timestamp is invalid, or a new leader does not know yet what earlier leaders have committed.
            An end that moves back would make consumers read records twice.
    """
    if timestamp == _EARLIEST:
        return (partition.log.start_offset, -1)
    if timestamp < 0 and timestamp != _LATEST:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"a timestamp must be -2, -1, 0 or more, got {timestamp}")
    end = partition.readable_end(by_follower=by_follower)
    found = (end, -1) if timestamp == _LATEST else (yield from partition.log.offset_for_timestamp(timestamp, end))
    if (timestamp == _LATEST or found is None) and not by_follower and not partition.knows_committed:
        is_known = version >= _FIRST_WITH_NOT_AVAILABLE
        raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)
    return found


@attrs.define(eq=False)
class RecordHandlers:
    config: Config
    replicas: ReplicaManager

    def produce(self, request: m.ProduceRequest, version: int, reply: Reply) -> Steps[None]:
        """Append. With ``acks=0`` there is no response, and an error closes the connection."""
        entries: dict[Key, bytes] = {}
        rejected: dict[Key, tuple[ErrorCode, int]] = {}
        space = self.config.max_request_bytes
        for name, part in parts_of(request.topics):
            key = (name, part.index)
            if key in entries or key in rejected:
                raise MalformedRequest(f"a produce must name each partition once, got {key} twice")
            try:
                _check_produce(request, name)
                entries[key] = yield from _in_batches(part.records or b"", version, space)
                space -= len(entries[key])
            except BrokerError as error:
                peer = reply.connection.peer
                _log.warning("produce rejected", key=key, version=version, reason=str(error), peer=peer)
                rejected[key] = (error.code, -1)

        def respond(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            if request.acks == 0:
                if rejected or any(code for code, _ in results.values()):
                    reply.connection.close("a produce without acknowledgement failed")
                else:
                    reply.nothing()
                return
            parts = []
            for name, part in parts_of(request.topics):
                key = (name, part.index)
                code, offset = results.get(key) or rejected[key]
                partition = self.replicas.partitions.get(key)  # None if it was deleted while another partition waited
                start = partition.log.start_offset if partition is not None else -1
                appended_at = partition.log.newest_at(offset) if partition is not None and partition.stamps else -1
                parts.append((name, m.ProducedPartition(part.index, code, offset, appended_at, start)))
            reply(m.ProduceResponse(by_topic(parts)))

        self.replicas.append(entries, acks=request.acks, timeout_ms=request.timeout_ms, respond=respond)

    def fetch(self, request: m.FetchRequest, version: int, reply: Reply) -> None:
        """Read at once, or when enough records are available. A follower's fetch is also its acknowledgement."""
        _check_replica_id(request.replica_id, reply)
        wanted = {
            (name, part.index): Wanted(
                part.fetch_offset, part.partition_max_bytes, part.log_start_offset, part.current_leader_epoch
            )
            for name, part in parts_of(request.topics)
        }
        forgotten = list(parts_of(request.forgotten_topics))
        node = max(request.replica_id, CONSUMER)
        session = self.replicas.fetches.open_session(
            request.session_id, request.session_epoch, node=node, wanted=wanted, forgotten=forgotten
        )

        def answer(found: list[tuple[Found, Wanted]]) -> Steps[None]:
            parts = []
            space = max(1, min(request.max_bytes, self.config.replication.max_fetch_bytes))
            for each, want in found:
                if not reply.connection.is_open:
                    return
                most = min(max(want.max_bytes, 1), space)
                part = yield from _fetched(each.key[1], each, want.offset, version, most)
                space -= len(part.records or b"")
                parts.append((each.key[0], part))
            reply(m.FetchResponse(session_id=session.session_id, topics=by_topic(parts)))

        operation = self.replicas.fetches.fetch(
            session,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            respond=lambda found: reply.connection.run_steps(
                answer([(each, session.wanted[each.key]) for each in found])
            ),
        )
        if operation is not None:
            reply.on_lost = operation.cancel

    def list_offsets(self, request: m.ListOffsetsRequest, version: int, reply: Reply) -> Steps[None]:
        """Return the first offset, the last, or the one of a timestamp, with its leader epoch."""
        _check_replica_id(request.replica_id, reply)
        by_follower = request.replica_id >= 0
        parts = []
        for name, part in parts_of(request.topics):
            if not reply.connection.is_open:
                return
            answer = m.ListedPartition(part.index)
            try:
                partition = self.replicas.leader((name, part.index))
                partition.check_epoch(part.current_leader_epoch)
                found = yield from _looked_up(partition, part.timestamp, by_follower=by_follower, version=version)
                if found is not None:
                    answer.offset, answer.timestamp = found
                    answer.old_style_offsets = [found[0]]
                    answer.leader_epoch = partition.log.epochs.at(found[0])
            except BrokerError as error:
                answer.error_code = error.code
            parts.append((name, answer))
            yield
        reply(m.ListOffsetsResponse(topics=by_topic(parts)))

    def delete_records(self, request: m.DeleteRecordsRequest, _version: int, reply: Reply) -> None:
        """Delete the start of partitions, and answer when every replica has."""
        offsets = {(name, part.index): part.offset for name, part in parts_of(request.topics)}

        def respond(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            parts = ((name, m.DeletedPartition(index, low, code)) for (name, index), (code, low) in results.items())
            reply(m.DeleteRecordsResponse(topics=by_topic(parts)))

        self.replicas.delete_records(offsets, timeout_ms=request.timeout_ms, respond=respond)

    def init_producer_id(self, request: m.InitProducerIdRequest, _version: int, reply: Reply) -> None:
        if request.transactional_id == "":
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        # Clients ask any node. Each node has its own range of ids.
        producer_id = self.config.cluster.node_id * _IDS_OF_A_NODE + self.replicas.store.next_producer_id()
        reply(m.InitProducerIdResponse(0, 0, producer_id, 0))
