"""A follower: keeps this node's replicas equal to the leader's, through the APIs that any client uses.

    metadata   which topics are there            every `topic_refresh_ms`; makes and deletes logs accordingly
    fetch      one request for all partitions    long-polled; with our node id, so that the leader knows how far we are

What a fetch asks for *is* the acknowledgement: asking for offset 20 says that 0 to 19 are here. The response brings the
leader's high watermark and log start, which this replica follows.

**Divergence.** Whenever the connection to the leader was lost, the records above our high watermark are dropped before
we fetch again: the leader may have come back without them. Below the watermark the two agree, as long as the leader
keeps what it was told to keep (see the fsync policies in `log`). If the leader ends before us, or starts after us, we
cut or restart our log to match.

Runs as two tasks on the broker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Self, TypeVar

import structlog

from examples.broker import messages as m
from examples.broker.config import LEADER, Config
from examples.broker.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.topics import Topic
from examples.broker.wire import decode, encode

if TYPE_CHECKING:
    from examples.broker.partition import Partition
    from examples.broker.replica_manager import ReplicaManager

__all__ = ["Follower"]

_log = structlog.get_logger(__name__)
R = TypeVar("R")
_RETRY_S = 0.2
_PARTITION_BYTES = 4 * 1024 * 1024
_MOST_WANTED = 100
_FETCH, _FETCH_VERSION = 1, 11
_METADATA, _METADATA_VERSION = 3, 5


class _Link:
    """A connection to the leader: one request at a time."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._correlation_id = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        host, port = self._config.host, self._config.ports[LEADER - 1]
        limit = self._config.max_fetch_bytes
        self._reader, self._writer = await asyncio.open_connection(host, port, limit=limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def ask(self, api: int, version: int, request: object, answer: type[R], timeout_s: float) -> R:
        """Send a request and read its response.

        Raises:
            OSError, EOFError, TimeoutError, MalformedRequest: the link is of no more use.
        """
        assert self._writer is not None
        self._correlation_id += 1
        header = m.RequestHeader(api, version, self._correlation_id, self._name)
        body = b"".join([*encode(header, 0), *encode(request, version)])
        self._writer.write(struct.pack(">i", len(body)) + body)
        async with asyncio.timeout(timeout_s):
            size, correlation_id = struct.unpack(">ii", await self._reader.readexactly(8))
            if correlation_id != self._correlation_id:
                raise MalformedRequest(f"response {correlation_id} to request {self._correlation_id}")
            return decode(answer, version, await self._reader.readexactly(size - 4))


class Follower:
    """Follows the leader until cancelled."""

    def __init__(self, config: Config, replicas: ReplicaManager) -> None:
        self._config = config
        self._replicas = replicas
        self._name = f"replica-{config.node_id}"
        self._wanted: set[str] = set()
        self._topics_wanted = asyncio.Event()
        self._timeout_s = 5 + config.replica_fetch_wait_ms / 1_000

    def want_topic(self, name: str) -> None:
        """Have the leader create a topic that a client asked this node for."""
        if len(self._wanted) < _MOST_WANTED:
            self._wanted.add(name)
            self._topics_wanted.set()

    async def follow_topics(self) -> None:
        """Have the topics that the leader has."""
        while True:
            try:
                async with _Link(self._config, self._name) as link:
                    while True:
                        self._topics_wanted.clear()
                        if self._wanted:
                            await self._ask_topics(link, m.MetadataRequest(sorted(self._wanted)))
                            self._wanted.clear()
                        self._take_topics(await self._ask_topics(link, m.MetadataRequest(None)))
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._config.topic_refresh_ms / 1_000):
                                await self._topics_wanted.wait()
            except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
                _log.debug("no metadata", error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def _ask_topics(self, link: _Link, request: m.MetadataRequest) -> m.MetadataResponse:
        return await link.ask(_METADATA, _METADATA_VERSION, request, m.MetadataResponse, self._timeout_s)

    def _take_topics(self, response: m.MetadataResponse) -> None:
        known = self._replicas.store.topics
        for topic in response.topics:
            if topic.name not in known:
                self._replicas.add_topic(Topic(topic.name, len(topic.partitions), topic.partitions[0].replicas))
            for part in topic.partitions:
                partition = self._replicas.partitions.get((topic.name, part.index))
                if partition is not None:
                    partition.isr = set(part.isr)
        for name in known.keys() - {topic.name for topic in response.topics}:
            self._replicas.delete_topic(name)

    async def follow_records(self) -> None:
        """Have the records that the leader has."""
        while True:
            try:
                async with _Link(self._config, self._name) as link:
                    _log.info("following", leader=LEADER)
                    for partition in self._replicas.partitions.values():
                        partition.log.truncate_to(partition.high_watermark)
                    while True:
                        await self._fetch_once(link)
            except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
                _log.warning("leader lost", error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def _fetch_once(self, link: _Link) -> None:
        asked = dict(self._replicas.partitions)
        if not asked:
            await asyncio.sleep(_RETRY_S / 4)
            return
        topics: dict[str, m.FetchTopic] = {}
        for (name, index), partition in asked.items():
            topics.setdefault(name, m.FetchTopic(name)).partitions.append(
                m.FetchPartition(index, -1, partition.log.next_offset, partition.log.start_offset, _PARTITION_BYTES)
            )
        request = m.FetchRequest(
            replica_id=self._config.node_id,
            max_wait_ms=self._config.replica_fetch_wait_ms,
            min_bytes=1,
            max_bytes=self._config.max_fetch_bytes,
            topics=list(topics.values()),
        )
        response = await link.ask(_FETCH, _FETCH_VERSION, request, m.FetchResponse, self._timeout_s)
        failed = False
        for topic in response.topics:
            for part in topic.partitions:
                partition = asked[topic.name, part.index]
                if not partition.is_deleted:
                    failed |= not self._take(partition, part)
        if failed:
            await asyncio.sleep(_RETRY_S)

    def _take(self, partition: Partition, part: m.FetchedPartition) -> bool:
        """Take over one partition's part of a response; False if there is trouble that time may heal."""
        try:
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._realign(partition, part)
            elif part.error_code != ErrorCode.NONE:
                return False
            else:
                partition.replicate(
                    part.records or b"",
                    leader_watermark=part.high_watermark,
                    leader_start=part.log_start_offset,
                )
        except BrokerError as error:
            _log.warning("can't replicate", key=partition.key, error=str(error))
            return False
        return True

    @staticmethod
    def _realign(partition: Partition, part: m.FetchedPartition) -> None:
        log = partition.log
        if log.next_offset < part.log_start_offset:
            log.restart_at(part.log_start_offset)
        else:
            log.truncate_to(max(part.high_watermark, part.log_start_offset))
        partition.high_watermark = min(partition.high_watermark, log.next_offset)
