"""The paths in the tree and the contents of their nodes, as JSON. The paths are those of Apache Kafka.

    /controller                            ephemeral; the node that is the controller
    /controller_epoch                      the number of controllers so far
    /cluster_secret                        the secret by which nodes recognise each other
    /brokers/ids/2                         ephemeral; the address of node 2, its incarnation (another one with each
                                           registration), the id of its data folder, and where its logs ended then
    /brokers/known                         the incarnations that the controller has handled
    /brokers/offline/2                     ephemeral; node 2 is about to stop, or its disk rejects writes
    /brokers/topics/orders                 the nodes of each partition, the preferred leader first; the topic's id
    /brokers/topics/orders/partitions/0/state      leader, leader epoch, in-sync replicas, and those that have left;
                                           changed by version only
    /config/topics/orders                  the topic's settings
    /config/changes                        set with every change of a setting, so that one watch is enough
    /isr_change_notification/3-17          a leader changed in-sync replicas; the controller reads and removes it
    /admin/delete_topics/orders            a request to delete the topic
    /admin/reassign_partitions             a request to move partitions

Anyone may write to the tree with other tools. So all decoders (``*_of``, ``read``) raise ValueError for invalid
content, numbers that do not fit into a request included.

Pure functions, except ``make_roots``, ``secret_of`` and ``read_config``.
"""

from __future__ import annotations

import base64
import functools
import json
import secrets
import time
import zlib
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs
import structlog

from examples.broker.coordination.store import Create, NodeExists, NoNode, Store
from examples.broker.replication.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)
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
CONFIGS = "/config/topics"
CONFIG_CHANGES = "/config/changes"
_ROOTS = ("/brokers", IDS, KNOWN, OFFLINE, TOPICS, ISR_CHANGES, "/admin", DELETIONS, "/config", CONFIGS, CONFIG_CHANGES)

NO_END = (-1, 0)
"""The end of an empty log."""
_MOST_BYTES_OF_ENDS = 1_000_000  # a request to ZooKeeper has at most 1,048,575

P = ParamSpec("P")
T = TypeVar("T")


def _decoder(read: Callable[P, T]) -> Callable[P, T]:
    """Raise ValueError for content of another type or shape."""

    @functools.wraps(read)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, zlib.error) as error:
            raise ValueError(f"invalid content of a node: {error!r}") from error

    return checked


def make_roots(store: Store) -> None:
    """Create the nodes that all others are created under, where they are missing."""
    contents = {EPOCH: b"0", SECRET: secrets.token_hex(32).encode()}
    for path in (*_ROOTS, *contents):
        try:
            store.multi([Create(path, contents.get(path, b""))])
        except NodeExists:
            continue


def secret_of(store: Store) -> bytes:
    return store.get(SECRET).data


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partition_path(key: Key) -> str:
    return f"{TOPICS}/{key[0]}/partitions/{key[1]}"


def state_path(key: Key) -> str:
    """Return the path of a partition's leadership.

    >>> state_path(("orders", 0))
    '/brokers/topics/orders/partitions/0/state'
    """
    return f"{partition_path(key)}/state"


def config_path(topic: str) -> str:
    return f"{CONFIGS}/{topic}"


@attrs.frozen
class BrokerInfo:
    """A registered node: its address, its incarnation, and the ends of its logs when it registered.

    Each registration has another incarnation, also that of a node that only lost its session. The ends are by folder,
    such as ``orders-0``: the leader epoch of the last batch, and the next offset.
    """

    node_id: int
    host: str
    port: int
    incarnation: str = ""
    folder_id: str = ""
    """The id of its data folder. Another machine with the same node id has another one."""
    ends: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, eq=False)

    def end_of(self, key: Key) -> tuple[int, int]:
        """Return the end of a partition's log when the node registered."""
        return self.ends.get(f"{key[0]}-{key[1]}", NO_END)

    def write(self) -> bytes:
        return _encode(
            host=self.host,
            port=self.port,
            incarnation=self.incarnation,
            folder_id=self.folder_id,
            ends=_packed(self.ends),
            timestamp=_now(),
        )

    @classmethod
    @_decoder
    def read(cls, node_id: int, data: bytes) -> BrokerInfo:
        content = _decode(data)
        ends = _unpacked(content.get("ends", _packed({})))
        incarnation, folder_id = str(content.get("incarnation", "")), str(content.get("folder_id", ""))
        return cls(_int32(node_id), str(content["host"]), _int32(content["port"]), incarnation, folder_id, ends)


