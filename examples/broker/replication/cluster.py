"""Which nodes there are, where they listen, and which of them is this one."""

from __future__ import annotations

import attrs
from attrs.validators import ge

_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - to be refused
_LAST_PORT = 65_535


def check_port(port: int) -> None:
    """Refuse what is no port; the system would take some of it for another one.

    Raises:
        ValueError: if it is not between 0, which is any free one, and 65535.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"{port} is no port: 0 to {_LAST_PORT}")


@attrs.frozen
class Cluster:
    """The nodes of a cluster, numbered one after the other, as one of them sees them.

    Args:
        node_id: this node.
        ports: the port of every node, the first node's first: as many as there are replicas.
        host: where this node listens. Where the others are is not known from the start: each tells the controller.
        advertised: under what name or address clients and other nodes reach this node; `host` if empty.
        first_id: the id of the first node; all nodes of a cluster agree on it.
    """

    node_id: int = 1
    ports: tuple[int, ...] = (9092,)
    host: str = "127.0.0.1"
    advertised: str = ""
    first_id: int = attrs.field(default=1, validator=ge(0))

    def __attrs_post_init__(self) -> None:
        if self.node_id not in self.nodes:
            raise ValueError(f"node_id must be {self.nodes[0]} to {self.nodes[-1]}, got {self.node_id}")
        for port in self.ports:
            check_port(port)
        if self.advertised_host in _ANYWHERE:
            raise ValueError(
                f"nobody can reach {self.advertised_host!r}: say under what host name this node is reached"
            )

    @property
    def nodes(self) -> range:
        """The ids of all nodes."""
        return range(self.first_id, self.first_id + len(self.ports))

    @property
    def advertised_host(self) -> str:
        """Where clients and other nodes reach this node."""
        return self.advertised or self.host

    @property
    def port(self) -> int:
        """This node's port."""
        return self.port_of(self.node_id)

    def port_of(self, node: int) -> int:
        """Give a node's port."""
        return self.ports[node - self.first_id]
