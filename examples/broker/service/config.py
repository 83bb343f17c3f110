"""The settings of one broker process."""

from __future__ import annotations

from pathlib import Path

import attrs
from attrs.validators import ge

from examples.broker.coordination.opening import check_address
from examples.broker.groups.settings import GroupSettings
from examples.broker.replication.cluster import Cluster, check_port
from examples.broker.replication.settings import ReplicationSettings


@attrs.frozen(kw_only=True)
class Config:
    """The settings of one node. Times are in milliseconds."""

    data: Path = attrs.field(converter=Path)
    cluster: Cluster = Cluster()
    replication: ReplicationSettings = ReplicationSettings()
    groups: GroupSettings = GroupSettings()

    # for nodes of a cluster
    coordination: str = ""
    """``zk://host:port/chroot``. If empty, the nodes share a file in the folder above theirs."""
    session_ms: int = attrs.field(default=2_000, validator=ge(1))
    """A node that is silent for longer is dead to the others."""
    rebalance_ms: int = attrs.field(default=5_000, validator=ge(0))
    """Interval after which preferred replicas lead again, 0 for never."""
    offsets_partitions: int = attrs.field(default=8, validator=ge(1))
    """Partitions of the internal topic. Groups are spread over them."""

    # topics that are created because a client asks for their metadata
    partitions: int = attrs.field(default=1, validator=ge(1))
    auto_create_topics: bool = True

    # limits on clients
    max_connections: int = attrs.field(default=5_000, validator=ge(1))
    """Connections of clients. Those of other nodes do not count."""
    max_idle_ms: int = attrs.field(default=600_000, validator=ge(1))
    """A client without a request for longer is disconnected."""
    max_request_bytes: int = attrs.field(default=32 * 1024 * 1024, validator=ge(1))
    max_buffered_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=ge(1))
    max_elements: int = attrs.field(default=20_000, validator=ge(1))
    """The limit for all arrays of one request together."""
    turn_ms: int = attrs.field(default=10, validator=ge(0))
    """How long one connection's requests are handled before other connections have their turn."""
    max_in_flight: int = attrs.field(default=256, validator=ge(1))
    frame_timeout_ms: int = attrs.field(default=30_000, validator=ge(1))
    """A request must be complete within this time of its first byte."""

    # observation: off unless set, and 0 is a free port
    metrics_port: int | None = None
    console_port: int | None = None
    journal: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only one of its cluster."""
        return len(self.cluster.ports) == 1 and not self.coordination

    @property
    def shared_folder(self) -> Path:
        """The folder of the coordination file. A cluster that is started on the folder of a node alone has its own."""
        return self.data.parent if len(self.cluster.ports) > 1 else self.data / "tree"

    def __attrs_post_init__(self) -> None:
        nodes = len(self.cluster.ports)
        if self.replication.min_isr > nodes:
            raise ValueError(f"min_isr must be 1 to {nodes}, the number of nodes, got {self.replication.min_isr}")
        check_address(self.coordination)
        for port in (self.metrics_port, self.console_port):
            if port is not None:
                check_port(port)
