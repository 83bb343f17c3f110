"""All partitions of this node, and the three purgatories of what waits for them.

A change to a partition doesn't check the purgatories on the spot: the checks go into the action queue,
which the connection runs after it has written the handler's own answer. A producer whose append wakes a
thousand parked fetches hence has its acknowledgement before the first of them is answered.

Belongs to the broker's loop.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from examples.broker.config import LEADER, Config
from examples.broker.delayed_delete_records import DelayedDeleteRecords, Deletion
from examples.broker.delayed_fetch import DelayedFetch, Wanted
from examples.broker.delayed_produce import DelayedProduce, Produced
from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.log import Log
from examples.broker.partition import ACKS_ALL, Key, Partition
from examples.broker.topics import Topic, TopicStore, check_name
from purgatory import ActionQueue, DelayedOperation, DelayedOperationPurgatory, PurgatoryFull

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from purgatory import LockLike
    from timer import Timer

__all__ = ["ReplicaManager"]

Op = TypeVar("Op", bound=DelayedOperation)
_log = structlog.get_logger(__name__)
_MOST_PARTITIONS = 1_000


class ReplicaManager:
    """Appends to, reads from and deletes from partitions, at once or when the time has come."""

    def __init__(self, config: Config, store: TopicStore, timer: Timer, actions: ActionQueue) -> None:
        self.config = config
        self.store = store
        self.actions = actions
        self.partitions: dict[Key, Partition] = {}

        def purgatory(name: str, purge_interval: int = 1_000) -> DelayedOperationPurgatory[Any]:
            return DelayedOperationPurgatory(
                name,
                timer=timer,
                broker_id=config.node_id,
                purge_interval=purge_interval,
                max_parked=config.max_parked,
            )

        self.produces: DelayedOperationPurgatory[DelayedProduce] = purgatory("produce")
        self.fetches: DelayedOperationPurgatory[DelayedFetch] = purgatory("fetch")
        self.deletions: DelayedOperationPurgatory[DelayedDeleteRecords] = purgatory("delete_records", 1)
        for topic in store.topics.values():
            self._open(topic)

    # -- topics

    def create_topic(
        self, name: str, *, partitions: int, replicas: int | None = None, min_isr: int | None = None
    ) -> Topic:
        """Create a topic with its logs.

        Raises:
            BrokerError: if there is such a topic, or a value can't be.
        """
        check_name(name)
        nodes = self.config.nodes
        replicas = len(nodes) if replicas is None else replicas
        if name in self.store.topics:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"there is a topic {name!r}")
        if not 1 <= partitions <= _MOST_PARTITIONS:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, f"1 to {_MOST_PARTITIONS}, got {partitions}")
        if not 1 <= replicas <= len(nodes):
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, f"there are {len(nodes)} nodes")
        min_isr = min(self.config.min_isr, replicas) if min_isr is None else min_isr
        if not 1 <= min_isr <= replicas:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"min.insync.replicas {min_isr} of {replicas}")
        topic = Topic(name, partitions, nodes[:replicas], min_isr)
        self.add_topic(topic)
        return topic

    def add_topic(self, topic: Topic) -> None:
        """Take on a topic that this node was told to have."""
        for index in range(topic.partitions):
            # Whatever a topic of this name may have left behind when it was deleted, this is a new one.
            shutil.rmtree(self.config.data / f"{topic.name}-{index}", ignore_errors=True)
        self.store.add(topic)
        self._open(topic, is_new=True)
        _log.info("topic created", topic=topic.name, partitions=topic.partitions, replicas=topic.replicas)

    def _open(self, topic: Topic, *, is_new: bool = False) -> None:
        if self.config.node_id not in topic.replicas:
            return
        for index in range(topic.partitions):
            folder = f"{topic.name}-{index}"
            start, high_watermark = (0, 0) if is_new else self.store.checkpoint_of(folder)
            log = Log(
                self.config.data / folder,
                segment_bytes=self.config.segment_bytes,
                fsync=self.config.fsync,
                start_offset=start,
            )
            self.partitions[topic.name, index] = Partition(
                (topic.name, index),
                log,
                node_id=self.config.node_id,
                leader_id=LEADER,
                replicas=topic.replicas,
                min_isr=topic.min_isr,
                high_watermark=high_watermark,
                now=time.monotonic(),
            )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its logs; whoever waits for it is told.

        Raises:
            BrokerError: if there is no such topic.
        """
        topic = self.store.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.store.remove(name)
        for index in range(topic.partitions):
            partition = self.partitions.pop((name, index), None)
            if partition is not None:
                partition.is_deleted = True
                partition.is_leader = False
                self.changed(partition)
                partition.log.delete()
                shutil.rmtree(partition.log.folder, ignore_errors=True)
        self.checkpoint()
        _log.info("topic deleted", topic=name)

    def leader(self, key: Key) -> Partition:
        """Give the partition if this node leads it.

        Raises:
            BrokerError: if there is none, or another node leads.
        """
        partition = self.partitions.get(key)
        if partition is None:
            known = key[0] in self.store.topics and 0 <= key[1] < self.store.topics[key[0]].partitions
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
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
    ) -> None:
        """Append to each partition; answer with a code and first offset for each when `acks` is met."""
        results: dict[Key, tuple[ErrorCode, int]] = {}
        parts: list[Produced] = []
        for key, data in entries.items():
            try:
                partition = self.leader(key)
                first, required = partition.append(data, acks=acks, max_batch_bytes=self.config.max_batch_bytes)
            except BrokerError as error:
                results[key] = (error.code, -1)
                _log.debug("append refused", key=key, reason=str(error))
            else:
                results[key] = (ErrorCode.NONE, first)
                parts.append(Produced(partition, first, required))
                self.changed(partition)
        if acks != ACKS_ALL or not parts:
            respond(results)
            return

        def settled() -> None:
            for part in parts:
                ok = part.code is ErrorCode.NONE
                results[part.partition.key] = (part.code, part.first_offset if ok else -1)
            respond(results)

        operation = DelayedProduce(timeout_ms, parts, settled, lock=lock)
        self._park(self.produces, operation, [part.partition.key for part in parts])

    def fetch(
        self,
        wanted: Sequence[Wanted],
        *,
        max_wait_ms: int,
        min_bytes: int,
        by_follower: bool,
        respond: Callable[[], None],
    ) -> DelayedFetch | None:
        """Call `respond` when there is enough to read; give the operation if it was parked."""
        operation = DelayedFetch(
            min(max_wait_ms, self.config.max_wait_ms),
            wanted,
            min_bytes,
            by_follower=by_follower,
            respond=respond,
        )
        parked = self._park(self.fetches, operation, [want.partition.key for want in wanted])
        return operation if parked else None

    def delete_records(
        self,
        offsets: Mapping[Key, int],
        *,
        timeout_ms: int,
        respond: Callable[[Mapping[Key, tuple[ErrorCode, int]]], None],
    ) -> None:
        """Delete below the offsets; answer with a code and low watermark for each when all replicas did."""
        results: dict[Key, tuple[ErrorCode, int]] = {}
        deletions: list[Deletion] = []
        for key, offset in offsets.items():
            try:
                partition = self.leader(key)
                deletions.append(Deletion(partition, partition.delete_before(offset)))
                self.changed(partition)
            except BrokerError as error:
                results[key] = (error.code, -1)
        if not deletions:
            respond(results)
            return
        self.checkpoint(durably=True)

        def settled() -> None:
            results.update({d.partition.key: (d.code, d.low_watermark) for d in deletions})
            respond(results)

        self._park(
            self.deletions,
            DelayedDeleteRecords(timeout_ms, deletions, settled),
            [d.partition.key for d in deletions],
        )

    def _park(self, purgatory: DelayedOperationPurgatory[Op], operation: Op, keys: list[Key]) -> bool:
        """Park an operation if it can't complete at once; without room it is answered as if expired."""
        try:
            purgatory.try_complete_else_watch(operation, keys)
        except PurgatoryFull as error:
            _log.warning("no room to park", purgatory=purgatory.name, reason=str(error))
            operation.force_complete()
        return not operation.is_completed

    # -- events

    def follower_fetches(self, node: int, partition: Partition, offset: int, log_start: int) -> None:
        """Take note of a follower's fetch.

        Raises:
            BrokerError: if the node has no replica of the partition.
        """
        was_in = node in partition.isr
        if partition.follower_fetches(node, offset, log_start, time.monotonic()):
            self.changed(partition)
        if not was_in and node in partition.isr:
            _log.info("isr grown", key=partition.key, node=node, isr=sorted(partition.isr))

    def shrink_isrs(self) -> None:
        """Take out of the ISRs who lags for too long."""
        now = time.monotonic()
        for partition in self.partitions.values():
            gone = partition.shrink_isr(now, self.config.replica_lag_ms / 1_000)
            if gone:
                _log.info("isr shrunk", key=partition.key, gone=sorted(gone), isr=sorted(partition.isr))
                self.changed(partition)

    def changed(self, partition: Partition) -> None:
        """Have everything that waits for the partition checked, after the current handler's answer."""
        self.actions.add(self._check, partition.key)

    def _check(self, key: Key) -> None:
        self.produces.check_and_complete(key)
        self.fetches.check_and_complete(key)
        self.deletions.check_and_complete(key)

    # -- housekeeping

    def checkpoint(self, *, durably: bool = False) -> None:
        """Write down how far each partition is."""
        self.store.save_checkpoint(
            {
                f"{topic}-{index}": [partition.log.start_offset, partition.high_watermark]
                for (topic, index), partition in self.partitions.items()
            },
            durably=durably,
        )

    def sync(self) -> None:
        """Force what was appended to the disk; may be called from another thread."""
        for partition in list(self.partitions.values()):
            try:
                partition.log.sync()
            except OSError as error:
                if not partition.is_deleted:
                    _log.warning("fsync failed", key=partition.key, error=str(error))

    def shut_down(self) -> None:
        """Answer what waits."""
        for purgatory in (self.produces, self.fetches, self.deletions):
            purgatory.shutdown("expire")

    def close(self) -> None:
        """Close the logs."""
        self.checkpoint(durably=True)
        for partition in self.partitions.values():
            partition.log.close()
