"""When a follower last fetched, told once for all the partitions of its session."""

from __future__ import annotations

import attrs

__all__ = ["FetchClock"]


@attrs.define(eq=False)
class FetchClock:
    """The time of the last fetch, in monotonic seconds; all partitions of a session share one."""

    at: float = 0.0
