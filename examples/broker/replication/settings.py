"""The settings of replication. Times are in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs.validators import ge

from examples.broker.storage import topic_settings as names
from examples.broker.storage.disk import Fsync

if TYPE_CHECKING:
    from examples.broker.storage.topics import Topic


_INTERNAL_SEGMENT = 1024 * 1024
"""The internal topic has small segments, because compaction removes whole ones."""


@attrs.frozen(kw_only=True)
class ReplicationSettings:
    min_isr: int = attrs.field(default=1, validator=ge(1))
    """In-sync replicas that ``acks=all`` needs, for topics without a setting of their own."""
    segment_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=ge(1))
    segment_ms: int = attrs.field(default=7 * 24 * 3_600_000, validator=ge(1))
    fsync: Fsync = Fsync.INTERVAL
    fsync_interval_ms: int = attrs.field(default=1_000, validator=ge(1))
    lag_ms: int = attrs.field(default=10_000, validator=ge(1))
    """A replica that is behind for longer leaves the in-sync replicas."""
    fetch_wait_ms: int = attrs.field(default=200, validator=ge(1))
    max_wait_ms: int = attrs.field(default=300_000, validator=ge(1))
    max_fetch_bytes: int = attrs.field(default=32 * 1024 * 1024, validator=ge(1))
    max_batch_bytes: int = attrs.field(default=8 * 1024 * 1024, validator=ge(1))
    max_parked: int = attrs.field(default=200_000, validator=ge(1))
    """Operations that may wait in each purgatory."""


def settings_of(topic: Topic, node: ReplicationSettings) -> dict[str, str]:
    """Return all settings of a topic: its own, and the node's for the others."""
    return {
        names.MIN_ISR: str(min(node.min_isr, len(topic.replicas))),
        names.MAX_BYTES: str(node.max_batch_bytes),
        names.RETENTION_BYTES: "-1",
        names.RETENTION_MS: "-1",
        names.SEGMENT_BYTES: str(
            min(node.segment_bytes, _INTERNAL_SEGMENT) if topic.is_internal else node.segment_bytes
        ),
        names.SEGMENT_MS: str(node.segment_ms),
        names.TIMESTAMP_TYPE: "CreateTime",
        names.UNCLEAN_ELECTION: "false",
        **names.WITHOUT_EFFECT,
        **topic.settings,
    }
