"""What is where in the tree, and how it is written: the nodes that Apache Kafka used, as JSON.

    /controller                            ephemeral; who is the controller
    /controller_epoch                      how many controllers there were
    /cluster_secret                        what nodes prove to each other with that they are nodes
    /brokers/ids/2                         ephemeral; where node 2 listens, which start of its process it is, and where
                                           its logs ended then
    /brokers/known                         whose starts the controller has dealt with
    /brokers/offline/2                     ephemeral; the disk of node 2 rejects writes: it cannot lead or follow
    /brokers/topics/orders                 which nodes have which partition, the preferred leader first; the topic's id
    /brokers/topics/orders/partitions/0/state      leader, leader epoch, in-sync replicas, and those that are gone;
                                           changed by version only
    /config/topics/orders                  the topic's settings
    /config/changes                        set with every change of a setting, so that one watch hears of all
    /isr_change_notification/3-17          a leader changed in-sync replicas; the controller reads and removes it
    /admin/delete_topics/orders            asked to be deleted
    /admin/reassign_partitions             asked to be elsewhere
    /admin/preferred_replica_election      asked to be led by their preferred leaders

Decoding trusts nothing, since anybody may write there with a tool: what doesn't make sense is a `ValueError`.

Pure functions.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import attrs

from examples.broker.coordination import NodeExists, Store
from examples.broker.coordination.store import Create
from examples.broker.replication.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examples.broker.replication.partition import Key

CONTROLLER = "/controller"
EPOCH = "/controller_epoch"
SECRET = "/cluster_secret"  # noqa: S105 - a path
IDS = "/brokers/ids"
KNOWN = "/brokers/known"
OFFLINE = "/brokers/offline"
TOPICS = "/brokers/topics"
ISR_CHANGES = "/isr_change_notification"
DELETIONS = "/admin/delete_topics"
REASSIGNMENTS = "/admin/reassign_partitions"
PREFERRED = "/admin/preferred_replica_election"
CONFIGS = "/config/topics"
CONFIG_CHANGES = "/config/changes"
_ROOTS = ("/brokers", IDS, KNOWN, OFFLINE, TOPICS, ISR_CHANGES, "/admin", DELETIONS, "/config", CONFIGS, CONFIG_CHANGES)


def make_roots(store: Store) -> None:
    """Create what all else is created under, where it isn't there."""
    contents = {EPOCH: b"0", SECRET: secrets.token_hex(32).encode()}
    for path in (*_ROOTS, *contents):
        try:
            store.multi([Create(path, contents.get(path, b""))])
        except NodeExists:
            continue


def secret_of(store: Store) -> bytes:
    """Read the cluster's secret."""
    return store.get(SECRET).data


def topic_path(topic: str) -> str:
    """Give where a topic's assignment is."""
    return f"{TOPICS}/{topic}"


def partition_path(key: Key) -> str:
    """Give the node that a partition's state is under."""
    return f"{TOPICS}/{key[0]}/partitions/{key[1]}"


def state_path(key: Key) -> str:
    """Give where a partition's leadership is.

    >>> state_path(("orders", 0))
    '/brokers/topics/orders/partitions/0/state'
    """
    return f"{partition_path(key)}/state"


def config_path(topic: str) -> str:
    """Give where a topic's settings are."""
    return f"{CONFIGS}/{topic}"


@attrs.frozen
class BrokerInfo:
    """A node that is alive: where it listens, which start of its process this is, and where its logs ended then.

    The ends are by folder, such as `orders-0`: the leader epoch of the last batch, and the next offset.
    """

    node_id: int
    host: str
    port: int
    incarnation: str = ""
    ends: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, hash=False)

    def end_of(self, key: Key) -> tuple[int, int]:
        """Give where the log of a partition ended when the node was started."""
        return self.ends.get(f"{key[0]}-{key[1]}", (-1, 0))

    def write(self) -> bytes:
        """Encode."""
        return _encode(
            host=self.host, port=self.port, incarnation=self.incarnation, ends=dict(self.ends), timestamp=_now()
        )

    @classmethod
    def read(cls, node_id: int, data: bytes) -> BrokerInfo:
        """Decode.

        Raises:
            ValueError: if it makes no sense.
        """
        content = _decode(data)
        ends = {str(name): (int(epoch), int(end)) for name, (epoch, end) in content.get("ends", {}).items()}
        return cls(node_id, str(content["host"]), int(content["port"]), str(content.get("incarnation", "")), ends)


def write_known(brokers: Mapping[int, BrokerInfo]) -> bytes:
    """Encode which start of each node the controller has dealt with."""
    return _encode(brokers={str(node): info.incarnation for node, info in brokers.items()})


