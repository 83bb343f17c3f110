"""What several tests of the broker example need."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.storage.topics import Topic


@contextlib.contextmanager
def rejected(code: ErrorCode) -> Iterator[None]:
    """The block raises a ``BrokerError`` with this code."""
    with pytest.raises(BrokerError) as caught:
        yield
    assert code is caught.value.code


def lead(manager: ReplicaManager, name: str, partitions: int = 1, **topic: Any) -> None:
    """Have a node know a topic, and lead all of its partitions."""
    nodes = tuple(manager.cluster.nodes)
    manager.store.topics[name] = Topic(name, partitions, nodes, **topic)
    for index in range(partitions):
        manager.lead_or_follow((name, index), Leadership(manager.cluster.node_id, 0, nodes), nodes)


def delete(manager: ReplicaManager, name: str) -> None:
    """Have a node remove the replicas of a topic, and forget it."""
    for index in range(manager.store.topics.pop(name).partitions):
        manager.delete_replica((name, index))
