"""Which nodes there are, where they listen, and which of them is this one."""

from __future__ import annotations

import attrs

__all__ = ["LEADER", "Cluster"]

LEADER = 1
"""Leadership is static: node 1 leads every partition, coordinates every group, and is the controller."""


@attrs.frozen
class Cluster:
    """The nodes of a cluster on one host, numbered from 1, as one of them sees them.

    Args:
        node_id: this node.
        ports: the port of every node, node 1 first: as many as there are replicas.
        host: where they all listen.
    """

    node_id: int = LEADER
    ports: tuple[int, ...] = (9092,)
    host: str = "127.0.0.1"

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.node_id <= len(self.ports):
            raise ValueError(f"node {self.node_id} of a cluster of {len(self.ports)}")

    @property
    def nodes(self) -> range:
        """The ids of all nodes."""
        return range(1, len(self.ports) + 1)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.node_id == LEADER

    @property
    def port(self) -> int:
        """This node's port."""
        return self.port_of(self.node_id)

    def port_of(self, node: int) -> int:
        """Give a node's port."""
        return self.ports[node - 1]
