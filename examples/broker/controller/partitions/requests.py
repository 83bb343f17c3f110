"""The controller's requests to the other nodes, gathered during one event and sent at its end.

An event changes partitions one by one. Each change notes the nodes that it concerns. At the end of the event, a node
gets its changes in this order: LeaderAndIsr, UpdateMetadata, StopReplica. So a node knows that it leads before clients
do, and it stops a replica last. A request names at most 1,000 partitions, so that no node is busy with one for long.

If the event fails, ``discard`` drops the requests. The controller sends the tree's state when it next reads it. Used on
the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from examples.broker.protocol.messages.controller import (
    LeaderAndIsrRequest,
    LiveBroker,
    PartitionState,
    StopReplicaRequest,
    TopicPartition,
    UpdateMetadataRequest,
)
from examples.broker.replication.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from examples.broker.controller.context import Context
    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.replication.partition import Key

Message = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

BEING_DELETED = -2
"""In place of a leader's id: the partition is being deleted."""
_MOST_AT_ONCE = 1_000


class Channel(Protocol):
    """Sends messages to the other nodes."""

    def set_addresses(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Set the addresses. Messages that are queued for other nodes are dropped."""

    def send(self, node: int, message: Message) -> None:
        """Send after all earlier messages to the node. The answer becomes an event."""


class Requests:
    def __init__(self, node_id: int, context: Context, channel: Channel) -> None:
        self._node_id = node_id
        self._context = context
        self._channel = channel
        self._leaders: dict[int, set[Key]] = {}
        self._stops: dict[tuple[int, bool], set[Key]] = {}
        self._metadata: set[Key] = set()
        self._metadata_for: set[int] = set()

    def leader_and_isr(self, nodes: Iterable[int], key: Key) -> None:
        """Send a partition's leader to these nodes, if they are alive, and its metadata to all nodes."""
        for node in nodes:
            if node in self._context.brokers and key in self._context.leaderships:
                self._leaders.setdefault(node, set()).add(key)
        self.metadata([key])

    def stop_replica(self, node: int, key: Key, *, delete: bool) -> None:
        """Ask a node to stop a replica, and perhaps to delete its records."""
        if node in self._context.brokers:
            self._stops.setdefault((node, delete), set()).add(key)

    def metadata(self, keys: Iterable[Key] = (), *, nodes: Iterable[int] | None = None) -> None:
        """Send nodes (by default all) the live nodes, and the state of these partitions."""
        self._metadata.update(keys)
        self._metadata_for.update(self._context.brokers if nodes is None else nodes)

    def discard(self) -> None:
        for gathered in (self._leaders, self._stops, self._metadata, self._metadata_for):
            gathered.clear()

    def send(self) -> None:
        context = self._context
        head = (self._node_id, context.epoch)
        live = [
            LiveBroker(node, info.host, info.port, node not in context.alive)
            for node, info in sorted(context.brokers.items())
        ]
        self._channel.set_addresses(context.brokers)
        for node, keys in sorted(self._leaders.items()):
            for piece in _pieces(keys):
                incarnation = context.brokers[node].incarnation
                self._channel.send(node, LeaderAndIsrRequest(*head, self._states(piece), live, incarnation))
        pieces = _pieces(self._metadata) or [[]]
        for number, piece in enumerate(pieces, 1):
            update = UpdateMetadataRequest(*head, self._states(piece), live, number == len(pieces))
            for node in sorted(self._metadata_for & context.brokers.keys()):
                self._channel.send(node, update)
        for (node, delete), keys in sorted(self._stops.items()):
            for piece in _pieces(keys):
                stopped = [TopicPartition(*key) for key in piece]
                self._channel.send(node, StopReplicaRequest(*head, delete, stopped))
        self.discard()

    def _states(self, keys: Iterable[Key]) -> list[PartitionState]:
        found = []
        for key in keys:
            known = self._context.leaderships.get(key)
            if key[0] in self._context.deletions:
                known = Leadership(BEING_DELETED, 0 if known is None else known.leader_epoch, ())
            if known is not None:
                found.append(
                    PartitionState(
                        *key,
                        known.leader,
                        known.leader_epoch,
                        list(known.isr),
                        known.version,
                        list(self._context.replicas_of(key)),
                    )
                )
        return found


def _pieces(keys: Iterable[Key]) -> list[list[Key]]:
    ordered = sorted(keys)
    return [ordered[start : start + _MOST_AT_ONCE] for start in range(0, len(ordered), _MOST_AT_ONCE)]
