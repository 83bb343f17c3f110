"""A node's knowledge of the cluster: the live nodes, and the leader of every partition.

The controller sends it. It may be out of date: then the former leader rejects the client's request.

Used on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.replication.leadership import NO_LEADER, Leadership

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from examples.broker.replication.partition import Key

CLUSTER_ID = "purgatory-broker"


@attrs.frozen
class KnownPartition:
    leadership: Leadership
    replicas: tuple[int, ...]


class Metadata:
    def __init__(self, brokers: Mapping[int, tuple[str, int]]) -> None:
        self.brokers: dict[int, tuple[str, int]] = dict(brokers)
        """The address of each live node.

        A node that is about to stop stays in the list until it is gone. If it left the list at once, librdkafka 2.16
        would forget the node after it has learned the new leaders, take the partitions from the new leader again, and
        wait for a second until its next metadata request.
        """
        self.online: set[int] = set(brokers)
        """The live nodes that can lead: not about to stop, and with a disk that accepts writes."""
        self.topics: dict[str, dict[int, KnownPartition]] = {}

    def set_live_nodes(self, brokers: Mapping[int, tuple[str, int]], offline: Collection[int] = ()) -> None:
        """Set the live nodes, and those of them that cannot lead."""
        self.brokers.clear()
        self.brokers.update(brokers)
        self.online.clear()
        self.online.update(brokers.keys() - offline)

    def learn(self, key: Key, known: KnownPartition) -> None:
        self.topics.setdefault(key[0], {})[key[1]] = known

    def forget(self, key: Key) -> None:
        """Forget a partition, and the topic after its last partition."""
        partitions = self.topics.get(key[0], {})
        partitions.pop(key[1], None)
        if not partitions:
            self.topics.pop(key[0], None)

    def leader_of(self, key: Key) -> int:
        """Return the leader of a partition if that node is alive, otherwise ``NO_LEADER``."""
        known = self.topics.get(key[0], {}).get(key[1])
        if known is None or known.leadership.leader not in self.brokers:
            return NO_LEADER
        return known.leadership.leader

    def have_leaders(self, keys: Iterable[Key]) -> bool:
        """Whether every one of these partitions has a live leader."""
        return all(self.leader_of(key) != NO_LEADER for key in keys)
