"""The settings of one broker process, checked when they are made; each room's own are in its `settings`."""

from __future__ import annotations

from pathlib import Path

import attrs
from attrs.validators import ge

from examples.broker.coordination import check_address
from examples.broker.groups.settings import GroupSettings
from examples.broker.replication.cluster import Cluster, check_port
from examples.broker.replication.settings import ReplicationSettings


@attrs.frozen(kw_only=True)
class Config:
    """What one node needs to know; times in milliseconds."""

    data: Path = attrs.field(converter=Path)
    cluster: Cluster = Cluster()
    replication: ReplicationSettings = ReplicationSettings()
    groups: GroupSettings = GroupSettings()

    # the cluster; a node alone needs none of it
    coordination: str = ""
    """`zk://host:port/chroot`; else the nodes share a file beside their folders."""
    session_ms: int = attrs.field(default=2_000, validator=ge(1))
    """A node that is silent for longer is dead to the others."""
    rebalance_ms: int = attrs.field(default=5_000, validator=ge(0))
    """How often leadership is given back to preferred replicas; 0 for never."""
    offsets_partitions: int = attrs.field(default=8, validator=ge(1))
    """Of the internal topic: over so many the groups are spread."""

    # topics made by being asked for
    partitions: int = attrs.field(default=1, validator=ge(1))
    auto_create_topics: bool = True

    # limits on clients
    max_connections: int = attrs.field(default=5_000, validator=ge(1))
    max_request_bytes: int = attrs.field(default=32 * 1024 * 1024, validator=ge(1))
    max_buffered_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=ge(1))
    max_elements: int = attrs.field(default=20_000, validator=ge(1))
    """In all arrays of one request together."""
    turn_ms: int = attrs.field(default=10, validator=ge(0))
    """How long one connection's requests are handled before the others have their turn."""
    max_in_flight: int = attrs.field(default=256, validator=ge(1))
    frame_timeout_ms: int = attrs.field(default=30_000, validator=ge(1))
    """A request must arrive whole within this time of its first byte."""

    # ways to look in; none unless set, and 0 is a free port
    metrics_port: int | None = None
    console_port: int | None = None
    journal: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))

    @property
    def is_alone(self) -> bool:
        """Whether there are no other nodes, and nobody to agree with."""
        return len(self.cluster.ports) == 1 and not self.coordination

    @property
    def shared_folder(self) -> Path:
        """Where nodes of one machine find each other's file."""
        return self.data.parent if len(self.cluster.ports) > 1 else self.data

    def __attrs_post_init__(self) -> None:
        nodes = len(self.cluster.ports)
        if self.replication.min_isr > nodes:
            raise ValueError(f"min_isr {self.replication.min_isr} can't be met by {nodes} replicas")
        check_address(self.coordination)
        for port in (self.metrics_port, self.console_port):
            if port is not None:
                check_port(port)