def known_of(data: bytes) -> dict[int, str]:
    """Decode which start of each node a controller has dealt with.

    Raises:
        ValueError: if it makes no sense.
    """
    return {int(node): str(incarnation) for node, incarnation in _decode(data)["brokers"].items()}


def write_controller(node: int) -> bytes:
    """Encode who is the controller."""
    return _encode(brokerid=node, timestamp=_now())


def controller_of(data: bytes) -> int:
    """Decode who is the controller.

    Raises:
        ValueError: if it makes no sense.
    """
    return int(_decode(data)["brokerid"])


def write_assignment(assignment: Mapping[int, Sequence[int]], topic_id: str = "") -> bytes:
    """Encode which nodes have which partition of a topic, and what tells it from others of its name."""
    partitions = {str(index): list(nodes) for index, nodes in assignment.items()}
    return _encode(partitions=partitions, **({"topic_id": topic_id} if topic_id else {}))


def topic_id_of(data: bytes) -> str:
    """Decode what tells a topic from others of its name; empty if a tool wrote it that knows of no such thing."""
    return str(_decode(data).get("topic_id", ""))


def assignment_of(data: bytes) -> dict[int, tuple[int, ...]]:
    """Decode which nodes have which partition of a topic.

    Raises:
        ValueError: if it makes no sense.
    """
    content = _decode(data)["partitions"]
    if not isinstance(content, dict):
        raise ValueError(f"partitions by number are wanted, got {content!r}")  # noqa: TRY004 - one kind of error here
    return {int(index): _nodes(nodes) for index, nodes in content.items()}


def write_state(state: Leadership) -> bytes:
    """Encode a partition's leadership."""
    return _encode(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        gone=list(state.gone),
        controller_epoch=state.controller_epoch,
    )


def state_of(data: bytes, version: int) -> Leadership:
    """Decode a partition's leadership, read at this version.

    Raises:
        ValueError: if it makes no sense.
    """
    content = _decode(data)
    return Leadership(
        int(content["leader"]),
        int(content["leader_epoch"]),
        _nodes(content["isr"]),
        int(content["controller_epoch"]),
        version,
        _nodes(content.get("gone", [])),
    )


def write_config(config: Mapping[str, str]) -> bytes:
    """Encode a topic's settings."""
    return _encode(config=dict(config))


def config_of(data: bytes) -> dict[str, str]:
    """Decode a topic's settings.

    Raises:
        ValueError: if it makes no sense.
    """
    content = _decode(data)["config"]
    if not isinstance(content, dict):
        raise ValueError(f"settings by name are wanted, got {content!r}")  # noqa: TRY004 - one kind of error here
    return {str(name): str(value) for name, value in content.items()}


def write_keys(keys: Sequence[Key]) -> bytes:
    """Encode a list of partitions."""
    return _encode(partitions=[{"topic": topic, "partition": index} for topic, index in keys])


def keys_of(data: bytes) -> list[Key]:
    """Decode a list of partitions.

    Raises:
        ValueError: if it makes no sense.
    """
    return [(str(entry["topic"]), int(entry["partition"])) for entry in _entries(data)]


def write_reassignments(targets: Mapping[Key, Sequence[int]]) -> bytes:
    """Encode where partitions are to be."""
    return _encode(
        partitions=[{"topic": key[0], "partition": key[1], "replicas": list(nodes)} for key, nodes in targets.items()]
    )


def reassignments_of(data: bytes) -> dict[Key, tuple[int, ...]]:
    """Decode where partitions are to be.

    Raises:
        ValueError: if it makes no sense.
    """
    return {(str(entry["topic"]), int(entry["partition"])): _nodes(entry["replicas"]) for entry in _entries(data)}


def _encode(**content: object) -> bytes:
    return json.dumps({"version": 1, **content}, separators=(",", ":")).encode()


class _Content(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise ValueError(f"there is no {name!r} in {dict(self)}")


def _decode(data: bytes) -> _Content:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError(f"an object is wanted, got {content!r}")  # noqa: TRY004 - one kind of error here
    return _Content(content)


def _entries(data: bytes) -> list[_Content]:
    found = _decode(data)["partitions"]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"a list of partitions is wanted, got {found!r}")
    return [_Content(entry) for entry in found]


def _nodes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"a list of nodes is wanted, got {value!r}")  # noqa: TRY004 - one kind of error here
    nodes = tuple(int(node) for node in value)
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"a node twice in {value!r}")
    return nodes


def _now() -> str:
    return str(int(time.time() * 1_000))
