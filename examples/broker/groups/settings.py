"""The limits of consumer groups. Times are in milliseconds."""

from __future__ import annotations

import attrs
from attrs.validators import ge


@attrs.frozen(kw_only=True)
class GroupSettings:
    initial_rebalance_delay_ms: int = attrs.field(default=500, validator=ge(0))
    """How long a group that was empty waits for more members."""
    min_session_timeout_ms: int = attrs.field(default=1_000, validator=ge(1))
    max_session_timeout_ms: int = attrs.field(default=1_800_000, validator=ge(1))
    max_group_size: int = attrs.field(default=1_000, validator=ge(1))
    max_metadata_bytes: int = attrs.field(default=4_096, validator=ge(0))
    """The limit of a client's own text beside an offset."""
    offset_commit_timeout_ms: int = attrs.field(default=5_000, validator=ge(1))
