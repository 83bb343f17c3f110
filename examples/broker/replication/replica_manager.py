"""All partitions of this node, and the purgatories for produces, fetches and deletions.

A change to a partition does not check the purgatories at once. The checks go into the action queue, which the
connection runs after it has written the handler's own answer. So a producer whose append wakes a thousand parked
fetches has its acknowledgement before the first of them is answered.

Used on the broker's loop.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.delayed_delete_records import DelayedDeleteRecords, Deletion
from examples.broker.replication.delayed_produce import DelayedProduce, Produced
from examples.broker.replication.fetching.fetches import Fetches
from examples.broker.replication.leadership import NO_LEADER, Leadership
from examples.broker.replication.metadata import Metadata
from examples.broker.replication.parking import park
from examples.broker.replication.partition import ACKS_ALL, Key, Partition
from examples.broker.replication.settings import ReplicationSettings, settings_of
from examples.broker.storage import topic_settings as names
from examples.broker.storage.replica_folders import ReplicaFolders
from examples.broker.storage.topics import Topic, check_not_internal
from purgatory import ActionQueue, DelayedOperationPurgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.replication.cluster import Cluster
    from examples.broker.storage.topics import TopicStore
    from purgatory import LockLike
    from timer import Timer

_log = structlog.get_logger(__name__)


class ReplicaManager:
    """Appends to and deletes from partitions. ``fetches`` reads from them."""

    def __init__(
        self, cluster: Cluster, settings: ReplicationSettings, store: TopicStore, timer: Timer, actions: ActionQueue
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.store = store
        self.actions = actions
        self.folders = ReplicaFolders(store, settings.fsync)
        self.partitions: dict[Key, Partition] = {}
        self.metadata = Metadata({cluster.node_id: (cluster.advertised_host, cluster.port)})
        self.propose_isr: Callable[[Partition, frozenset[int]], None] = lambda *_: None
        """Writes the in-sync replicas that a partition's leader wants to the tree."""
        self.on_disk: Callable[[bool], None] = lambda _: None
        """Called when this node's disk begins to reject writes, and when it accepts them again."""
        self._disk_was_failing = False
        self.on_leading: Callable[[Key], None] = lambda _: None
        self.on_following: Callable[[Key], None] = lambda _: None
        """Called when a leadership leaves this node; ``on_leading`` when one arrives."""

        purgatory = partial(
            DelayedOperationPurgatory[Any], timer=timer, broker_id=cluster.node_id, max_parked=settings.max_parked
        )
        self.produces: DelayedOperationPurgatory[DelayedProduce] = purgatory("produce")
        self.fetches = Fetches(settings, purgatory("fetch"), self.leader, self._follower_moved)
        self.deletions: DelayedOperationPurgatory[DelayedDeleteRecords] = purgatory("delete_records", purge_interval=1)

    # -- partitions

    def _open(self, topic: Topic, index: int, replicas: tuple[int, ...]) -> Partition:
        log, high_watermark = self.folders.open(topic, index)
        partition = Partition(
            (topic.name, index), log, node_id=self.cluster.node_id, replicas=replicas, high_watermark=high_watermark
        )
        self.partitions[partition.key] = partition
        return partition

    def apply_settings(self, partition: Partition, topic: Topic) -> None:
        settings = settings_of(topic, self.settings)
        partition.min_isr = int(settings[names.MIN_ISR])
        partition.max_batch_bytes = int(settings[names.MAX_BYTES])
        partition.stamps = settings[names.TIMESTAMP_TYPE] == names.LOG_APPEND_TIME
        log = partition.log
        log.segment_bytes, log.segment_ms = int(settings[names.SEGMENT_BYTES]), int(settings[names.SEGMENT_MS])
        partition.start_waits = topic.is_internal  # it loses records without its new ones, see ``groups.compaction``
        if not topic.is_internal:  # committed offsets are kept
            log.retention_bytes, log.retention_ms = (
                int(settings[names.RETENTION_BYTES]),
                int(settings[names.RETENTION_MS]),
            )

    # -- leadership, as the controller decides it

    def lead_or_follow(self, key: Key, leadership: Leadership, replicas: tuple[int, ...]) -> None:
        """Apply a partition's leadership, and answer requests that wait for a former leader. Raises OSError."""
        partition = self.partitions.get(key)
        topic = self.store.topics.get(key[0]) or Topic(key[0], key[1] + 1, replicas)
        if partition is None:
            partition = self._open(topic, key[1], replicas)
            # A node that is about to stop, or whose disk rejects writes, may still fetch. It must not join the ISR.
            partition.eligible = self.metadata.online
        if partition.is_ours(leadership) and replicas != partition.replicas:
            partition.move(replicas, time.monotonic())
            self.changed(partition)
        if not partition.is_newer_than_ours(leadership):
            return
        led = partition.is_leader
        self.apply_settings(partition, topic)
        if leadership.leader == self.cluster.node_id:
            partition.lead(leadership, replicas, time.monotonic())
        else:
            partition.follow(leadership, replicas)
        self.changed(partition)
        if partition.is_leader and not led:
            self.on_leading(key)
        elif led and not partition.is_leader:
            self.on_following(key)

    def stop_replica(self, key: Key) -> None:
        """Neither lead nor follow a partition. Its records stay."""
        partition = self.partitions.get(key)
        if partition is not None:
            led = partition.is_leader
            partition.is_leader, partition.leader_id, partition.is_aligned = False, NO_LEADER, False
            partition.version = -1  # so that the next leadership is news, even if it is the same
            self.changed(partition)
            if led:
                self.on_following(key)

    def delete_replica(self, key: Key) -> None:
        """Remove a partition and its records, also those of an earlier process of this node."""
        self.stop_replica(key)
        partition = self.partitions.pop(key, None)
        if partition is not None:
            partition.is_deleted = True
        self.folders.remove(key)

    def drop_stray(self, key: Key) -> None:
        """Remove the records of a partition that has been moved to other nodes."""
        if key in self.partitions or self.folders.has(key):
            _log.info("replica moved away", key=key)
            self.delete_replica(key)

    def replica(self, key: Key) -> Partition:
        """Return the partition if this node has it. Raises BrokerError if not."""
        partition = self.partitions.get(key)
        if partition is None:
            known = key[0] in self.store.topics and 0 <= key[1] < self.store.topics[key[0]].partitions
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def leader(self, key: Key) -> Partition:
        """Return the partition if this node leads it. Raises BrokerError if not."""
        partition = self.replica(key)
        if not partition.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    # -- the operations

    def append(
        self,
        entries: Mapping[Key, bytes],
        *,
        acks: int,
        timeout_ms: int,
        respond: Callable[[Mapping[Key, tuple[ErrorCode, int]]], None],
        lock: LockLike | None = None,
        on_append: Callable[[], None] = lambda: None,
    ) -> None:
        """Append to each partition. When ``acks`` is met, respond with a code and a first offset for each.

        ``on_append`` is called after each partition's append, before any response.
        """
        results: dict[Key, tuple[ErrorCode, int]] = {}
        parts: list[Produced] = []
        appended: list[Partition] = []
        for key, data in entries.items():
            try:
                partition = self.replica(key)
                first, required = partition.append(data, acks=acks)
            except BrokerError as error:
                results[key] = (error.code, -1)
                _log.debug("append rejected", key=key, reason=str(error))
                self.check_disk()
            else:
                results[key] = (ErrorCode.NONE, first)
                on_append()
                appended.append(partition)
                if acks == ACKS_ALL:
                    parts.append(Produced(partition, first, required))
        if appended:
            self.changed(*appended)
        if not parts:
            respond(results)
            return

        def settled() -> None:
            for part in parts:
                ok = part.code is ErrorCode.NONE
                results[part.partition.key] = (part.code, part.first_offset if ok else -1)
            respond(results)

        operation = DelayedProduce(timeout_ms, parts, settled, lock=lock)
        park(self.produces, operation, [part.partition.key for part in parts])

    def delete_records(
        self,
        offsets: Mapping[Key, int],
        *,
        timeout_ms: int,
        respond: Callable[[Mapping[Key, tuple[ErrorCode, int]]], None],
    ) -> None:
        """Delete below the offsets. When all live replicas have, respond with a code and a low watermark for each."""
        results: dict[Key, tuple[ErrorCode, int]] = {}
        deletions: list[Deletion] = []
        for key, offset in offsets.items():
            try:
                check_not_internal(key[0])
                partition = self.leader(key)
                deletions.append(Deletion(partition, partition.delete_before(offset)))
                self.changed(partition)
            except BrokerError as error:
                results[key] = (error.code, -1)
        if not deletions:
            respond(results)
            return
        self.checkpoint()

        def settled() -> None:
            results.update({d.partition.key: (d.code, d.low_watermark) for d in deletions})
            respond(results)

        operation = DelayedDeleteRecords(timeout_ms, deletions, self.metadata.brokers, settled)
        park(self.deletions, operation, [deletion.partition.key for deletion in deletions])

    # -- events

    def _follower_moved(self, moves: Mapping[Partition, bool]) -> None:
        moved = [partition for partition, has_moved in moves.items() if has_moved]
        if moved:
            self.changed(*moved)
        for partition in moves:
            self._propose(partition)

    def _propose(self, partition: Partition) -> None:
        if partition.is_leader and partition.wanted_isr is not None:
            self.propose_isr(partition, partition.wanted_isr)

    def adapt_isrs(self) -> None:
        """Propose ISRs without lagging replicas, and with those that could not join at once."""
        now = time.monotonic()
        for partition in self.partitions.values():
            partition.adapt_isr(now, self.settings.lag_ms / 1_000)
            self._propose(partition)

    def changed(self, *partitions: Partition) -> None:
        """Queue a check of the operations that wait for the partitions. It runs after the handler's answer."""
        self.actions.add(self._check, [partition.key for partition in partitions])

    def _check(self, keys: list[Key]) -> None:
        self.produces.check_and_complete_all(keys)
        self.fetches.check(keys)
        self.deletions.check_and_complete_all(keys)

    # -- housekeeping

    def retain(self) -> None:
        """Delete expired records where this node leads. Elsewhere adopt the leader's log start, if that had to wait."""
        now = time.time() * 1_000
        for partition in self.partitions.values():
            if not partition.is_leader:
                partition.adopt_start()
            else:
                offset = partition.log.expired_before(partition.high_watermark, now)
                if offset > partition.log.start_offset:
                    _log.info("records expired", key=partition.key, before=offset)
                    partition.delete_before(offset)
                    self.changed(partition)

    def checkpoint(self) -> None:
        """Write the checkpoint at once."""
        self.store.save_checkpoint(self._positions())

    async def checkpoint_beside(self) -> None:
        """Write the checkpoint on another thread."""
        await self.store.save_checkpoint_beside(self._positions())

    def _positions(self) -> dict[str, list[int]]:
        return {
            f"{topic}-{index}": [partition.log.start_offset, partition.high_watermark, *partition.log.epochs.last]
            for (topic, index), partition in self.partitions.items()
        }

    def check_disk(self) -> None:
        """Call ``on_disk`` when the disk's state has changed, and probe a disk that failed.

        What the probe finds is reported by the next call. Otherwise a failure could be over before it was reported.
        """
        disk = self.store.disk
        if disk.is_failing != self._disk_was_failing:
            self._disk_was_failing = disk.is_failing
            self.on_disk(disk.is_failing)
        disk.probe()

    def sync(self) -> None:
        """Force the checkpoint and appended records to the disk. May be called from another thread."""
        self.store.sync()  # first: an old start offset would hide the records of a new log
        for partition in list(self.partitions.values()):
            try:
                partition.log.sync()
            except OSError as error:
                if not partition.is_deleted:
                    self.store.disk.failed(error)

    def shut_down(self) -> None:
        for purgatory in (self.produces, self.fetches.purgatory, self.deletions):
            purgatory.shutdown("expire")

    def close(self) -> None:
        self.checkpoint()
        self.store.sync()
        self.folders.close()
