"""What the active controller knows: a copy of the tree, and where each partition and replica stands.

Loaded when a node becomes the controller, kept up by its events, thrown away when it is no longer. Belongs to the
controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.controller.partitions.states import PartitionState, ReplicaState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.replication.leadership import Leadership
    from examples.broker.replication.partition import Key

Replica = tuple["Key", int]
"""A partition and a node that has it."""


@attrs.define
class Context:
    """The controller's memory."""

    epoch: int = 0
    """Of this controller; every request and every write carries it."""
    epoch_version: int = 0
    """Of the node that holds the epoch: while it has this version, nobody was elected since."""
    brokers: dict[int, BrokerInfo] = attrs.field(factory=dict)
    leaving: set[int] = attrs.field(factory=set)
    """Nodes that said that they are about to stop."""
    offline: set[int] = attrs.field(factory=set)
    """Nodes whose disk rejects writes."""
    assignments: dict[str, dict[int, tuple[int, ...]]] = attrs.field(factory=dict)
    leaderships: dict[Key, Leadership] = attrs.field(factory=dict)
    partition_states: dict[Key, PartitionState] = attrs.field(factory=dict)
    replica_states: dict[Replica, ReplicaState] = attrs.field(factory=dict)
    configs: dict[str, dict[str, str]] = attrs.field(factory=dict)
    deletions: set[str] = attrs.field(factory=set)
    """Topics that are to be deleted, until nothing of them is left."""
    awaited: dict[Key, bool] = attrs.field(factory=dict)
    """Partitions whose in-sync replicas are waited for after a crash of all, and whether that was long enough."""
    reassignments: dict[Key, tuple[int, ...]] = attrs.field(factory=dict)
    """Where partitions are on their way to."""

    @property
    def alive(self) -> set[int]:
        """The nodes that can lead: alive, not about to stop, and with a disk that takes writes."""
        return self.brokers.keys() - self.leaving - self.offline

    def replicas_of(self, key: Key) -> tuple[int, ...]:
        """Give the nodes of a partition, the preferred leader first; none if there is no such partition."""
        return self.assignments.get(key[0], {}).get(key[1], ())

    def partitions_of(self, topic: str) -> list[Key]:
        """Give a topic's partitions."""
        return [(topic, index) for index in self.assignments.get(topic, {})]

    def partitions(self) -> Iterator[Key]:
        """Give all partitions."""
        for topic, assignment in self.assignments.items():
            for index in assignment:
                yield topic, index

    def replicas_on(self, nodes: Iterable[int]) -> list[Replica]:
        """Give all replicas that these nodes have."""
        wanted = set(nodes)
        return [(key, node) for key in self.partitions() for node in self.replicas_of(key) if node in wanted]

    def replicas_of_topic(self, topic: str) -> list[Replica]:
        """Give all replicas of a topic."""
        return [(key, node) for key in self.partitions_of(topic) for node in self.replicas_of(key)]

    def partition_state(self, key: Key) -> PartitionState:
        """Give where a partition stands."""
        return self.partition_states.get(key, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: Replica) -> ReplicaState:
        """Give where a replica stands."""
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def has_leader(self, key: Key) -> bool:
        """Whether the partition's leader is alive, as far as is known."""
        known = self.leaderships.get(key)
        return known is not None and known.leader in self.brokers

    def may_elect_unclean(self, topic: str) -> bool:
        """Whether the topic prefers going on to losing nothing."""
        return self.configs.get(topic, {}).get("unclean.leader.election.enable", "false") == "true"

    def forget_partition(self, key: Key) -> None:
        """Forget all of a partition that was deleted."""
        for node in self.replicas_of(key):
            self.replica_states.pop((key, node), None)
        self.partition_states.pop(key, None)
        self.leaderships.pop(key, None)
        self.reassignments.pop(key, None)
        self.awaited.pop(key, None)

    def forget_topic(self, topic: str) -> None:
        """Forget all of a topic that was deleted."""
        for key in self.partitions_of(topic):
            self.forget_partition(key)
        self.assignments.pop(topic, None)
        self.configs.pop(topic, None)
        self.deletions.discard(topic)
