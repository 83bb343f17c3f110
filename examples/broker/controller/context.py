"""The active controller's copy of the tree.

It is loaded when a node becomes the controller, updated by the controller's events, and dropped at the end of the term.
Used on the controller's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.replication.leadership import Leadership
    from examples.broker.replication.partition import Key

Replica = tuple["Key", int]
"""A partition and a node that has it."""


@attrs.define(eq=False)
class Wait:
    """The wait for more in-sync replicas of some partition, after a crash of all."""

    is_over: bool = False


@attrs.define
class Context:
    epoch: int = 0
    """The epoch of this controller. Every request and every write carries it."""
    epoch_version: int = 0
    """The version of the tree node that holds the epoch. It changes when another controller is elected."""
    brokers: dict[int, BrokerInfo] = attrs.field(factory=dict)
    offline: set[int] = attrs.field(factory=set)
    """Nodes that are about to stop, or with a disk that rejects writes."""
    assignments: dict[str, dict[int, tuple[int, ...]]] = attrs.field(factory=dict)
    leaderships: dict[Key, Leadership] = attrs.field(factory=dict)
    configs: dict[str, dict[str, str]] = attrs.field(factory=dict)
    deletions: set[str] = attrs.field(factory=set)
    """Topics that are being deleted."""
    awaited: dict[Key, Wait] = attrs.field(factory=dict)
    """Partitions that wait for more of their in-sync replicas after a crash of all. At least one is back."""
    reassignments: dict[Key, tuple[int, ...]] = attrs.field(factory=dict)
    """The targets of partitions that are being moved."""

    @property
    def alive(self) -> set[int]:
        """The nodes that can lead."""
        return self.brokers.keys() - self.offline

    def replicas_of(self, key: Key) -> tuple[int, ...]:
        """Return the nodes of a partition, the preferred leader first, or an empty tuple."""
        return self.assignments.get(key[0], {}).get(key[1], ())

    def partitions_of(self, topic: str) -> list[Key]:
        return [(topic, index) for index in self.assignments.get(topic, {})]

    def partitions(self) -> Iterator[Key]:
        for topic, assignment in self.assignments.items():
            for index in assignment:
                yield topic, index

    def replicas(self) -> Iterator[Replica]:
        """Return all replicas, except those of topics that are being deleted."""
        for key in self.partitions():
            if key[0] not in self.deletions:
                for node in self.replicas_of(key):
                    yield key, node

    def has_leader(self, key: Key) -> bool:
        """Whether the partition's leader is registered."""
        known = self.leaderships.get(key)
        return known is not None and known.leader in self.brokers

    def may_elect_unclean(self, topic: str) -> bool:
        """Whether the topic's settings prefer availability to acknowledged records."""
        return self.configs.get(topic, {}).get("unclean.leader.election.enable", "false") == "true"

    def forget_partition(self, key: Key) -> None:
        """Forget a partition that was deleted."""
        self.leaderships.pop(key, None)
        self.reassignments.pop(key, None)
        self.awaited.pop(key, None)

    def forget_topic(self, topic: str) -> None:
        for key in self.partitions_of(topic):
            self.forget_partition(key)
        self.assignments.pop(topic, None)
        self.configs.pop(topic, None)
        self.deletions.discard(topic)
