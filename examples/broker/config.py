"""The settings of one broker process, checked when they are made."""

from __future__ import annotations

from pathlib import Path

import attrs

from examples.broker.log import Fsync

__all__ = ["LEADER", "Config"]

LEADER = 1
"""Leadership is static: node 1 leads every partition, coordinates every group, and is the controller."""


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name} must be 1 or more, got {value}")


def _not_negative(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must be 0 or more, got {value}")


@attrs.frozen(kw_only=True)
class Config:
    """What one node needs to know; times in milliseconds."""

    data: Path = attrs.field(converter=Path)
    host: str = "127.0.0.1"
    node_id: int = attrs.field(default=LEADER, validator=_positive)
    ports: tuple[int, ...] = (9092,)
    """The port of every node of the cluster, node 1 first: as many as there are replicas."""

    # topics
    partitions: int = attrs.field(default=1, validator=_positive)
    auto_create_topics: bool = True
    min_isr: int = attrs.field(default=1, validator=_positive)
    segment_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=_positive)
    fsync: Fsync = Fsync.INTERVAL
    fsync_interval_ms: int = attrs.field(default=1_000, validator=_positive)

    # replication
    replica_lag_ms: int = attrs.field(default=10_000, validator=_positive)
    replica_fetch_wait_ms: int = attrs.field(default=200, validator=_positive)
    topic_refresh_ms: int = attrs.field(default=250, validator=_positive)

    # groups
    initial_rebalance_delay_ms: int = attrs.field(default=500, validator=_not_negative)
    min_session_timeout_ms: int = attrs.field(default=1_000, validator=_positive)
    max_session_timeout_ms: int = attrs.field(default=1_800_000, validator=_positive)
    max_group_size: int = attrs.field(default=1_000, validator=_positive)
    offset_commit_timeout_ms: int = attrs.field(default=5_000, validator=_positive)

    # limits
    max_connections: int = attrs.field(default=5_000, validator=_positive)
    max_request_bytes: int = attrs.field(default=32 * 1024 * 1024, validator=_positive)
    max_buffered_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=_positive)
    max_in_flight: int = attrs.field(default=256, validator=_positive)
    max_fetch_bytes: int = attrs.field(default=32 * 1024 * 1024, validator=_positive)
    max_batch_bytes: int = attrs.field(default=8 * 1024 * 1024, validator=_positive)
    max_parked: int = attrs.field(default=200_000, validator=_positive)
    max_wait_ms: int = attrs.field(default=300_000, validator=_positive)
    frame_timeout_ms: int = attrs.field(default=30_000, validator=_positive)
    """A request must arrive whole within this time of its first byte."""

    # ways to look in; none unless set, and 0 is a free port
    metrics_port: int | None = None
    console_port: int | None = None
    journal: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))

    def __attrs_post_init__(self) -> None:
        if self.node_id > len(self.ports):
            raise ValueError(f"node {self.node_id} of a cluster of {len(self.ports)}")
        if self.min_isr > len(self.ports):
            raise ValueError(f"min_isr {self.min_isr} can't be met by {len(self.ports)} replicas")

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
        return self.ports[self.node_id - 1]