def _packed(ends: Mapping[str, tuple[int, int]]) -> str:
    """Compress the ends of logs. If they are too many for a node of ZooKeeper, some are left out."""
    known = [(name, end) for name, end in ends.items() if end != NO_END]
    while True:
        packed = base64.b64encode(zlib.compress(json.dumps(dict(known), separators=(",", ":")).encode()))
        if len(packed) <= _MOST_BYTES_OF_ENDS:
            return packed.decode()
        del known[len(known) // 2 :]


def _unpacked(packed: str) -> dict[str, tuple[int, int]]:
    content = json.loads(zlib.decompress(base64.b64decode(packed)))
    return {str(name): (int(epoch), int(end)) for name, (epoch, end) in content.items()}


def write_known(brokers: Mapping[int, BrokerInfo]) -> bytes:
    return _encode(brokers={str(node): info.incarnation for node, info in brokers.items()})


@_decoder
def known_of(data: bytes) -> dict[int, str]:
    return {int(node): str(incarnation) for node, incarnation in _decode(data)["brokers"].items()}


def write_controller(node: int) -> bytes:
    return _encode(brokerid=node, timestamp=_now())


@_decoder
def controller_of(data: bytes) -> int:
    return _int32(_decode(data)["brokerid"])


def write_assignment(assignment: Mapping[int, Sequence[int]], topic_id: str = "") -> bytes:
    """Encode the nodes of each partition, and the id that distinguishes the topic from others of its name."""
    partitions = {str(index): list(nodes) for index, nodes in assignment.items()}
    return _encode(partitions=partitions, **({"topic_id": topic_id} if topic_id else {}))


@_decoder
def topic_id_of(data: bytes) -> str:
    """Decode a topic's id. It is empty if another tool has created the topic."""
    return str(_decode(data).get("topic_id", ""))


@_decoder
def assignment_of(data: bytes) -> dict[int, tuple[int, ...]]:
    """Decode the nodes of each partition."""
    return {_int32(index): _nodes(nodes) for index, nodes in _decode(data)["partitions"].items()}


def write_state(state: Leadership) -> bytes:
    return _encode(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        gone=list(state.gone),
    )


@_decoder
def state_of(data: bytes, version: int) -> Leadership:
    content = _decode(data)
    return Leadership(
        _int32(content["leader"]),
        _int32(content["leader_epoch"]),
        _nodes(content["isr"]),
        version,
        _nodes(content.get("gone", [])),
    )


def write_config(config: Mapping[str, str]) -> bytes:
    return _encode(config=dict(config))


@_decoder
def config_of(data: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in _decode(data)["config"].items()}


def read_config(store: Store, topic: str) -> dict[str, str]:
    """Read a topic's settings. Invalid ones, which another tool has written, have no effect."""
    try:
        return config_of(store.get(config_path(topic)).data)
    except NoNode:
        return {}
    except ValueError as error:
        _log.error("invalid settings in the tree", topic=topic, reason=str(error))
        return {}


def write_keys(keys: Sequence[Key]) -> bytes:
    return _encode(partitions=[{"topic": topic, "partition": index} for topic, index in keys])


@_decoder
def keys_of(data: bytes) -> list[Key]:
    return [(str(entry["topic"]), _int32(entry["partition"])) for entry in _entries(data)]


def write_reassignments(targets: Mapping[Key, Sequence[int]]) -> bytes:
    return _encode(
        partitions=[{"topic": key[0], "partition": key[1], "replicas": list(nodes)} for key, nodes in targets.items()]
    )


@_decoder
def reassignments_of(data: bytes) -> dict[Key, tuple[int, ...]]:
    return {(str(entry["topic"]), _int32(entry["partition"])): _nodes(entry["replicas"]) for entry in _entries(data)}


def _encode(**content: object) -> bytes:
    return json.dumps({"version": 1, **content}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError(f"the content must be an object, got {content!r}")
    return content


def _entries(data: bytes) -> list[dict[str, Any]]:
    found = _decode(data)["partitions"]
    if not isinstance(found, list):
        raise TypeError(f"partitions must be a list, got {found!r}")
    return found


def _nodes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"nodes must be a list, got {value!r}")
    nodes = tuple(_int32(node) for node in value)
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"nodes must be different, got {value!r}")
    return nodes


def _int32(value: Any) -> int:
    number = int(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"a number must have 32 bits, got {value!r}")
    return number


def _now() -> str:
    return str(int(time.time() * 1_000))
