"""What several tests of the broker example need."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import google_crc32c
import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import build, parse
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.storage.log import Log
from examples.broker.storage.topics import Topic

T = TypeVar("T")


@contextlib.contextmanager
def rejected(code: ErrorCode) -> Iterator[None]:
    """The block raises a ``BrokerError`` with this code."""
    with pytest.raises(BrokerError) as caught:
        yield
    assert code is caught.value.code


def outcome(call: Callable[..., T], *arguments: Any, **more: Any) -> T | ErrorCode:
    """Return what a call returns, or the code of its ``BrokerError``."""
    try:
        return call(*arguments, **more)
    except BrokerError as error:
        return error.code


def batch_of(*values: bytes, timestamp: int = 1, **header: Any) -> bytes:
    """Return a batch of records with these values and no keys."""
    return build([(None, value) for value in values], timestamps=[timestamp] * len(values), **header)


def with_attributes(data: bytes, attributes: int) -> bytes:
    """Return a batch with these attributes and a valid checksum. The records stay as they are."""
    checked = data[:21] + attributes.to_bytes(2, "big", signed=True) + data[23:]
    checksum: int = google_crc32c.value(checked[21:])
    return data[:17] + checksum.to_bytes(4, "big") + checked[21:]


def append(log: Log, *values: bytes, **header: Any) -> int:
    """Append a batch to the log of a leader. Return the offset of its first record."""
    data = batch_of(*values, **header)
    return log.append(data, parse(data))


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
