"""The settings of replication. Times are in milliseconds."""

from __future__ import annotations

import attrs
from attrs.validators import ge

from examples.broker.storage.log import Fsync


@attrs.frozen(kw_only=True)
class ReplicationSettings:
    min_isr: int = attrs.field(default=1, validator=ge(1))
    """In-sync replicas that `acks=all` needs, for topics without a setting of their own."""
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
