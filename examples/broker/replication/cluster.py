"""The nodes of a cluster, their addresses, and which of them this process is."""

from __future__ import annotations

import attrs
from attrs.validators import ge, le

_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - rejected
_LAST_PORT = 65_535
_LAST_FIRST_ID = 900_000  # a producer's id is made of a node's, and has 63 bits


def check_port(port: int) -> None:
    """Reject an invalid port with ValueError. 0 stands for any free port."""
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"a port must be 0 to {_LAST_PORT}, got {port}")


@attrs.frozen
class Cluster:
    """The nodes of a cluster, numbered one after the other.

    Args:
        node_id: this node.
        ports: the port of every node, the first node's first. There are as many nodes as ports.
        host: the address where this node listens. Other nodes register their own addresses with the controller.
        advertised: the name or address under which clients and other nodes reach this node, by default ``host``.
        first_id: the id of the first node, the same on all nodes.
    """

    node_id: int = 1
    ports: tuple[int, ...] = (9092,)
    host: str = "127.0.0.1"
    advertised: str = ""
    first_id: int = attrs.field(default=1, validator=[ge(0), le(_LAST_FIRST_ID)])

    def __attrs_post_init__(self) -> None:
        if self.node_id not in self.nodes:
            raise ValueError(f"node_id must be {self.nodes[0]} to {self.nodes[-1]}, got {self.node_id}")
        for port in self.ports:
            check_port(port)
        if self.advertised_host in _ANYWHERE:
            raise ValueError(
                f"advertised_host must be reachable from other machines, got {self.advertised_host!r}: "
                "pass the name of this machine"
            )

    @property
    def nodes(self) -> range:
        return range(self.first_id, self.first_id + len(self.ports))

    @property
    def advertised_host(self) -> str:
        return self.advertised or self.host

    @property
    def port(self) -> int:
        return self.ports[self.node_id - self.first_id]
