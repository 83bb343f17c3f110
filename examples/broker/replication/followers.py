"""A leader's view of a partition's followers: the position of each, and when it last was at the leader's end.

    second   leader's end   follower asks for   it was last at the end at
    1        20             20                  1: it asks for the next record
    2        25             23                  1: more has been appended since it asked
    3        30             25                  2: 25 was the end when it asked

The offset in a follower's fetch is its position. Under constant load a follower that keeps up hardly ever asks for the
very end, so the time when it last was there counts.

All partitions of a fetch session share one clock. A follower at the end of a partition does not name it again, and
every fetch of the session says that it still is there.

Arithmetic only. Used on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


@attrs.define(eq=False)
class FetchClock:
    """The time of the last fetch, in monotonic seconds. All partitions of a fetch session share one."""

    at: float = 0.0


@attrs.define
class _Follower:
    """One follower's position. Times are in monotonic seconds."""

    next_offset: int = -1
    log_start_offset: int = -1
    clock: FetchClock = attrs.field(factory=FetchClock)
    """The time of its last fetch. In a session, that fetch may not have named this partition."""
    sent_at: float = 0.0
    leader_end: int = 0
    """The leader's end at its last fetch or response."""
    caught_up_at: float = 0.0
    """When it last was at the leader's end, according to fetches that named the partition."""

    def last_caught_up(self, end: int) -> float:
        """Return when it last was at the leader's end, which is ``end`` now."""
        return max(self.caught_up_at, self.clock.at) if self.next_offset >= end else self.caught_up_at


class Followers:
    """The followers of one partition, by node. ``end`` is the leader's end in all methods."""

    def __init__(self) -> None:
        self._by_node: dict[int, _Follower] = {}

    def set_followers(self, nodes: Iterable[int], now: float) -> None:
        """Set the followers. A new one counts as caught up now."""
        self._by_node = {node: self._by_node.get(node) or _Follower(caught_up_at=now) for node in nodes}

    def __contains__(self, node: int) -> bool:
        return node in self._by_node

    def fetched(self, node: int, offset: int, log_start_offset: int, clock: FetchClock, end: int) -> bool:
        """Note a fetch. Returns whether the follower's log start moved."""
        follower = self._by_node[node]
        if offset >= end:
            follower.caught_up_at = clock.at
        elif offset >= follower.leader_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.sent_at)
        start_moved = log_start_offset > follower.log_start_offset
        follower.next_offset, follower.log_start_offset, follower.clock = offset, log_start_offset, clock
        follower.sent_at, follower.leader_end = clock.at, end
        return start_moved

    def sent(self, node: int, now: float, end: int) -> None:
        """Note a response. Once the follower has it, it was at the leader's end of now."""
        follower = self._by_node.get(node)
        if follower is not None:
            follower.sent_at, follower.leader_end = now, end

    def stopped_fetching(self, node: int) -> None:
        """Detach a follower from the clock of its session, which no longer includes this partition."""
        follower = self._by_node.get(node)
        if follower is not None:
            follower.clock = FetchClock(follower.clock.at)

    def end_moves(self, end: int) -> None:
        """Note which followers were at the end, before something is appended."""
        for follower in self._by_node.values():
            follower.caught_up_at = follower.last_caught_up(end)

    def behind(self, now: float, lag_s: float, end: int) -> set[int]:
        """Return the followers that were last at the end more than ``lag_s`` seconds ago."""
        return {node for node, f in self._by_node.items() if now - f.last_caught_up(end) > lag_s}

    def at_least(self, offset: int) -> set[int]:
        """Return the followers that have everything below an offset."""
        return {node for node, follower in self._by_node.items() if follower.next_offset >= offset}

    def end_of(self, node: int) -> int:
        """Return a follower's position, or -1 before its first fetch."""
        return self._by_node[node].next_offset

    def log_starts(self, live: Container[int]) -> list[int]:
        """Return the log starts of the followers on these nodes."""
        return [follower.log_start_offset for node, follower in self._by_node.items() if node in live]
