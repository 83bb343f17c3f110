"""A follower: keeps this node's replicas equal to their leaders, through the APIs that clients use.

There is one task with one connection per node that leads some partition of this node:

    OffsetForLeaderEpoch    once per partition after its leadership moved: where does our last leader epoch end there?
    Fetch                   one request for all partitions, long-polled, with our node id, in a session (see
                            ``incremental_fetch``)

The offset in a fetch *is* the acknowledgement. A fetch from offset 20 says that 0 to 19 are here. If a fetch of the
session does not name a partition, its offset is unchanged. The response has the leader's high watermark and log start.

**Divergence.** A leader that dies may have written records that no other replica has. When it is back, or when
followers of two leaders compare, each log is cut where its epochs differ from the present leader's, before anything is
fetched (``leader_epochs``). Cutting at the high watermark would be simpler and was rejected. A follower's watermark is
one fetch behind its leader's, so two elections in a row could drop acknowledged records or keep different ones.

**Moving.** When the partitions of a task change, the task is restarted, so that no partition waits for the long poll of
the others. Records of a partition whose leadership has moved meanwhile are dropped.

**Checkpoints.** After an unclean election, a cut may move a log's start and watermark back. They are saved before
records are appended, because a restart with the old start would hide these records.

Runs as tasks on the broker's loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import BrokerError, ErrorCode, MalformedRequest
from examples.broker.protocol.messages.common import by_topic, parts_of
from examples.broker.protocol.messages.controller import (
    EpochOfPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from examples.broker.protocol.messages.records import FetchedPartition, FetchRequest, FetchResponse
from examples.broker.replication.leadership import NO_LEADER
from examples.broker.replication.peers.incremental_fetch import IncrementalFetch
from examples.broker.replication.peers.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.replication.partition import Key, Partition
    from examples.broker.replication.peers.node_key import NodeKey
    from examples.broker.replication.replica_manager import ReplicaManager

_log = structlog.get_logger(__name__)
_RETRY_S = 0.05
_PARTITION_BYTES = 4 * 1024 * 1024
_FETCH_VERSION = 11
_EPOCH_VERSION = 3

Followed = dict["Key", int]
"""Partitions that are followed, with their leader epochs."""


class Follower:
    """Follows all leaders of this node's partitions, until closed."""

    def __init__(self, replicas: ReplicaManager, key: NodeKey) -> None:
        self._replicas = replicas
        self._key = key
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._followed: dict[int, Followed] = {}

    def refresh(self) -> None:
        """Follow the leaders that the partitions name now. Called whenever leaderships have moved."""
        wanted: dict[int, Followed] = {}
        for key, partition in self._replicas.partitions.items():
            if not partition.is_leader and partition.leader_id != NO_LEADER:
                wanted.setdefault(partition.leader_id, {})[key] = partition.leader_epoch
        for leader in self._tasks.keys() - wanted.keys():
            self._stop(leader)
        for leader, followed in wanted.items():
            if not followed.items() <= self._followed.get(leader, {}).items():
                self._stop(leader)
                self._tasks[leader] = asyncio.get_running_loop().create_task(self._follow(leader))
            self._followed[leader] = followed

    def _stop(self, leader: int) -> None:
        self._followed.pop(leader, None)
        task = self._tasks.pop(leader, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for leader in list(self._tasks):
            self._stop(leader)

    async def _follow(self, leader: int) -> None:
        replicas = self._replicas
        name = f"replica-{replicas.cluster.node_id}"
        while True:
            address = replicas.metadata.brokers.get(leader)
            try:
                if address is not None:
                    async with Link(*address, name, replicas.settings.max_fetch_bytes) as link:
                        await link.prove(self._key, leader)
                        _log.info("following", leader=leader, partitions=len(self._followed[leader]))
                        await _Fetcher(replicas, leader, link).run(lambda: self._followed[leader])
            except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
                _log.info("leader lost", leader=leader, error=repr(error))
            except Exception:  # noqa: BLE001 - contained: tried again
                _log.exception("following failed", leader=leader)
            await asyncio.sleep(_RETRY_S)


class _Fetcher:
    """Fetches from one leader over one connection, until that breaks."""

    def __init__(self, replicas: ReplicaManager, leader: int, link: Link) -> None:
        self._replicas = replicas
        self._leader = leader
        self._link = link
        self._fetch = IncrementalFetch(_PARTITION_BYTES)
        self._timeout_s = 5 + replicas.settings.fetch_wait_ms / 1_000

    async def run(self, followed: Callable[[], Followed]) -> None:
        while True:
            partitions = self._current(followed())
            apart = {key: partition for key, partition in partitions.items() if not partition.is_aligned}
            trouble = bool(apart) and await self._align(apart)
            aligned = {key: partition for key, partition in partitions.items() if partition.is_aligned}
            if aligned:
                trouble |= await self._fetch_once(aligned)
            if trouble or not aligned:
                await asyncio.sleep(_RETRY_S)

    def _current(self, followed: Followed) -> dict[Key, Partition]:
        found = {}
        for key, epoch in followed.items():
            partition = self._replicas.partitions.get(key)
            if partition is not None and self._still_follows(partition, epoch):
                found[key] = partition
        return found

    def _still_follows(self, partition: Partition, epoch: int) -> bool:
        return (
            not partition.is_deleted
            and not partition.is_leader
            and (partition.leader_id, partition.leader_epoch) == (self._leader, epoch)
        )

    # -- where logs part

    async def _align(self, partitions: dict[Key, Partition]) -> bool:
        """Cut logs where they differ from the leader's. Returns whether the leader must be asked again."""
        parts = []
        asked: Followed = {}
        for (name, index), partition in partitions.items():
            latest = partition.log.epochs.latest
            if latest < 0:
                partition.is_aligned = True  # an empty log cannot differ
                continue
            asked[name, index] = partition.leader_epoch
            parts.append((name, EpochOfPartition(index, partition.leader_epoch, latest)))
        if not asked:
            return False
        request = OffsetForLeaderEpochRequest(self._replicas.cluster.node_id, by_topic(parts))
        response = await self._link.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, _EPOCH_VERSION, request, OffsetForLeaderEpochResponse, self._timeout_s
        )
        trouble = False
        for name, end in parts_of(response.topics):
            key = (name, end.partition)
            partition = partitions[key]
            if not self._still_follows(partition, asked[key]):
                continue
            if end.error_code == ErrorCode.NONE:
                trouble |= not partition.align(end.leader_epoch, end.end_offset)
            else:
                trouble = True
        self._replicas.checkpoint()
        return trouble

    # -- records

    async def _fetch_once(self, partitions: dict[Key, Partition]) -> bool:
        """Fetch once. Returns whether to wait before the next fetch."""
        asked = {key: partition.leader_epoch for key, partition in partitions.items()}
        settings = self._replicas.settings
        request = FetchRequest(
            replica_id=self._replicas.cluster.node_id,
            max_wait_ms=settings.fetch_wait_ms,
            min_bytes=1,
            max_bytes=settings.max_fetch_bytes,
        )
        self._fetch.ask(request, partitions)
        response = await self._link.ask(ApiKey.FETCH, _FETCH_VERSION, request, FetchResponse, self._timeout_s)
        if response.error_code != ErrorCode.NONE:
            _log.info("fetch session rejected", code=response.error_code)
            self._fetch.reset()
            return True
        self._fetch.answered(response)
        trouble = is_cut = False
        for name, part in parts_of(response.topics):
            followed = partitions.get((name, part.index))
            if followed is None or not self._still_follows(followed, asked[followed.key]):
                continue
            is_cut |= part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            if not self._take(followed, part):
                self._fetch.name_again(followed.key)
                trouble = True
        if is_cut:
            self._replicas.checkpoint()
        return trouble

    def _take(self, partition: Partition, part: FetchedPartition) -> bool:
        """Append one partition's part of a response. Returns False if it must be fetched again later."""
        try:
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                _realign(partition, part)
            elif part.error_code != ErrorCode.NONE:
                return False
            else:
                partition.replicate(
                    part.records or b"", leader_watermark=part.high_watermark, leader_start=part.log_start_offset
                )
        except BrokerError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:  # ``disk`` logs it once
                _log.warning("replication failed", key=partition.key, error=str(error))
            self._replicas.check_disk()
            return False
        return True


def _realign(partition: Partition, part: FetchedPartition) -> None:
    """The leader has nothing at our end: it has deleted that far, or it ends before us, after an unclean election."""
    log = partition.log
    if log.next_offset < part.log_start_offset:
        log.restart_at(part.log_start_offset)
    else:
        log.truncate_to(max(part.high_watermark, part.log_start_offset))
    partition.high_watermark = min(partition.high_watermark, log.next_offset)
