"""What a node knows of the cluster: which nodes live, and who leads what, as it tells any client that asks.

In a cluster the controller keeps it up to date, with every node's in every respect the same; a node alone makes it up
from its own topics. What a client does with an answer that is out of date is refused by whoever led until then.

Belongs to the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.replication.leadership import NO_LEADER, Leadership

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from examples.broker.replication.partition import Key


@attrs.frozen
class KnownPartition:
    """One partition, as far as clients need to know."""

    leadership: Leadership
    replicas: tuple[int, ...]


class Metadata:
    """Nodes and partitions."""

    def __init__(self, brokers: Mapping[int, tuple[str, int]]) -> None:
        self.brokers: dict[int, tuple[str, int]] = dict(brokers)
        """Where each living node listens.

        A node that is about to stop is among them until it is gone: a client that was told at once that the node is
        no more, and who leads in its place, may take the partitions from the new leader again as it forgets the node,
        and wait for a second until it asks anew (librdkafka 2.16 does).
        """
        self.staying: set[int] = set(brokers)
        """Those that aren't about to stop: nothing new is given to the others."""
        self.topics: dict[str, dict[int, KnownPartition]] = {}

    def know(self, brokers: Mapping[int, tuple[str, int]], leaving: Collection[int] = ()) -> None:
        """Take over which nodes live, and which of them are about to stop."""
        self.brokers.clear()
        self.brokers.update(brokers)
        self.staying.clear()
        self.staying.update(brokers.keys() - leaving)

    def learn(self, key: Key, known: KnownPartition) -> None:
        """Take over how a partition stands."""
        self.topics.setdefault(key[0], {})[key[1]] = known

    def forget(self, key: Key) -> None:
        """Forget a partition, and its topic with the last one."""
        partitions = self.topics.get(key[0], {})
        partitions.pop(key[1], None)
        if not partitions:
            self.topics.pop(key[0], None)

    def of(self, key: Key) -> KnownPartition | None:
        """Give what is known of a partition."""
        return self.topics.get(key[0], {}).get(key[1])

    def leader_of(self, key: Key) -> int:
        """Give who leads a partition, if that node lives; else `NO_LEADER`."""
        known = self.of(key)
        if known is None or known.leadership.leader not in self.brokers:
            return NO_LEADER
        return known.leadership.leader

    def have_leaders(self, keys: Iterable[Key]) -> bool:
        """Whether every one of these partitions has a living leader."""
        return all(self.leader_of(key) != NO_LEADER for key in keys)
